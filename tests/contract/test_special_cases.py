"""Estimators that are special cases of others: the same gradients at the same draws."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import catlog
from catlog import RLOO, IndeCateR, Reinforce, ReinMax, SlopeCateR, StraightThrough
from catlog.estimators import (
    BBVI,
    DARN,
    RELAX,
    RODEO,
    SIMPLE,
    DecoupledStraightThrough,
    DoubleCV,
    GumbelRao,
    MinimumVarianceStraightThrough,
    ReDGE,
    ReinMaxCV,
)
from catlog.testing.cases import normals, seeded
from support.gradients import assert_same
from support.laws import bits, one_hots


class Second(nn.Module):
    """The network of RODEO that stands for none: the second of each pair."""

    def forward(self, pairs: Tensor) -> Tensor:
        return pairs[..., 1:].expand(pairs.shape)


def wave(x: Tensor) -> Tensor:
    flat = x.flatten(2)
    curved = flat @ torch.linspace(-1, 2, flat.shape[-1], dtype=torch.float64)
    return curved.sin() + 3 * flat[..., 0] * flat[..., 1]


def quadratic(x: Tensor) -> Tensor:
    flat = x.flatten(2)
    return ((flat @ normals(flat.shape[-1], flat.shape[-1])) * flat).sum(-1)


OF_RODEO = {"alpha": 0.3, "beta": -0.4}
SAME: list[tuple[catlog.Estimator, catlog.Estimator]] = [
    (BBVI(2), RLOO(2)),
    (DoubleCV(3), RLOO(3)),  # before they learn
    (RODEO(3), RLOO(3)),
    (RODEO(4, **OF_RODEO, network=Second()).double(), RODEO(4, **OF_RODEO).double()),
    (RELAX(3), Reinforce(3)),
    (DARN(3), ReinMax(3)),
    (SIMPLE(3), StraightThrough(3)),
    (MinimumVarianceStraightThrough(3, bias_weight=0), StraightThrough(3)),
    (ReinMaxCV(3, control_weight=0.0), ReinMax(3)),
]
# With alpha = beta = 1 the prediction is exact for a quadratic f, so corrections are zero.
QUADRATIC = [
    SlopeCateR(4, corrections=corrections, pairs=pairs)
    for corrections in (1, 7)
    for pairs in (None, False, True)
]


@pytest.mark.parametrize(("E", "other"), [*SAME, *((E, ReinMax(4)) for E in QUADRATIC)], ids=repr)
def test_special_cases(E: Any, other: Any) -> None:
    """Also the gradients in what RODEO learns."""
    f = quadratic if isinstance(E, SlopeCateR) else wave
    laws = {"bits": (bits, normals(10, 3)), "one-hot": (one_hots, normals(10, 2, 3))}
    for kind in laws.keys() & {str(kind) for kind in E.supports}:
        law, theta = laws[kind]
        if isinstance(E, SlopeCateR) and kind == "bits" and E.pairs:
            continue
        leaf = theta.clone().requires_grad_()
        x = law(theta).sample((other.samples,))
        results = []
        for estimator in map(deepcopy, (E, other)):  # one that learns changes
            learned = list(estimator.parameters()) if isinstance(other, RODEO) else []
            value = estimator(f, law(leaf), x=x, generator=seeded())
            results.append(torch.autograd.grad(value.sum(), [leaf, *learned]))
        assert_close(*results, rtol=0, atol=1e-12)


def test_draws_do_not_matter_to_one_variable_nor_their_number_to_one_draw() -> None:
    """IndeCateR is Exact for one variable; equal draws per variable are one draw."""
    theta = normals(10, 1, 3).requires_grad_()
    one, exact = (E(wave, one_hots(theta)) for E in (IndeCateR(1), catlog.Exact()))
    assert_close(*(torch.autograd.grad(value.sum(), theta) for value in (one, exact)))
    leaf = normals(10, 3).requires_grad_()
    x = bits(leaf).sample((1,))
    repeated = IndeCateR(1, per_variable=True)(wave, bits(leaf), x=x.repeat(3, 1, 1))
    assert_same(repeated, IndeCateR(1)(wave, bits(leaf), x=x), leaf)


def test_noise_in_common() -> None:
    """Gumbel-Rao with one Gumbel vector; straight-through where ReDGE takes one step."""
    u = torch.rand(1, 10, 2, 3, dtype=torch.float64, generator=seeded())
    theta = normals(10, 2, 3).requires_grad_()
    q = one_hots(theta)
    x = q.sample((1,))
    decoupled = DecoupledStraightThrough()(wave, q, x=x, noise=u)
    assert_same(decoupled, GumbelRao(noise_samples=1)(wave, q, x=x, noise=u[None]), theta)
    drawn = []
    redge = ReDGE(steps=1)(lambda x: drawn.append(x.detach()) or wave(x), q)
    assert_same(redge, StraightThrough()(wave, q, x=drawn[0].round()), theta)
