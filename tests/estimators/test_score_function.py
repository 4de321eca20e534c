"""Baselines of score-function estimators, and RLOO on an ELBO.

VIMCO's bound: tests/distributions/test_every_estimator.py.
"""

import pytest
import torch
from torch.testing import assert_close

from catlog import RLOO
from catlog.estimators import MovingAverageBaseline
from catlog.testing import CASES

BITS = CASES["bits"]


def test_vargrad_is_rloo_on_an_elbo() -> None:
    """VarGrad: half the sample variance of log q - log p, differentiated at fixed draws."""
    theta = BITS.theta.clone().requires_grad_()
    q, p = BITS.distribution(theta), BITS.distribution(BITS.theta.flip(0))
    x = q.sample((5,))
    vargrad = (q.log_prob(x) - p.log_prob(x)).var(0) / 2
    rloo = RLOO(5)(lambda x: q.log_prob(x).detach() - p.log_prob(x), q, x=x)
    gradients = [torch.autograd.grad(value, theta)[0] for value in (rloo, vargrad)]
    assert_close(*gradients, rtol=0, atol=1e-12)


def test_the_moving_average_weighs_earlier_calls_by_the_decay() -> None:
    baseline = MovingAverageBaseline(decay=0.8).double()
    for value in (4.0, 8.0):
        baseline(torch.tensor([value], dtype=torch.float64))
    wanted = (0.8 * 4.0 + 8.0) / 1.8
    assert baseline(torch.zeros(1)).item() == pytest.approx(wanted, rel=1e-12)
