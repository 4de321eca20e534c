"""Every distribution of dependent variables, alone and as copies, against its definition.

| what | where |
|---|---|
| probabilities sum to one, `log_prob`, impossible points | here, by listing all points |
| entropy and marginals, with their gradients | here |
| samples | here, by chi-square |
| logits of 80 and -80 | here, and in test_sequences.py |
| batches and `expand` | here |
| masks, k = 0, k = 1, k = d | cases of tests/structured_cases.py |
| gradient of every estimator | test_every_estimator.py |

Numbers are compared in float64 at 1e-12.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from catlog.distributions import Ordered, mixture
from catlog.distributions.conditionals import Conditionals, view
from catlog.distributions.copies import Copies
from catlog.sampling.draw import draw
from structured_cases import STRUCTURED_CASES, StructuredCase, normals

FALSE_ALARMS = 1e-9  # of one chi-square test; there are two for each case, so 2e-7 in all
DRAWS = 20_000
each_case = pytest.mark.parametrize("case", STRUCTURED_CASES.values(), ids=STRUCTURED_CASES.keys())


def law_of(case: StructuredCase, theta: Tensor) -> Conditionals:
    law = view(case.distribution(theta))
    assert isinstance(law, Conditionals)
    return law


def close(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-13, atol=1e-12)


def grid(q: Ordered) -> Tensor:
    """Return all vectors of category numbers, possible or not."""
    sizes = [torch.arange(size) for size in q.cardinalities]
    return torch.cartesian_prod(*sizes).reshape(-1, len(sizes))


def gradient(value: Tensor, theta: Tensor) -> Tensor:
    """Return the gradient; zeros where the value does not depend on theta."""
    if not value.requires_grad:
        return torch.zeros_like(theta)
    (result,) = torch.autograd.grad(value, theta, retain_graph=True, allow_unused=True)
    return torch.zeros_like(theta) if result is None else result


@each_case
def test_log_prob(case: StructuredCase) -> None:
    """The definition's, with its gradient; every other point is impossible."""
    theta = case.theta.clone().requires_grad_()
    law, probs = law_of(case, theta), case.probabilities(theta)
    index = law.index(case.points)
    assert torch.equal(law.point(index), case.points)
    log_probs = law.log_prob(index)
    close(log_probs, probs.log())
    close(probs.sum(), torch.ones_like(probs.sum()))
    everywhere = law.log_prob(grid(law.q))
    assert not everywhere.isnan().any()
    assert int((everywhere > -torch.inf).sum()) == len(case.points)
    close(everywhere.exp().sum(), torch.ones_like(probs.sum()))
    close(law.q.log_prob(law.q.enumerate_support()).exp().sum(), torch.ones_like(probs.sum()))
    for got, wanted in zip(log_probs, probs.log(), strict=True):
        close(gradient(got, theta), gradient(wanted, theta))


@each_case
def test_entropy_and_marginals(case: StructuredCase) -> None:
    """The definition's, with their gradients."""
    theta = case.theta.clone().requires_grad_()
    law, probs = law_of(case, theta), case.probabilities(theta)
    marginals = (one_hot(law.index(case.points), law.k) * probs[:, None, None]).sum(0)
    weights = normals(*marginals.shape, seed=8)
    pairs = [
        (law.q.entropy(), -(probs * probs.log()).sum()),
        (law.q.marginals(), marginals),
    ]
    for got, wanted in pairs:
        close(got, wanted)
        scale = weights if got.dim() else 1.0
        close(gradient((scale * got).sum(), theta), gradient((scale * wanted).sum(), theta))


def p_value(x: Tensor, points: Tensor, probs: Tensor) -> float:
    """Return the p-value of Pearson's chi-square test; rare points are one class."""
    is_equal = (x.unsqueeze(1) == points).reshape(len(x), len(points), -1).all(-1)
    assert is_equal.any(1).all(), "an impossible point was drawn"
    counts = is_equal.sum(0).double()
    is_rare = probs * len(x) < 5
    counts = torch.cat([counts[~is_rare], counts[is_rare].sum(0, keepdim=True)])
    expected = torch.cat([probs[~is_rare], probs[is_rare].sum(0, keepdim=True)]) * len(x)
    counts, expected = counts[expected > 0], expected[expected > 0]
    statistic = ((counts - expected).square() / expected).sum()
    half = torch.tensor((len(counts) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(half, statistic / 2)) if len(counts) > 1 else 1.0


@each_case
def test_samples_by_chi_square(case: StructuredCase) -> None:
    """An estimator's draws, and ``sample`` of the distribution that the user has."""
    q, probs = case.distribution(case.theta), case.probabilities(case.theta)
    x = draw(view(q), DRAWS, generator=torch.Generator().manual_seed(0))
    assert p_value(x, case.points, probs) > FALSE_ALARMS
    if (
        getattr(q, "total_count", 1) == 0
        or getattr(getattr(q, "base_dist", None), "total_count", 1) == 0
    ):
        return  # torch cannot sample a multinomial of no draws
    torch.manual_seed(0)
    assert p_value(q.sample((DRAWS,)), case.points, probs) > FALSE_ALARMS


def test_the_chi_square_test_has_power() -> None:
    """It tells the draws of a chain from those of a chain with slightly other parameters."""
    case = STRUCTURED_CASES["copies of short chain"]
    x = case.distribution(case.theta * 0.85).sample((DRAWS,))
    assert p_value(x, case.points, case.probabilities(case.theta)) < FALSE_ALARMS


def extreme(case: StructuredCase, dtype: torch.dtype = torch.float64) -> StructuredCase:
    """Return the case with parameters of 80 times numbers in [-1, 1], half of which are +-1."""
    return replace(case, theta=(80 * (1.5 * case.theta).clamp(-1, 1)).to(dtype))


# Given by probabilities, those near 1 - exp(-80) are 1 in float64, those of exp(-160) 0 in float32.
BY_LOGITS = [name for name in STRUCTURED_CASES if "by probabilities" not in name]
EXACT = [name for name in STRUCTURED_CASES if "bits by probabilities" not in name]


@pytest.mark.parametrize("name", EXACT)
def test_extreme_logits(name: str) -> None:
    """Log-probabilities, entropy and marginals stay exact, and gradients finite and exact."""
    case = extreme(STRUCTURED_CASES[name])
    theta = case.theta.clone().requires_grad_()
    law, probs = law_of(case, theta), case.probabilities(theta)
    log_probs = law.log_prob(law.index(case.points))
    is_normal = probs.detach() > 1e-290  # else the definition underflows
    close(log_probs[is_normal], probs[is_normal].log())
    assert log_probs.isfinite().all()
    close(log_probs.exp().sum(), torch.ones_like(probs.sum()))
    entropy = -torch.special.xlogy(probs, probs).sum()
    close(law.q.entropy(), entropy)
    marginals = (one_hot(law.index(case.points), law.k) * probs[:, None, None]).sum(0)
    close(law.q.marginals(), marginals)
    for got, wanted in zip(log_probs, probs, strict=True):
        result = gradient(got, theta)
        assert result.isfinite().all()
        if wanted > 1e-290:
            close(result, gradient(wanted.log(), theta))
    for value in (law.q.entropy(), law.q.marginals()[..., 0].sum()):
        assert gradient(value, theta).isfinite().all()


@pytest.mark.parametrize("name", BY_LOGITS)
def test_extreme_logits_in_float32(name: str) -> None:
    """Values and gradients are finite, and probabilities those of float64 to 2e-5."""
    case = extreme(STRUCTURED_CASES[name], torch.float32)
    theta = case.theta.clone().requires_grad_()
    law = law_of(case, theta)
    log_probs = law.log_prob(law.index(case.points.to(law.dtype)))
    exact = law_of(case, case.theta.double())
    wanted = exact.log_prob(exact.index(case.points))
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs.double(), wanted, rtol=1e-5, atol=1e-4)
    for value in (*log_probs, law.q.entropy(), law.q.marginals()[..., 0].sum()):
        assert value.isfinite()
        assert gradient(value, theta).isfinite().all()


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
    close(whole.q.entropy(), torch.stack([law.q.entropy() for law in alone]))
    close(whole.q.marginals(), torch.stack([law.q.marginals() for law in alone]))
    wide = view(case.distribution(case.theta).expand([2, 3]))
    assert wide.batch_shape == (2, 3)
    many = index[:, None, None].expand(-1, 2, 3, -1)
    close(wide.log_prob(many), alone[0].log_prob(index)[:, None, None].expand(-1, 2, 3))
    close(wide.q.entropy(), alone[0].q.entropy().expand(2, 3))
    marginals = alone[0].q.marginals()
    close(wide.q.marginals(), marginals.expand(2, 3, *marginals.shape))
    x = draw(wide, 5, generator=torch.Generator().manual_seed(0))
    assert x.shape == (5, 2, 3, *case.points.shape[1:])
    assert wide.log_prob(wide.index(x)).isfinite().all()


# Planted bugs


def test_a_component_that_underflows_is_not_impossible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Possible is what has a finite log-probability, not what has a positive probability."""
    real = mixture._finite

    def by_probabilities(log_probs: Tensor) -> Tensor:
        return real(log_probs.masked_fill(log_probs.exp() == 0, -torch.inf))

    monkeypatch.setattr(mixture, "_finite", by_probabilities)
    with pytest.raises(AssertionError):
        test_extreme_logits_in_float32("masked mixture")


def test_wrong_conditionals_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The conditionals of the second copy, in the place of the first's."""
    real = Copies._together
    monkeypatch.setattr(Copies, "_together", lambda *arguments: real(*arguments).flip(-3))
    for name in STRUCTURED_CASES:
        case = STRUCTURED_CASES[name]
        if name.startswith("copies") and len(case.points) > 4:
            with pytest.raises(AssertionError):
                test_log_prob(case)
            with pytest.raises(AssertionError):
                test_samples_by_chi_square(case)
