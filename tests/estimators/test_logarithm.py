"""The logarithm of an expectation: exact where E is, finite at zero, and with less bias."""

from math import log
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution

import catlog
from catlog import log_expectation
from catlog.functions import OfSum
from catlog.logarithm import log_of_mean
from catlog.testing import CASES, FUNCTIONS, PARAMETER, Case, expected, outcomes
from catlog.testing.cases import FeatureFunction, seeded
from support.gradients import assert_same
from support.laws import bits

SEEDED = [catlog.RLOO(3), catlog.IndeCateR(2), catlog.Reinforce(2, baseline=0.5)]


class Replayed(catlog.Estimator[catlog.Factors]):
    """An estimator that takes its draws from a list, one entry per call."""

    E: Any
    draws: Any

    def __call__(self, f: Any, q: Distribution, **options: Any) -> Tensor:
        return self.E(f, q, x=self.draws.pop(0), **options)


def bias(E: catlog.Estimator, case: Case, f: FeatureFunction, repeats: int) -> tuple[float, float]:
    """Return the size of the bias of value and gradient, over all outcomes of all calls."""
    x, weight = outcomes(case, E.samples)
    choice = torch.cartesian_prod(*[torch.arange(len(weight))] * repeats).reshape(-1, repeats)
    theta = case.theta.clone().requires_grad_()
    q = case.distribution(theta.expand(len(choice), *theta.shape))
    replayed = Replayed(E, [x[:, choice[:, i]] for i in range(repeats)])
    value = log_expectation(replayed, lambda x: f(case.features(x), PARAMETER), q, repeats=repeats)
    mean = weight[choice].prod(-1) @ value
    (gradient,) = torch.autograd.grad(mean, theta)
    exact, exact_gradient, _ = expected(case, f, PARAMETER)
    return (
        float((mean.detach() - exact.log()).abs()),
        float((gradient - exact_gradient / exact).norm()),
    )


def test_the_floor_is_added_to_a_known_logarithm() -> None:
    """Also where it is as large as the mean, and where the mean is zero."""
    logits = torch.tensor([[0.5, -1.0, 0.3], [1.0, 0.0, 2.0]], dtype=torch.float64)
    theta = logits.clone().requires_grad_()
    f = OfSum(lambda s: torch.tensor([1.0, 0.0], dtype=torch.float64) * (s == 2), categories=2)
    q = bits(theta)
    mean = catlog.Exact()(lambda x: f(x), q)
    value = log_expectation(catlog.Exact(), f, q, floor=0.3)
    assert_same(value, (mean + 0.3).log(), theta, rtol=0, atol=1e-12)
    assert float(value[1].detach()) == pytest.approx(log(0.3))


@pytest.mark.parametrize("E", [*SEEDED, catlog.Exact()], ids=repr)
def test_one_call_or_equal_ones_give_the_plain_logarithm(E: catlog.Estimator) -> None:
    case, repeats = CASES["bits"], 1 + E.is_exact
    theta = case.theta.clone().requires_grad_()
    f, q = case.function("network"), case.distribution(theta)  # an exponential
    value = log_expectation(E, f, q, repeats=repeats, generator=seeded(1))
    plain = E(f, q, generator=seeded(1)).log()
    assert_same(value, plain, theta, rtol=0, atol=1e-14)


@pytest.mark.parametrize("E", [catlog.IndeCateR(1), catlog.RLOO(2)], ids=repr)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_correction_cancels_the_leading_bias(E: catlog.Estimator, case: Case) -> None:
    """f = 1 + e h has a bias of order e^2 in value and gradient; that of the correction is e^3."""

    def f(z: Tensor, c: Tensor) -> Tensor:
        return 1 + 1e-3 * FUNCTIONS["sine"](z, c)

    plain = bias(E, case, f, repeats=1)
    corrected = bias(E, case, f, repeats=2)
    for before, after in zip(plain, corrected, strict=True):
        assert after <= 0.02 * before + 1e-14  # "one integer" has no bias with IndeCateR
    if isinstance(E, catlog.RLOO):
        assert min(plain) > 1e-9


@pytest.mark.parametrize(("repeats", "dtype"), [(1, torch.float32), (3, torch.float64)])
@pytest.mark.parametrize("E", SEEDED, ids=repr)
def test_zero_at_all_draws_is_finite(E: catlog.Estimator, repeats: int, dtype: torch.dtype) -> None:
    """The floor's value, no gradient, and no harm to the other element of the batch."""
    logits = torch.zeros(2, 3, dtype=dtype, requires_grad=True)
    c = torch.ones(2, dtype=dtype, requires_grad=True)

    def f(x: Tensor) -> Tensor:
        return torch.tensor([0.0, 1.0], dtype=dtype) * c * (1 + x.sum(-1))

    assert torch.autograd.grad(E(f, bits(logits))[0].log(), c)[0].isnan().any()
    torch.manual_seed(0)  # some draws differ, so the other element has a gradient
    value = log_expectation(E, f, bits(logits), repeats=repeats)
    assert value.dtype == dtype
    assert value[0] == torch.tensor(torch.finfo(dtype).tiny, dtype=dtype).log()
    torch.manual_seed(0)
    floored = log_expectation(E, f, bits(logits), repeats=repeats, floor=1e-6)
    assert floored[0].item() == pytest.approx(log(1e-6), rel=1e-6)
    for result in (value, floored):
        in_logits, in_c = torch.autograd.grad(result.sum(), [logits, c])
        assert (in_logits[0] == 0).all()
        assert in_c[0] == 0
        assert in_logits.isfinite().all()
        assert in_logits[1].norm() > 0
        assert 0 < in_c[1] < 2


def test_small_values_do_not_underflow() -> None:
    """The square of 1e-30 is 0 in float32; a scale of f shifts the logarithm only."""
    logits = torch.zeros(3, requires_grad=True)

    def run(scale: float) -> tuple[Tensor, Tensor]:
        f, q = lambda x: scale * (1 + x.sum(-1)), bits(logits)
        value = log_expectation(catlog.RLOO(2), f, q, repeats=3, generator=seeded(1))
        return value.detach() - log(scale), torch.autograd.grad(value, logits)[0]

    torch.testing.assert_close(run(1e-30), run(1.0), rtol=1e-4, atol=1e-5)


def test_the_correction_is_at_most_one_half() -> None:
    """And a negative mean has a finite logarithm, without a gradient."""
    one_hit = torch.tensor([0.0, 0.0, 0.3, 0.0], dtype=torch.float64)
    assert (log_of_mean(one_hit) - one_hit.mean().log()).item() == pytest.approx(0.5)
    estimates = torch.tensor([[1.0, -1.0], [-0.999, 0.5]], requires_grad=True)
    value = log_of_mean(estimates, 1e-3)
    assert value.tolist() == pytest.approx([log(1.5e-3) + 0.5, log(1e-3)], rel=1e-3)
    (gradient,) = torch.autograd.grad(value.sum(), estimates)
    assert gradient.isfinite().all()
    assert (gradient[:, 1] == 0).all()


@pytest.mark.parametrize("E", [catlog.Exact(), *SEEDED], ids=repr)
def test_negative_function_is_refused(E: catlog.Estimator) -> None:
    """Its value would be the floor, without a gradient, at every call."""
    q = bits(torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"`f` must be at least 0, but it is -\d"):
        log_expectation(E, lambda x: -1 - x.sum(-1), q)
    q = bits(torch.zeros(2, 3), validate_args=False)
    assert log_expectation(E, lambda x: -1 - x.sum(-1), q, floor=1.0).tolist() == [0, 0]


def test_negative_estimates_of_a_positive_function_pass() -> None:
    """An estimator with a critic returns them; the look at f leaves the global generator alone."""

    class Critic(catlog.Exact):
        def __call__(self, *args: Any, **options: Any) -> Tensor:
            return super().__call__(*args, **options) - 1.0

    state = torch.get_rng_state()
    value = log_expectation(Critic(), lambda x: x.prod(-1), bits(torch.zeros(3)), floor=1e-3)
    assert value.item() == pytest.approx(log(1e-3))
    assert torch.get_rng_state().equal(state)
