"""The biases that straight-through estimators promise, their short cuts for bits, and their draws.

Their formulas are judged by their numbers: tests/frozen.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Independent, OneHotCategorical
from torch.testing import assert_close

import catlog
from catlog import ReinMax, StraightThrough
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


# Bits, whose derivatives are in closed form


IN_CLOSED_FORM = [
    *(GappedStraightThrough(5, temperature=0.5, gap=gap) for gap in (0.0, 1.0, 5.0, None)),
    GappedStraightThrough(5, temperature=torch.tensor(0.7, dtype=torch.float64)),
    *(MinimumVarianceStraightThrough(5, bias_weight=weight) for weight in (0.0, 1.0, 100.0, 1e6)),
    *(GumbelRao(5, noise_samples=3, temperature=tau) for tau in (1.0, 0.4)),
    ReinMax(5),
]


def wave(z: Tensor) -> Tensor:
    return (z * torch.arange(1.0, 1 + z.shape[-1], dtype=z.dtype)).sum(-1).sin()


@pytest.mark.parametrize("E", IN_CLOSED_FORM, ids=str)
@pytest.mark.parametrize("form", ["logits", "probs"])
def test_bits_equal_one_hot_vectors_of_two_categories(E: catlog.Estimator, form: str) -> None:
    """Probable, improbable, certain and impossible bits have the derivatives of the tables.

    So has a learned temperature, which takes the path of the tables.
    """
    edges = torch.tensor([6.0, -6.0, torch.inf, -torch.inf], dtype=torch.float64)
    leaf = torch.cat([2 * normals(24), edges]).view(4, 7)
    leaf = leaf.clamp(-30, 30) if isinstance(E, GumbelRao) else leaf
    leaf.requires_grad_()
    p = leaf.sigmoid()
    x = (torch.rand(5, 4, 7, generator=seeded()) < p).double()
    noise = {}
    if isinstance(E, GumbelRao):
        noise = {"noise": torch.rand(3, 5, 4, 7, 2, dtype=torch.float64, generator=seeded(1))}
    tau = torch.tensor(float(getattr(E, "temperature", 1.0)), dtype=torch.float64)
    if form == "logits":
        is_certain = leaf.detach() == torch.inf
        zero = torch.zeros_like(leaf).masked_fill(is_certain, -torch.inf)
        one = leaf.masked_fill(is_certain, 0.0)
        law = Bernoulli(logits=leaf)
        vectors = OneHotCategorical(logits=torch.stack([zero, one], -1))
    else:
        law, vectors = Bernoulli(probs=p), OneHotCategorical(probs=torch.stack([1 - p, p], -1))
    pairs = torch.stack([1 - x, x], -1)
    values = [
        E(wave, Independent(law, 1), x=x, **noise),
        E(lambda z: wave(z[..., 1]), Independent(vectors, 1), x=pairs, **noise),
    ]
    if isinstance(E, GumbelRao | GappedStraightThrough):
        learned = replace(E, temperature=tau.requires_grad_())
        values.append(learned(wave, Independent(law, 1), x=x, **noise))
        assert torch.autograd.grad(values[-1].sum(), tau, retain_graph=True)[0] != 0
    results = [
        (value.detach(), torch.autograd.grad(value.sum(), leaf, retain_graph=True)[0])
        for value in values
    ]
    assert bool(results[0][1].isfinite().all())
    for other in results[1:]:
        assert_close(results[0], other, rtol=0, atol=1e-12)


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
