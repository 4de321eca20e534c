"""Second derivatives are unbiased, by enumeration, for three estimators; the others refuse them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import hessian, jacfwd, jacrev

import catlog
from catlog.core.estimator import TWICE
from catlog.testing import CASES, FUNCTIONS, PARAMETER, Case
from catlog.testing.enumeration import all_outcomes
from catlog.testing.settings import estimators, home, select

F = FUNCTIONS["sine"]


def weighted(E: catlog.Estimator, case: Case) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the mean estimate over all outcomes, as a function of theta and of f's parameter.

    The probabilities of the outcomes are constants, as the frequencies of a sampler are.
    """
    injected, weight = all_outcomes(E, case)

    def average(theta: Tensor, c: Tensor) -> Tensor:
        q = case.distribution(theta.expand(len(weight), *theta.shape))
        return (weight * E(lambda x: F(case.features(x), c), q, **injected)).sum()

    return average


def second(function: Callable[[Tensor, Tensor], Tensor], theta: Tensor, c: Tensor) -> list[Tensor]:
    """Return the derivative of the gradient along a direction, in theta and in c."""
    theta, c = theta.clone().requires_grad_(), c.clone().requires_grad_()
    first = torch.autograd.grad(function(theta, c), [theta, c], create_graph=True)
    along = sum(
        (slope * torch.linspace(1, 2, slope.numel(), dtype=slope.dtype).view_as(slope)).sum()
        for slope in first
    )
    return list(torch.autograd.grad(along, [theta, c]))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize(
    "E",
    [catlog.Exact(), catlog.Reinforce(1), catlog.Reinforce(2, baseline=0.7), catlog.RLOO(2)],
    ids=str,
)
def test_second_derivatives_are_unbiased(E: catlog.Estimator, case: Case) -> None:
    def by_hand(theta: Tensor, c: Tensor) -> Tensor:
        return (case.probabilities(theta) * F(case.features(case.points), c)).sum()

    expected = second(by_hand, case.theta, PARAMETER)
    got = second(weighted(E, case), case.theta, PARAMETER)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-11)


def test_which_estimators_have_them() -> None:
    """Those of GumbelSoftmax are the second derivatives of the relaxed function."""
    twice = {type(E).__name__ for E in select(twice=True).values()}
    assert twice == {"Exact", "Reinforce", "RLOO", "GumbelSoftmax"}


@pytest.mark.parametrize("E", estimators(twice=False))
def test_other_estimators_refuse(E: catlog.Estimator) -> None:
    """Also behind a loss that is not linear in the estimate."""
    case = home(E)
    theta = case.theta.clone().requires_grad_()
    torch.manual_seed(0)
    for outer in (lambda value: value, lambda value: (value + 3).log()):
        value = outer(E(case.function("sine"), case.distribution(theta)))
        (first,) = torch.autograd.grad(value, theta, create_graph=True)
        with pytest.raises(RuntimeError, match="use Reinforce, RLOO or"):
            torch.autograd.grad(first.sum(), theta)


TRANSFORMS = [
    hessian,
    *(
        lambda g, outer=outer, inner=inner: outer(inner(g))
        for outer, inner in ((jacrev, jacrev), (jacrev, jacfwd), (jacfwd, jacfwd))
    ),
]


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(
    "E", [catlog.IndeCateR(1), catlog.StraightThrough(1), catlog.estimators.LEG(1)], ids=str
)
def test_transforms_are_refused(E: catlog.Estimator, transform: Any) -> None:
    case = CASES["bits"]
    x = case.points[:1]
    with pytest.raises(RuntimeError) as error:
        transform(lambda theta: E(case.function("sine"), case.distribution(theta), x=x))(case.theta)
    assert str(error.value) == TWICE
