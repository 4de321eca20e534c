"""Settings and logits of any size, in 32 and 16 bits: values are finite and within the range of f,
gradients are finite, and f sees no impossible point."""

from inspect import signature
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import catlog
from catlog.core.view import view
from catlog.distributions import MarkovChain
from catlog.estimators import ESTIMATORS
from catlog.testing.cases import normals, seeded
from catlog.testing.settings import VARIANTS, supports
from support.laws import KINDS

LAWS = KINDS | {"structured": lambda table: MarkovChain(table[:, 0], table, length=3)}
LARGE_OR_SMALL = ("temperature", "step", "ridge", "alpha", "beta", "eta", "epsilon", "baseline")
SIZES = (1e-12, 1e-6, 1e-3, 30.0, 1e6)
# Estimators whose value may lie outside the range of f: at relaxed points, or with a critic.
OUTSIDE = (catlog.GumbelSoftmax, catlog.estimators.MemoryCateR)
MASK = normals(4, 3, 3, seed=1) > 0.5
MASK[..., 0] = False


def settings(name: str) -> list[dict[str, object]]:
    """Return all settings in which an estimator is judged, and extreme ones."""
    extreme = [key for key in LARGE_OR_SMALL if key in signature(ESTIMATORS[name]).parameters]
    return [*VARIANTS[name], *({key: size} for key in extreme for size in SIZES)]


@pytest.mark.usefixtures("unchecked")  # torch's checks fail in 16 bits
@pytest.mark.parametrize(
    ("dtype", "scale", "size"),  # of q, of its logits, of f
    [
        *((torch.float32, scale, 1.0) for scale in (1.0, 1e4)),
        *((torch.float16, scale, 1.0) for scale in (1.0, 1e4)),
        *((torch.float32, 1.0, size) for size in (1e25, 1e-20)),
    ],
)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_extreme_numbers_give_finite_results(
    name: str, dtype: torch.dtype, scale: float, size: float
) -> None:
    for options in settings(name):
        if dtype == torch.float16 and 1e6 in options.values():
            continue  # a gradient times this is infinite
        for kind in [kind for kind in LAWS if supports(ESTIMATORS[name](**options), kind)]:
            leaf = (scale * normals(4, 3, 3)).to(dtype).requires_grad_()
            values, E = two_calls(ESTIMATORS[name](**options), kind, leaf, size)
            assert values.isfinite().all(), options
            if not isinstance(E, OUTSIDE):
                assert values.abs().max() <= size * (1 + 8 * torch.finfo(dtype).eps), options
            learns = isinstance(E, nn.Module) and size == 1.0  # from squares of the gradient
            parameters = E.parameters() if learns else ()
            for gradient in torch.autograd.grad(
                values.sum(), [leaf, *parameters], materialize_grads=True
            ):
                assert gradient.isfinite().all(), options


def two_calls(E: Any, kind: str, leaf: Tensor, size: float) -> tuple[Tensor, Any]:
    """Return the values of two calls, of which the first one teaches E, and E."""
    impossible = MASK.roll(1, -1) if kind == "bits" else MASK  # some bits are certain
    q = LAWS[kind](leaf.masked_fill(impossible, -torch.inf))
    law = view(q)

    def f(x: Tensor) -> Tensor:
        if not E.differentiates_f:
            assert bool((law.log_prob(law.index(x)) > -torch.inf).all())
        return size * x.float().flatten(2).cumsum(-1).sum(-1).sin()

    return torch.stack([E(f, q, generator=seeded(seed)) for seed in range(2)]), E
