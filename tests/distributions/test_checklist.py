"""Every distribution of dependent variables, alone and as copies, against its definition.

| what | where |
|---|---|
| probabilities sum to one, `log_prob`, impossible points | here, by listing all points |
| entropy and marginals, with first and second derivatives | here |
| samples | here, by chi-square, and by all cells of the inverse CDF |
| logits of 80 and -80, types of 16 and 32 bits | here |
| batches, empty ones too, `expand`, `vmap` | here |
| masks, k = 0, k = 1, k = d | cases of tests/support/structured_cases.py |
| gradient of every estimator | test_every_estimator.py |

Numbers are compared in float64 at 1e-12.
"""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

import catlog
from catlog.core.factors import DependentFactors
from catlog.core.randomness import Randomness
from catlog.core.view import view
from catlog.distributions import Ordered
from catlog.estimators import LEG
from catlog.testing.cases import normals, seeded
from support.chi_square import p_value, tally
from support.samplers import cells, combine
from support.structured_cases import (
    ALL_CASES,
    STRUCTURED_CASES,
    StructuredCase,
    close,
    every,
    extreme,
)

FALSE_ALARMS = 1e-6  # of one chi-square test; there are two for each case
DRAWS = 100_000
each_case = pytest.mark.parametrize("case", ALL_CASES.values(), ids=ALL_CASES.keys())
# Given by probabilities, those of exp(-160) are 0 in float32, and 1 - exp(-80) is 1 in float64.
BY_LOGITS = [name for name in ALL_CASES if "by probabilities" not in name]


def law_of(case: StructuredCase, theta: Tensor) -> DependentFactors:
    law = view(case.distribution(theta))
    assert isinstance(law, DependentFactors)
    return law


def chosen(q: Ordered, raw: Tensor, x: Tensor) -> Tensor:
    """Return the log-probability of x by these logits of all variables."""
    log_probs = q.normalised(raw, validate=True)
    return log_probs.gather(-1, x.unsqueeze(-1)).squeeze(-1).sum(-1)


def has_second_derivatives(case: StructuredCase) -> bool:
    """Return False where the definition's may be NaN, beside large numbers."""
    return bool(case.theta.abs().max() < 10)


def gradient(value: Tensor, theta: Tensor, **options: bool) -> Tensor:
    """Return the gradient of a number, which need not depend on theta."""
    return torch.autograd.grad(value + 0 * theta.square().sum(), theta, **options)[0]


def gradients(values: Tensor, theta: Tensor) -> Tensor:
    """Return the gradient of every value, ``[values, *theta]``."""
    each = torch.eye(len(values), dtype=values.dtype)
    values = values + 0 * theta.sum()
    return torch.autograd.grad(values, theta, each, retain_graph=True, is_grads_batched=True)[0]


def derivatives(value: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient, and the Hessian times a random vector."""
    slope = gradient(value, theta, create_graph=True)
    return slope, gradient((slope * normals(*theta.shape, seed=9)).sum(), theta, retain_graph=True)


@each_case
def test_log_prob(case: StructuredCase) -> None:
    """The definition's, with its gradient; every other point is impossible."""
    theta = case.theta.clone().requires_grad_()
    law, wanted = law_of(case, theta), case.log_probs(theta)
    assert law.event_shape == case.distribution(theta).event_shape == case.points.shape[1:]
    assert law.dtype == case.points.dtype
    q, index = law.ordered, law.index(case.points)
    assert torch.equal(law.point(index), case.points)
    log_probs = law.log_prob(index)
    one_by_one = [
        q.checked(q.conditional(index, block), block, index.shape[:-1])
        for block in range(len(q.blocks))
    ]
    for got in (
        log_probs,
        Ordered.log_prob_of_rows(q, index),
        chosen(q, q.raw_logits(index), index),
        chosen(q, q.by_variable(one_by_one), index),
    ):
        close(got, wanted)
    close(gradients(log_probs, theta), gradients(wanted, theta))
    if has_second_derivatives(case):
        close(*(derivatives(values.sum(), theta)[1] for values in (log_probs, wanted)))
    everywhere = law.log_prob(every(*q.cardinalities))
    assert not everywhere.isnan().any()
    assert int((everywhere > -torch.inf).sum()) == len(case.points)
    close(Ordered.log_prob_of_rows(q, every(*q.cardinalities)).exp(), everywhere.exp())
    listed = q.enumerate_support()
    assert len(listed) == q.points
    for log_prob in (wanted, everywhere, q.log_prob(listed)):
        close(log_prob.exp().sum(), torch.ones(()).double())
    # Impossible points beside possible ones do no harm.
    close(gradient(everywhere.exp().sum(), theta), torch.zeros_like(theta))


@each_case
def test_entropy_and_marginals(case: StructuredCase) -> None:
    """The definition's, with their derivatives."""
    theta = case.theta.clone().requires_grad_()
    law, probs = law_of(case, theta), case.probabilities(theta)
    marginals = (one_hot(law.index(case.points), law.k) * probs[:, None, None]).sum(0)
    entropy, scale = -(probs * case.log_probs(theta)).sum(), normals(*marginals.shape, seed=8)
    for got, wanted in ((law.ordered.entropy(), entropy), (law.ordered.marginals(), marginals)):
        close(got, wanted)
        totals = [(scale * value).sum() for value in (got, wanted)]
        first, second = zip(*(derivatives(total, theta) for total in totals), strict=True)
        close(*first)
        if has_second_derivatives(case):
            close(*second)
    close((Ordered.entropy(law.ordered), Ordered.marginals(law.ordered)), (entropy, marginals))


SAMPLED = ALL_CASES | {
    f"extreme {name}": extreme(case) for name, case in ALL_CASES.items() if "long" in name
}


@pytest.mark.parametrize("name", SAMPLED)
def test_samples_by_chi_square(name: str) -> None:
    """An estimator's draws, and ``sample`` of the distribution that the user has."""
    case = SAMPLED[name]
    q, probs = case.distribution(case.theta), case.probabilities(case.theta)
    x = Randomness(view(q), generator=seeded()).points(DRAWS)
    assert p_value(tally(x, case.points), probs) > FALSE_ALARMS
    if "of no draws" in name:
        return  # torch cannot sample a multinomial of no draws
    torch.manual_seed(0)
    x = q.sample((DRAWS,))
    assert x.dtype == case.points.dtype
    assert p_value(tally(x, case.points), probs) > FALSE_ALARMS


def test_the_chi_square_test_has_power() -> None:
    """It tells the draws of a chain from those of a chain with slightly other parameters."""
    case = STRUCTURED_CASES["copies of short chain"]
    x = case.distribution(case.theta * 0.85).sample((DRAWS,))
    assert p_value(tally(x, case.points), case.probabilities(case.theta)) < FALSE_ALARMS


@pytest.mark.parametrize("name", STRUCTURED_CASES)
def test_draws_have_the_right_probabilities(name: str) -> None:
    """Inverse CDF over all cells gives every point its probability, exactly."""
    case = STRUCTURED_CASES[name]
    law = law_of(case, case.theta)
    u, weight = combine(cells(law.ordered))
    index, log_prob, conditionals = law.ordered.scored(u)  # in the pass that draws
    for drawn in (index, law.ordered.from_uniforms(u), Ordered.from_uniforms(law.ordered, u)):
        assert torch.equal(drawn, index)
    close(log_prob, law.ordered.log_prob_of_rows(index))
    close(conditionals.log_probs.exp(), law.ordered.log_conditionals(index).exp())
    x = law.point(index)
    is_equal = (x.unsqueeze(1) == case.points).reshape(len(x), len(case.points), -1).all(-1)
    close((weight.unsqueeze(-1) * is_equal).sum(0), case.probabilities(case.theta))


@pytest.mark.parametrize("name", [name for name in ALL_CASES if "bits by prob" not in name])
def test_extreme_logits(name: str) -> None:
    """Log-probabilities, entropy and marginals stay exact, with their gradients."""
    case = extreme(ALL_CASES[name])
    test_log_prob(case)
    test_entropy_and_marginals(case)
    test_batches_and_expand(case)


@pytest.mark.parametrize("name", BY_LOGITS)
def test_extreme_logits_in_float32(name: str) -> None:
    """Values and gradients are finite and those of float64, as far as float32 can be."""
    case = extreme(ALL_CASES[name], torch.float32)
    numbers = []
    for dtype in (torch.float32, torch.float64):
        theta = case.theta.to(dtype).requires_grad_()
        law = law_of(case, theta)
        log_probs = law.log_prob(law.index(case.points.to(law.dtype)))
        assert log_probs.dtype == dtype
        entropy, marginals = law.ordered.entropy(), law.ordered.marginals()
        slopes = [
            gradient(value, theta, retain_graph=True)
            for value in (entropy, marginals[..., 0].sum())
        ]
        numbers.append([log_probs, entropy, marginals, *slopes, gradients(log_probs, theta)])
    for got, wanted in zip(*numbers, strict=True):
        assert got.isfinite().all()
        torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-4)


@each_case
def test_batches_and_expand(case: StructuredCase) -> None:
    """A batch of parameters equals a loop; an expanded distribution repeats itself."""
    thetas = torch.stack([case.theta, -0.5 * case.theta, 0.1 * case.theta])
    whole, alone = law_of(case, thetas), [law_of(case, theta) for theta in thetas]
    wide = view(case.distribution(case.theta).expand([2, 3]))
    index = alone[0].index(case.points)
    for law, laws, batch in ((whole, alone, (3,)), (wide, [alone[0]] * 6, (2, 3))):
        assert law.batch_shape == batch
        rows = index.view(-1, *[1] * len(batch), index.shape[-1]).expand(-1, *batch, -1)
        log_prob = torch.stack([one.log_prob(index) for one in laws], -1)
        close(law.log_prob(rows).flatten(1), log_prob)
        close(law.ordered.entropy().flatten(), torch.stack([q.ordered.entropy() for q in laws]))
        marginals = torch.stack([one.ordered.marginals() for one in laws])
        close(law.ordered.marginals(), marginals.view(*batch, *marginals.shape[1:]))
    d = len(wide.ordered.cardinalities)
    x = Randomness(wide, generator=seeded()).points(5)
    assert x.shape == (5, 2, 3, *case.points.shape[1:])
    assert wide.ordered.sample((7, 2)).shape == (7, 2, 2, 3, d)
    assert wide.log_prob(wide.index(x)).isfinite().all()
    u = torch.rand(4, 2, 3, d, dtype=torch.float64)
    assert torch.equal(wide.ordered.from_uniforms(u), Ordered.from_uniforms(wide.ordered, u))
    value = catlog.SCateR(2)(lambda x: x.double().reshape(len(x), 2, 3, -1).sum(-1), wide.ordered)
    assert value.shape == (2, 3)


@pytest.mark.parametrize("batch", [(0,), (2, 0)], ids=str)
@pytest.mark.parametrize("name", STRUCTURED_CASES)
def test_an_empty_batch(name: str, batch: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    # torch's own check cannot do empty batches.
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", False)
    case = STRUCTURED_CASES[name]
    theta = case.theta.expand(*batch, *case.theta.shape).clone().requires_grad_()
    q, law = case.distribution(theta), law_of(case, theta)
    x = Randomness(law).points(4)
    assert x.shape == (4, *batch, *case.points.shape[1:])
    assert law.log_prob(law.index(x)).shape == (4, *batch)
    assert law.ordered.entropy().shape == law.ordered.marginals().shape[:-2] == batch
    for E in (catlog.Exact(), catlog.RLOO(2), catlog.SCateR(1), catlog.CritiCateR(2), LEG(1)):
        value = E(lambda x: x.float().unsqueeze(-1).flatten(1 + len(batch)).sum(-1), q)
        assert value.shape == batch
        gradient(value.sum(), theta, retain_graph=True)


# Neither torch nor a network has rounded their parameters.
TABLES = [
    name
    for name in ALL_CASES
    if any(word in name for word in ("subset", "ranking", "crf", "chain", "block"))
]


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_narrow_types_compute_in_float32(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also under autocast, whose matrix products in bfloat16 die on some CPUs."""
    case, theta = ALL_CASES[name], ALL_CASES[name].theta.to(dtype)
    wide = law_of(case, theta.float()).ordered
    x, u = wide.enumerate_support(), torch.rand(1000, len(wide.cardinalities))
    wanted = wide.entropy(), wide.marginals(), wide.log_prob(x), wide.from_uniforms(u)
    place = wanted[-1].unsqueeze(-1)  # by its definition, the uniform lies in its category's cell
    probs = wide.log_conditionals(wanted[-1]).double().exp()
    above, width = (table.gather(-1, place).squeeze(-1) for table in (probs.cumsum(-1), probs))
    assert ((u > above - width - 1e-6) & (u < above + 1e-6)).all()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for law in (law_of(case, theta.float()), law_of(case, theta)):
            q = law.ordered
            assert law.real == torch.float32  # of uniforms
            got = q.entropy(), q.marginals(), q.log_prob(x), q.from_uniforms(u)
            assert all(map(torch.equal, got, wanted))
    made, rand = set(), torch.rand
    monkeypatch.setattr(torch, "rand", lambda *a, **b: (made.add(b["dtype"]), rand(*a, **b))[1])
    law.ordered.sample((2,))
    assert made <= {torch.float32}


MAPPED = ("chain", "network with a block", "crf", "subset", "ranking", "sequence that ends, step")


@pytest.mark.parametrize(
    "E", [catlog.RLOO(3), catlog.CritiCateR(3), catlog.SCateR(1), LEG(1)], ids=repr
)
@pytest.mark.parametrize("name", MAPPED)
def test_vmap_of_draws_equals_a_loop(name: str, E: catlog.Estimator) -> None:
    case = STRUCTURED_CASES[name]
    thetas = torch.stack([case.theta, -0.5 * case.theta, 0.1 * case.theta])

    def f(x: Tensor) -> Tensor:
        return (x * torch.arange(1.0, 1 + x.shape[-1])).sum(-1).sin()

    gradient = torch.func.grad(lambda theta: E(f, case.distribution(theta)))
    rows = []
    for theta in thetas:
        torch.manual_seed(0)
        rows.append(gradient(theta))
    torch.manual_seed(0)
    mapped = torch.func.vmap(gradient, randomness="same")(thetas)
    torch.testing.assert_close(mapped, torch.stack(rows), rtol=1e-12, atol=1e-12)
    different = torch.func.vmap(gradient, randomness="different")(thetas[:1].expand(20, -1))
    assert len(different.unique(dim=0)) > 1
    total = torch.func.grad(lambda theta: (case.distribution(theta).marginals()[..., 0]).sum())
    close(torch.func.vmap(total)(thetas), torch.stack([total(theta) for theta in thetas]))
    sample = torch.func.vmap(lambda t: case.distribution(t).sample((3,)), randomness="different")
    for theta, points in zip(thetas, sample(thetas), strict=True):
        assert case.distribution(theta).log_prob(points).isfinite().all()
