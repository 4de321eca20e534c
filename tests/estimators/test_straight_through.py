"""The biases that straight-through estimators promise, learned temperatures, and their draws.

Their formulas are judged by their numbers: tests/frozen.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.testing import assert_close

import catlog
from catlog import GumbelSoftmax, ReinMax, StraightThrough
from catlog.estimators import (
    DARN,
    DecoupledStraightThrough,
    GappedStraightThrough,
    GumbelRao,
    MinimumVarianceStraightThrough,
    ReDGE,
)
from catlog.testing import CASES, PARAMETER, Case, expectation, expected, z_limit
from catlog.testing.cases import FeatureFunction, normals, seeded
from support.gradients import assert_same
from support.laws import bits, one_hots

K = 4
THETA = normals(K)
P = THETA.softmax(-1)
LIMIT = z_limit(K)


# Biases, by enumeration


def quadratic(z: Tensor, c: Tensor) -> Tensor:
    return c[0] * z.square().sum(-1) + ((z @ normals(6, 6, seed=2)) * z).sum(-1)


def multilinear(z: Tensor, c: Tensor) -> Tensor:
    """Linear in each variable given the others."""
    return z[..., 0] * z[..., 4] - c[1] * z[..., 1] * z[..., 5] + (z * c).sum(-1)


def quartic(z: Tensor, c: Tensor) -> Tensor:
    return quadratic(z, c) ** 2


EXACT: list[tuple[catlog.Estimator, FeatureFunction, bool]] = [
    (StraightThrough(), multilinear, True),
    (StraightThrough(), quadratic, False),
    (ReinMax(), quadratic, True),
    (ReinMax(2), quadratic, True),
    (ReinMax(), quartic, False),
    (ReinMax(temperature=1.5), quadratic, False),
    (DARN(order=1), multilinear, True),
    (DARN(order=1), quadratic, False),
    (DARN(order=2), quadratic, True),
    (DARN(order=2), quartic, False),
    (MinimumVarianceStraightThrough(bias_weight=1.0), multilinear, True),
    (MinimumVarianceStraightThrough(bias_weight=1.0), quadratic, False),
    *((MinimumVarianceStraightThrough(bias_weight=w), quadratic, True) for w in (1e12, 1e300)),
]


@pytest.mark.parametrize("kind", ["bits", "one-hot"])
@pytest.mark.parametrize(("E", "f", "is_exact"), EXACT)
def test_exactness(E: catlog.Estimator, f: FeatureFunction, is_exact: bool, kind: str) -> None:
    """Value and the gradient in f's parameter are always exact in expectation."""
    if kind not in E.supports:
        return
    features = (lambda x: torch.cat([x, x], -1)) if kind == "bits" else (lambda x: x.flatten(-2))
    case: Case = replace(CASES[kind], features=features)
    got, exact = expectation(E, case, f, PARAMETER), expected(case, f, PARAMETER)
    assert_close((got[0], got[2]), (exact[0], exact[2]), rtol=0, atol=1e-12)
    bias = float((got[1] - exact[1]).norm() / exact[1].norm())
    assert bias < 1e-9 if is_exact else bias > 0.01


@pytest.mark.parametrize("make", [GumbelRao, GappedStraightThrough, GumbelSoftmax, ReinMax])
@pytest.mark.parametrize("law", [bits, one_hots])
def test_temperatures_are_learned(make: Any, law: Callable[[Tensor], Distribution]) -> None:
    """Also for bits, whose derivatives have a short cut."""
    theta = normals(20, *((3,) if law is bits else (3, 3))).requires_grad_()
    tau = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    gradients = []
    for temperature in (tau, 0.7):
        E = make(2, temperature=temperature)
        value = E(lambda x: x.flatten(2).cumsum(-1).sin().sum(-1), law(theta), generator=seeded())
        gradients.append(torch.autograd.grad(value.sum(), theta, retain_graph=True)[0])
        if temperature is tau:
            assert torch.autograd.grad(value.sum(), tau)[0] != 0
    assert_close(*gradients, rtol=0, atol=1e-12)


def test_noise_of_gumbel_rao_in_parts_is_that_of_one_call() -> None:
    theta = normals(300, 200).requires_grad_()
    x = (torch.rand(5, 300, 200, generator=seeded(1)) < 0.5).double()
    noise = torch.rand(2, 5, 300, 200, 2, dtype=torch.float64, generator=seeded(2))
    whole, parts = (
        GumbelRao(5, noise_samples=2)(lambda x: x.square().mean(-1), bits(theta), x=x, **randomness)
        for randomness in ({"noise": noise}, {"generator": seeded(2)})
    )
    assert_same(parts, whole, theta, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["bits", "one-hot"])
@pytest.mark.parametrize("weight", [0.0, 1e4, 1e12, 1e300])
def test_minimum_variance_in_float32_is_that_of_float64(weight: float, kind: str) -> None:
    """Also for peaked distributions and for weights that float32 cannot hold."""
    E = MinimumVarianceStraightThrough(20, bias_weight=weight)
    law = bits if kind == "bits" else one_hots
    for scale in (0.0, 1.0, 30.0):
        logits = (scale * normals(20, *((4,) if kind == "bits" else (2, 4)))).float()
        x = law(logits).sample((20,))
        gradients = []
        for dtype in (torch.float64, torch.float32):
            theta = logits.to(dtype).requires_grad_()
            value = E(lambda x: x.flatten(2).cumsum(-1).sin().sum(-1), law(theta), x=x.to(dtype))
            gradients.append(torch.autograd.grad(value.sum(), theta)[0].double())
        error = (gradients[1] - gradients[0]).abs().max() / gradients[0].abs().max()
        assert error < 2e-5  # 170 roundings


# Estimators that draw from probabilities of their own


def frequencies(E: catlog.Estimator) -> Tensor:
    return catlog.sample(THETA.expand(100_000, K), E, generator=seeded()).mean(0)


def test_decoupled_draws_at_the_forward_temperature() -> None:
    mean = frequencies(DecoupledStraightThrough(forward_temperature=0.5))
    for tau, differs in ((0.5, False), (1.0, True)):
        p = (THETA / tau).softmax(-1)
        score = ((mean - p).abs() / (p * (1 - p) / 100_000).sqrt()).max()
        assert score > 3 * LIMIT if differs else score < LIMIT


def test_redge_draws_almost_from_q() -> None:
    errors = [
        float((frequencies(E) - P).abs().max())
        for E in (ReDGE(steps=1), ReDGE(), ReDGE(steps=30), ReDGE(steps=2, last_time=0.1))
    ]
    assert errors[0] < float(LIMIT * (P * (1 - P) / 100_000).sqrt().max())
    assert errors[1] < 0.05
    assert errors[2] < errors[3]
