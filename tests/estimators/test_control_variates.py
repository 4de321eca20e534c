"""Learned control variates learn to lower the variance.

Their means are judged by the battery, and REBAR and RELAX on equal noise by tests/peers.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from catlog import REBAR
from catlog.estimators import NVIL, RELAX, RODEO, DoubleCV, MuProp
from catlog.testing import CASES, FUNCTIONS, PARAMETER, Case, outcomes
from catlog.testing.cases import seeded
from support.enumerated import (
    MASKED_ONE_HOT,
    EventNetwork,
    gradients,
    gradients_at,
    network,
    variances,
)

BITS, ONE_HOT = CASES["bits"], CASES["one-hot"]
LEARNERS: dict[str, tuple[Callable[[], nn.Module], Case]] = {
    "NVIL": (lambda: NVIL(2), BITS),
    "NVIL, network": (lambda: NVIL(1, network=network(6)), ONE_HOT),
    "DoubleCV": (lambda: DoubleCV(2, alpha=0.3), BITS),
    "DoubleCV, categories": (lambda: DoubleCV(2, alpha=-0.2), ONE_HOT),
    "DoubleCV, masked": (lambda: DoubleCV(2, alpha=0.3), MASKED_ONE_HOT),
    "RODEO": (lambda: RODEO(2, alpha=0.2, beta=-0.3), BITS),
    "RODEO, network": (lambda: RODEO(3, alpha=0.5, beta=0.4, network=network(2, 2)), BITS),
    "REBAR": (lambda: REBAR(1, eta=0.4, temperature=0.8), ONE_HOT),
    "RELAX": (lambda: RELAX(1, network=EventNetwork(3, 1), temperature=0.7), BITS),
}
RELAXED = ("REBAR", "RELAX")


@pytest.mark.parametrize("name", LEARNERS)
def test_parameters_get_the_gradient_of_the_variance(name: str) -> None:
    """Whatever the sign of the loss; by differences, over all outcomes with one noise for each.

    A copy that does not learn has the same gradients in theta and in f's parameter.
    """
    make, case = LEARNERS[name]
    E, f = make().double(), case.function("sine")
    x, weight = outcomes(case, E.samples)
    noise = torch.rand(1, x.shape[1], *case.theta.shape[:1], 2 + (case is ONE_HOT)).double()
    injected = {"noise": noise} if name in RELAXED else {}
    parameters = list(E.parameters())
    directions = [torch.linspace(-1, 1.2, p.numel()).double().view_as(p) for p in parameters]

    def second_moment(step: float) -> Tensor:
        with torch.no_grad():
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter += step * direction
        of_outcomes = gradients_at(E, case, f, x, **injected).flatten(1).square().sum(-1)
        return (weight * of_outcomes).sum()

    first, last = second_moment(-1e-5), second_moment(2e-5)
    second_moment(-1e-5)
    results = []
    for scale in (1.0, -3.0, None):
        E.requires_grad_(scale is not None)
        theta = case.theta.expand(x.shape[1], *case.theta.shape).clone().requires_grad_()
        c = PARAMETER.clone().requires_grad_()
        value = E(
            lambda x, c=c: FUNCTIONS["sine"](case.features(x), c),
            case.distribution(theta),
            x=x,
            **injected,
        )
        # The weights are squared on the way back, which gives the outcomes' probabilities.
        ((scale or 1.0) * (weight.sqrt() * value).sum()).backward()
        results.append([leaf.grad / (scale or 1.0) for leaf in (theta, c)])
        if scale is not None:
            slopes = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
            got = sum((a * b).sum() for a, b in zip(slopes, directions, strict=True))
            assert_close(got, scale**2 * (last - first) / 2e-5, rtol=1e-5, atol=1e-8)
            assert abs(got) > 1e-5
            E.zero_grad()
    assert_close(results[0], results[2], rtol=0, atol=1e-14)
    assert_close(results[1], results[2], rtol=0, atol=1e-13)


def test_linear_functions_have_no_variance() -> None:
    for E in (MuProp(1), DoubleCV(2, alpha=1.0)):
        linear = gradients(E, ONE_HOT, lambda x: x.flatten(-2) @ PARAMETER)
        assert variances(*linear).sum() < 1e-12


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
    for E, f in ((frozen, Once.apply), (learning, lambda x: x.square().sum(-1))):
        E(f, BITS.distribution(BITS.theta), generator=seeded()).backward()
    assert_close(frozen.eta.grad, learning.eta.grad)
    assert frozen.log_temperature.grad is None
