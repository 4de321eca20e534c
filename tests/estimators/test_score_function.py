"""Baselines of score-function estimators, and VIMCO's bound."""

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from catlog import RLOO
from catlog.estimators import NVIL, VIMCO, MovingAverageBaseline
from catlog.testing import CASES, FUNCTIONS, PARAMETER, Case, outcomes
from support.gradients import assert_same
from support.more_cases import MORE_CATEGORIES

BITS, ONE_HOT = CASES["bits"], CASES["one-hot"]


def test_vargrad_is_rloo_on_an_elbo() -> None:
    """VarGrad: half the sample variance of log q - log p, differentiated at fixed draws."""
    theta = BITS.theta.clone().requires_grad_()
    q, p = BITS.distribution(theta), BITS.distribution(BITS.theta.flip(0))
    x = q.sample((5,))
    vargrad = (q.log_prob(x) - p.log_prob(x)).var(0) / 2
    rloo = RLOO(5)(lambda x: q.log_prob(x).detach() - p.log_prob(x), q, x=x)
    gradients = [torch.autograd.grad(value, theta)[0] for value in (rloo, vargrad)]
    assert_close(*gradients, rtol=0, atol=1e-12)


def test_nvil_uses_the_context() -> None:
    """A baseline that knows the level of every expectation leaves no noise."""
    level = torch.tensor([[-5.0], [0.0], [5.0]], dtype=torch.float64)
    identity = nn.Linear(1, 1).double()
    nn.init.ones_(identity.weight)
    nn.init.zeros_(identity.bias)
    theta = BITS.theta.expand(3, 3).clone().requires_grad_()
    E, q = NVIL(1, network=identity), BITS.distribution(theta)
    value = E(lambda x: x[..., 0] * 0 + level.squeeze(-1), q, context=level)
    assert torch.autograd.grad(value.sum(), theta)[0].abs().max() < 1e-12


def test_the_moving_average_weighs_earlier_calls_by_the_decay() -> None:
    baseline = MovingAverageBaseline(decay=0.8).double()
    for value in (4.0, 8.0):
        baseline(torch.tensor([value], dtype=torch.float64))
    wanted = (0.8 * 4.0 + 8.0) / 1.8
    assert baseline(torch.zeros(1)).item() == pytest.approx(wanted, rel=1e-12)


ALL_CASES = CASES | MORE_CATEGORIES


@pytest.mark.parametrize("case", ALL_CASES.values(), ids=ALL_CASES.keys())
@pytest.mark.parametrize("n", [2, 3])
def test_vimco_is_unbiased_for_its_bound(n: int, case: Case) -> None:
    """By enumeration: value and gradients of E[log mean w], where w depends on q as well."""
    x, weight = outcomes(case, n)
    theta, c = case.theta.clone().requires_grad_(), PARAMETER.clone().requires_grad_()
    q = case.distribution(theta.expand(len(weight), *theta.shape))

    def log_w(x: Tensor) -> Tensor:
        return FUNCTIONS["sine"](case.features(x), c) - q.log_prob(x)

    bound = log_w(x).exp().mean(0).log()
    exact = (q.log_prob(x).sum(0).exp() * bound).sum()
    assert_same((weight * VIMCO(n)(log_w, q, x=x)).sum(), exact, [theta, c], rtol=0, atol=1e-12)
