"""Draws by inverse CDF: from uniforms to categories, block by block."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ..tracing import can_inspect, inside_functorch
from .integers import integers

if TYPE_CHECKING:
    from .ordered import Ordered


def inverse_cdf(probs: Tensor, u: Tensor, dtype: torch.dtype = torch.int64) -> Tensor:
    """Return the category whose interval of the CDF contains u.

    It is never an impossible one, even for u = 1. ``probs`` has the categories last; the dimensions
    before them and those of ``u`` broadcast.
    """
    if probs.shape[-1] == 2:
        first, second = probs.unbind(-1)
        return (u >= torch.where(first + second > first, first, torch.inf)).to(dtype)
    cdf = probs.cumsum(-1)
    steps = cdf.masked_fill(cdf >= cdf[..., -1:], torch.inf)[..., :-1]
    return (u.unsqueeze(-1) >= steps).sum(-1, dtype=dtype)


def ancestral(
    q: "Ordered", u: Float[Tensor, "n *batch d"], validate: bool = True
) -> Int64[Tensor, "n *batch d"]:
    """Return points of q made from uniforms, block by block, until all sequences have ended."""
    lead = u.shape[:-1]
    x = torch.zeros(u.shape, dtype=torch.int64, device=u.device)
    state = q.start(lead) if q.incremental else None
    previous = None
    for block, variables in enumerate(q.blocks):
        raw, state = q.next_logits(block, x, state, previous)
        index = as_index(variables)
        drawn = inverse_cdf(q.block_log_probs(raw, block, lead, validate).exp(), u[..., index])
        if inside_functorch():  # where a mapped draw cannot be written into x
            places = integers(variables, u.device).expand(drawn.shape)
            x = x.scatter(-1, places, drawn)
        else:
            x[..., index] = drawn
        previous = drawn[..., 0]
        if q.end is not None and can_inspect(True, x) and bool((previous == q.end).all()):
            x[..., block + 1 :] = q.end
            break
    return x


def as_index(variables: tuple[int, ...]) -> slice | list[int]:
    """Return an index for these variables: a slice, if possible, saves a copy and a GPU sync."""
    first, count = variables[0], len(variables)
    if variables == tuple(range(first, first + count)):
        return slice(first, first + count)
    return list(variables)
