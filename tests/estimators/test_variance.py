"""What the papers say of variances, by enumeration; and what REBAR needs of f.

Means are judged by the battery, numbers by tests/frozen.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import catlog
from catlog import REBAR
from catlog.estimators import DoubleCV, MuProp
from catlog.testing import CASES, PARAMETER, Case, outcomes
from catlog.testing.cases import normals, seeded

TABLE = normals(3, 3, 3)  # one value per point
KINDS = ("bits", "integers", "one-hot", "masked", "mixed cardinalities")


def additive(case: Case) -> Callable[[Tensor], Tensor]:
    return lambda x: case.features(x) @ PARAMETER


def random(case: Case) -> Callable[[Tensor], Tensor]:
    def f(x: Tensor) -> Tensor:
        index = x.argmax(-1) if case.name == "one-hot" else x.long()
        return TABLE[index[..., 0], index[..., 1], index[..., 2] if index.shape[-1] > 2 else 0]

    return f


def variances(E: catlog.Estimator, case: Case, f: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the variance of every derivative over the outcomes of independent draws."""
    x, weight = outcomes(case, E.samples)
    theta = case.theta.expand(x.shape[1], *case.theta.shape).clone().requires_grad_()
    (gradient,) = torch.autograd.grad(E(f, case.distribution(theta), x=x).sum(), theta)
    weight = weight.view(-1, *[1] * case.theta.dim())
    return (weight * (gradient - (weight * gradient).sum(0)).square()).sum(0)


@pytest.mark.parametrize("name", KINDS)
def test_indecater_has_less_variance_than_reinforce(name: str) -> None:
    """For separate logits, it is the paper's corollary; none is left for an additive f."""
    case = CASES[name]
    for make in (additive, random):
        f = make(case)
        ours, theirs = (variances(E(1), case, f) for E in (catlog.IndeCateR, catlog.Reinforce))
        assert (ours <= theirs + 1e-14).all()
        assert ours.sum() < theirs.sum() - 1e-3
        assert make is random or ours.max() < 1e-28


@pytest.mark.parametrize("E", [MuProp(1), DoubleCV(2, alpha=1.0)], ids=repr)
def test_linear_functions_have_no_variance(E: catlog.Estimator) -> None:
    assert variances(E, CASES["one-hot"], additive(CASES["one-hot"])).sum() < 1e-12


class Once(torch.autograd.Function):
    """The sum of squares, with a first derivative alone."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.square().sum(-1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * gradient.unsqueeze(-1)


def test_rebar_with_a_frozen_temperature_needs_one_derivative_of_f() -> None:
    frozen, learning = REBAR(2, eta=0.3).double(), REBAR(2, eta=0.3).double()
    frozen.log_temperature.requires_grad_(False)
    q = CASES["bits"].distribution(CASES["bits"].theta)
    for E, f in ((frozen, Once.apply), (learning, lambda x: x.square().sum(-1))):
        E(f, q, generator=seeded()).backward()
    assert_close(frozen.eta.grad, learning.eta.grad)
    assert frozen.log_temperature.grad is None
