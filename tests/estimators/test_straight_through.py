"""Straight-through estimators: learned temperatures, noise in parts, and extreme weights.

Their formulas are judged by their numbers: tests/frozen.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.testing import assert_close

from catlog import GumbelSoftmax, ReinMax
from catlog.estimators import GappedStraightThrough, GumbelRao, MinimumVarianceStraightThrough
from catlog.testing.cases import normals, seeded
from support.gradients import assert_same
from support.laws import KINDS, bits, one_hots


def f(x: Tensor) -> Tensor:
    return x.flatten(2).cumsum(-1).sin().sum(-1)


@pytest.mark.parametrize("make", [GumbelRao, GappedStraightThrough, GumbelSoftmax, ReinMax])
@pytest.mark.parametrize("law", [bits, one_hots])
def test_temperatures_are_learned(make: Any, law: Callable[[Tensor], Distribution]) -> None:
    """Also for bits, whose derivatives have a short cut."""
    theta = normals(20, *((3,) if law is bits else (3, 3))).requires_grad_()
    tau = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    gradients = []
    for temperature in (tau, 0.7):
        E = make(2, temperature=temperature)
        value = E(f, law(theta), generator=seeded())
        gradients.append(torch.autograd.grad(value.sum(), theta, retain_graph=True)[0])
        if temperature is tau:
            assert torch.autograd.grad(value.sum(), tau)[0] != 0
    assert_close(*gradients, rtol=0, atol=1e-12)


def test_gumbel_rao_of_many_numbers_is_that_of_few() -> None:
    """Sums over many uniforms are taken row by row."""
    theta = normals(100, 30).requires_grad_()
    noise = torch.rand(2, 1, 100, 30, 2, dtype=torch.float64, generator=seeded(2))
    x = (torch.rand(1, 100, 30, generator=seeded(1)) < 0.5).double()

    def value(part: slice) -> Tensor:
        E, q = GumbelRao(noise_samples=2), bits(theta[part])
        return E(lambda x: x.square().mean(-1), q, x=x[:, part], noise=noise[:, :, part])

    halves = torch.cat([value(slice(0, 50)), value(slice(50, 100))])
    assert_same(value(slice(0, 100)), halves, theta, rtol=0, atol=1e-15)


@pytest.mark.parametrize("kind", ["bits", "one-hot"])
@pytest.mark.parametrize("weight", [0.0, 1e4, 1e12, 1e300])
def test_minimum_variance_in_float32_is_that_of_float64(weight: float, kind: str) -> None:
    """Also for peaked distributions and for weights that float32 cannot hold."""
    E = MinimumVarianceStraightThrough(20, bias_weight=weight)
    for scale in (0.0, 1.0, 30.0):
        logits = (scale * normals(20, 2, 4)).float()
        x = KINDS[kind](logits).sample((20,))
        gradients = []
        for dtype in (torch.float64, torch.float32):
            theta = logits.to(dtype).requires_grad_()
            value = E(f, KINDS[kind](theta), x=x.to(dtype))
            gradients.append(torch.autograd.grad(value.sum(), theta)[0].double())
        error = (gradients[1] - gradients[0]).abs().max() / gradients[0].abs().max()
        assert error < 2e-5  # 170 roundings
