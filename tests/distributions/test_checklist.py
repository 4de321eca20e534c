"""Every distribution of dependent variables, alone and as copies, against its definition.

| what | where |
|---|---|
| probabilities sum to one, `log_prob`, impossible points | here, by listing all points |
| entropy and marginals, with their gradients | here |
| samples | here, by chi-square |
| logits of 80 and -80 | here |
| batches and `expand` | here |
| masks, k = 0, k = 1, k = d | cases of tests/structured_cases.py |
| gradient of every estimator | test_every_estimator.py |

Numbers are compared in float64 at 1e-12.
"""

from math import log

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

import catlog
from catlog.core.factors import DependentFactors
from catlog.core.randomness import Randomness
from catlog.core.view import view
from catlog.distributions import Ordered
from catlog.testing.cases import normals
from support.chi_square import p_value, tally
from support.samplers import cells, combine
from support.structured_cases import (
    ALL_CASES,
    FORMS,
    STRUCTURED_CASES,
    StructuredCase,
    close,
    every,
    extreme,
)

FALSE_ALARMS = 1e-6  # of one chi-square test; there are two for each case
DRAWS = 100_000
each_case = pytest.mark.parametrize("case", ALL_CASES.values(), ids=ALL_CASES.keys())


def law_of(case: StructuredCase, theta: Tensor) -> DependentFactors:
    law = view(case.distribution(theta))
    assert isinstance(law, DependentFactors)
    return law


def chosen(q: Ordered, raw: Tensor, x: Tensor) -> Tensor:
    """Return the log-probability of x by these logits of all variables."""
    log_probs = q.normalised(raw, validate=True)
    return log_probs.gather(-1, x.unsqueeze(-1)).squeeze(-1).sum(-1)


def gradient(value: Tensor, theta: Tensor) -> Tensor:
    """Return the gradient; zeros where the value does not depend on theta."""
    if not value.requires_grad:
        return torch.zeros_like(theta)
    options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    return torch.autograd.grad(value, theta, **options)[0]


def gradients(values: Tensor, theta: Tensor) -> Tensor:
    """Return the gradient of every value, ``[values, *theta]``."""
    if not values.requires_grad:
        return values.new_zeros(values.shape + theta.shape)
    each = torch.eye(len(values), dtype=values.dtype)
    return torch.autograd.grad(values, theta, each, retain_graph=True, is_grads_batched=True)[0]


@each_case
def test_log_prob(case: StructuredCase) -> None:
    """The definition's, with its gradient; every other point is impossible."""
    theta = case.theta.clone().requires_grad_()
    law, wanted = law_of(case, theta), case.log_probs(theta)
    assert law.event_shape == case.distribution(theta).event_shape == case.points.shape[1:]
    assert law.dtype == case.points.dtype
    index = law.index(case.points)
    assert torch.equal(law.point(index), case.points)
    log_probs = law.log_prob(index)
    close(log_probs, wanted)
    close(Ordered.log_prob_of_rows(law.ordered, index), wanted)
    close(chosen(law.ordered, law.ordered.raw_logits(index), index), wanted)
    one_by_one = [
        law.ordered.checked(law.ordered.conditional(index, block), block, index.shape[:-1])
        for block in range(len(law.ordered.blocks))
    ]
    close(chosen(law.ordered, law.ordered.by_variable(one_by_one), index), wanted)
    everywhere = law.log_prob(every(*law.ordered.cardinalities))
    assert not everywhere.isnan().any()
    assert int((everywhere > -torch.inf).sum()) == len(case.points)
    close(
        Ordered.log_prob_of_rows(law.ordered, every(*law.ordered.cardinalities)).exp(),
        everywhere.exp(),
    )
    listed = law.ordered.enumerate_support()
    assert len(listed) == law.ordered.points
    for log_prob in (wanted, everywhere, law.ordered.log_prob(listed)):
        close(log_prob.exp().sum(), torch.ones(()).double())
    close(gradients(log_probs, theta), gradients(wanted, theta))
    # Impossible points beside possible ones do no harm.
    close(gradient(everywhere.exp().sum(), theta), torch.zeros_like(theta))


@each_case
def test_entropy_and_marginals(case: StructuredCase) -> None:
    """The definition's, with their gradients."""
    theta = case.theta.clone().requires_grad_()
    law, probs = law_of(case, theta), case.probabilities(theta)
    marginals = (one_hot(law.index(case.points), law.k) * probs[:, None, None]).sum(0)
    weights = normals(*marginals.shape, seed=8)
    entropy = -(probs * case.log_probs(theta)).sum()
    for got, wanted in ((law.ordered.entropy(), entropy), (law.ordered.marginals(), marginals)):
        close(got, wanted)
        scale = weights if got.dim() else 3.0
        close(gradient((scale * got).sum(), theta), gradient((scale * wanted).sum(), theta))
    close(Ordered.marginals(law.ordered), marginals)
    close(Ordered.entropy(law.ordered), entropy)


@each_case
def test_samples_by_chi_square(case: StructuredCase) -> None:
    """An estimator's draws, and ``sample`` of the distribution that the user has."""
    q, probs = case.distribution(case.theta), case.probabilities(case.theta)
    x = Randomness(view(q), generator=torch.Generator().manual_seed(0)).points(DRAWS)
    assert p_value(tally(x, case.points), probs) > FALSE_ALARMS
    ordered = law_of(case, case.theta).ordered
    torch.manual_seed(0)
    u = torch.rand(DRAWS // 10, len(ordered.cardinalities), dtype=torch.float64)
    assert torch.equal(ordered.from_uniforms(u), Ordered.from_uniforms(ordered, u))
    if (
        getattr(q, "total_count", 1) == 0
        or getattr(getattr(q, "base_dist", None), "total_count", 1) == 0
    ):
        return  # torch cannot sample a multinomial of no draws
    x = q.sample((DRAWS,))
    assert x.dtype == case.points.dtype
    assert p_value(tally(x, case.points), probs) > FALSE_ALARMS


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


def test_the_chi_square_test_has_power() -> None:
    """It tells the draws of a chain from those of a chain with slightly other parameters."""
    case = STRUCTURED_CASES["copies of short chain"]
    x = case.distribution(case.theta * 0.85).sample((DRAWS,))
    assert p_value(tally(x, case.points), case.probabilities(case.theta)) < FALSE_ALARMS


@pytest.mark.parametrize("name", [name for name in ALL_CASES if "mixture" not in name])
def test_extreme_logits(name: str) -> None:
    """Log-probabilities, entropy and marginals stay exact, with their gradients."""
    case = extreme(ALL_CASES[name])
    test_log_prob(case)
    test_entropy_and_marginals(case)
    test_batches_and_expand(case)


@pytest.mark.parametrize("name", [name for name in ALL_CASES if "mixture" in name])
def test_extreme_logits_of_mixtures(name: str) -> None:
    """The same where the definition, a sum of products, does not underflow."""
    case = extreme(ALL_CASES[name])
    theta = case.theta.clone().requires_grad_()
    law, wanted = law_of(case, theta), case.log_probs(theta)
    log_probs, probs = law.log_prob(law.index(case.points)), wanted.exp()
    is_normal = wanted > log(1e-290)
    close(log_probs[is_normal], wanted[is_normal])
    close(log_probs.exp().sum(), torch.ones_like(probs.sum()))
    close(law.ordered.entropy(), -torch.special.xlogy(probs, probs).sum())
    close(
        law.ordered.marginals(),
        (one_hot(law.index(case.points), law.k) * probs[:, None, None]).sum(0),
    )
    if "bits by probabilities" in name:  # those near 1 - exp(-80) are 1, even in float64
        assert gradient(log_probs[is_normal].sum(), theta).isfinite().all()
        return
    assert log_probs.isfinite().all()
    slopes = gradients(log_probs, theta)
    assert slopes.isfinite().all()
    close(slopes[is_normal], gradients(wanted, theta)[is_normal])
    for value in (law.ordered.entropy(), law.ordered.marginals()[..., 0].sum()):
        assert gradient(value, theta).isfinite().all()


@pytest.mark.parametrize("form", FORMS)
def test_extreme_sequences_are_drawn_as_they_should(form: str) -> None:
    """Where one token has all the probability, no other is ever drawn."""
    case = extreme(ALL_CASES[f"long sequence that ends, {form}"])
    probs = case.probabilities(case.theta)
    torch.manual_seed(0)
    counts = tally(case.distribution(case.theta).sample((DRAWS,)), case.points)
    assert counts[DRAWS * probs < 1e-6].sum() == 0
    assert p_value(counts, probs) > FALSE_ALARMS


# Given by probabilities, those of exp(-160) are 0 in float32.
BY_LOGITS = [name for name in ALL_CASES if "by probabilities" not in name]


@pytest.mark.parametrize("name", BY_LOGITS)
def test_extreme_logits_in_float32(name: str) -> None:
    """Values and gradients are finite and those of float64, as far as float32 can be."""
    case = extreme(ALL_CASES[name], torch.float32)
    numbers = []
    for dtype in (torch.float32, torch.float64):
        theta = case.theta.to(dtype).requires_grad_()
        law = law_of(case, theta)
        log_probs = law.log_prob(law.index(case.points.to(law.dtype)))
        entropy, marginals = law.ordered.entropy(), law.ordered.marginals()
        assert log_probs.dtype == dtype
        slopes = [gradient(value, theta) for value in (entropy, marginals[..., 0].sum())]
        slopes += [gradients(log_probs, theta)]
        numbers.append([value.double() for value in (log_probs, entropy, marginals, *slopes)])
    for got, wanted in zip(*numbers, strict=True):
        assert got.isfinite().all()
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-4)


@each_case
def test_batches_and_expand(case: StructuredCase) -> None:
    """A batch of parameters equals a loop; an expanded distribution repeats itself."""
    thetas = torch.stack([case.theta, -0.5 * case.theta, 0.1 * case.theta])
    whole = law_of(case, thetas)
    assert whole.batch_shape == (3,)
    alone = [law_of(case, theta) for theta in thetas]
    index = alone[0].index(case.points)
    batch = index.unsqueeze(1).expand(-1, 3, -1)
    close(whole.log_prob(batch), torch.stack([law.log_prob(index) for law in alone], -1))
    close(whole.ordered.entropy(), torch.stack([law.ordered.entropy() for law in alone]))
    close(whole.ordered.marginals(), torch.stack([law.ordered.marginals() for law in alone]))
    wide = view(case.distribution(case.theta).expand([2, 3]))
    assert wide.batch_shape == (2, 3)
    many = index[:, None, None].expand(-1, 2, 3, -1)
    close(wide.log_prob(many), alone[0].log_prob(index)[:, None, None].expand(-1, 2, 3))
    close(wide.ordered.entropy(), alone[0].ordered.entropy().expand(2, 3))
    marginals = alone[0].ordered.marginals()
    close(wide.ordered.marginals(), marginals.expand(2, 3, *marginals.shape))
    x = Randomness(wide, generator=torch.Generator().manual_seed(0)).points(5)
    assert x.shape == (5, 2, 3, *case.points.shape[1:])
    assert wide.ordered.sample((7, 2)).shape == (7, 2, 2, 3, len(wide.ordered.cardinalities))
    assert wide.log_prob(wide.index(x)).isfinite().all()
    u = torch.rand(4, 2, 3, len(wide.ordered.cardinalities), dtype=torch.float64)
    assert torch.equal(wide.ordered.from_uniforms(u), Ordered.from_uniforms(wide.ordered, u))
    value = catlog.SCateR(2)(lambda x: x.double().reshape(len(x), 2, 3, -1).sum(-1), wide.ordered)
    assert value.shape == (2, 3)
