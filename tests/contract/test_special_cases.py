"""Estimators that are special cases of others: the same gradients at the same draws."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Distribution

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

Pair = tuple[catlog.Estimator, catlog.Estimator]


class Second(nn.Module):
    """The network of RODEO that stands for none: the second of each pair."""

    def forward(self, pairs: Tensor) -> Tensor:
        return pairs[..., 1:].expand(pairs.shape)


def rodeo(network: nn.Module | None) -> RODEO:
    return RODEO(4, alpha=0.3, beta=-0.4, network=network).double()


SAME: dict[str, Pair] = {
    "BBVI with two draws": (BBVI(2), RLOO(2)),
    "DoubleCV before it learns": (DoubleCV(3), RLOO(3)),
    "RODEO before it learns, bits": (RODEO(3), RLOO(3)),
    "RODEO with a linear network, bits": (rodeo(Second()), rodeo(None)),
    "RELAX without a network": (RELAX(3), Reinforce(3)),
    "DARN, bits": (DARN(3), ReinMax(3)),
    "SIMPLE": (SIMPLE(3), StraightThrough(3)),
    "no weight of the bias": (MinimumVarianceStraightThrough(3, bias_weight=0), StraightThrough(3)),
    "no control variate": (ReinMaxCV(3, control_weight=0.0), ReinMax(3)),
    "equal draws per variable": (IndeCateR(1, per_variable=True), IndeCateR(1)),
}


def wave(x: Tensor) -> Tensor:
    flat = x.flatten(2)
    curved = flat @ torch.linspace(-1, 2, flat.shape[-1], dtype=torch.float64)
    return curved.sin() + 3 * flat[..., 0] * flat[..., 1]


def quadratic(x: Tensor) -> Tensor:
    flat = x.flatten(2)
    return ((flat @ normals(flat.shape[-1], flat.shape[-1])) * flat).sum(-1)


def compare(pair: Pair, law: Callable[[Tensor], Distribution], theta: Tensor, f: object) -> None:
    """Check that both have the same gradients in theta, and in the parameters of both."""
    leaf = theta.clone().requires_grad_()
    x = law(theta).sample((pair[1].samples,))
    results = []
    for E in pair:
        given = x.repeat(theta.shape[1], *[1] * (x.dim() - 1)) if "per_variable" in repr(E) else x
        value = E(f, law(leaf), x=given, generator=seeded())
        learned = list(E.parameters()) if isinstance(pair[1], RODEO) else []
        results.append(torch.autograd.grad(value.sum(), [leaf, *learned]))
    torch.testing.assert_close(*results, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", SAME)
def test_special_cases(name: str) -> None:
    compare(SAME[name], bits, normals(10, 3), wave)
    if "bits" not in name:
        compare(SAME[name], one_hots, normals(10, 2, 3), wave)


@pytest.mark.parametrize("corrections", [1, 7])
def test_slopecater_is_reinmax_for_quadratic_f(corrections: int) -> None:
    """With alpha = beta = 1 the prediction is exact, so corrections are zero."""
    for law, shape, pairs in ((bits, (9, 5), None), (one_hots, (9, 3, 4), False)):
        E = SlopeCateR(4, corrections=corrections, pairs=pairs)
        compare((E, ReinMax(4)), law, normals(*shape), quadratic)
    pairs = SlopeCateR(4, corrections=corrections, pairs=True)
    compare((pairs, ReinMax(4)), one_hots, normals(9, 3, 4), quadratic)


def test_one_variable_needs_no_other() -> None:
    """IndeCateR is Exact whatever is drawn."""
    f = lambda x: (x.flatten(2) @ normals(3)).sin()  # noqa: E731
    theta = normals(10, 1, 3).requires_grad_()
    results = [E(f, one_hots(theta)) for E in (IndeCateR(1), catlog.Exact())]
    (got, wanted) = (torch.autograd.grad(value.sum(), theta)[0] for value in results)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-14)


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
