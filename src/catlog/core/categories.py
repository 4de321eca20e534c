"""Probabilities of categories, and derivatives in their logits."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

IMPOSSIBLE = -1e30  # in place of -inf where it is multiplied: 0 times it is 0


def at_least_float32(values: Tensor) -> Tensor:
    """Return ``values``, converted to float32 if they are of fewer bits.

    bfloat16 has too few different uniforms to reach all of many categories.
    """
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def safe_log(probs: Tensor) -> Tensor:
    """Return the logarithm, with no gradient where it is -inf."""
    possible = probs.detach() > 0
    return torch.where(possible, probs, 1.0).log().masked_fill(~possible, -torch.inf)


def centred(
    slope: Float[Tensor, "*lead d k"], possible: Bool[Tensor, "*#lead d k"]
) -> Float[Tensor, "*lead d k"]:
    """Return the slopes with 0 for impossible categories, and a sum of 0 over the others."""
    slope = slope.masked_fill(~possible, 0.0)
    return slope - possible * (slope.sum(-1, keepdim=True) / possible.sum(-1, keepdim=True))


def times_jacobian(p: Float[Tensor, "*lead k"], logits: Tensor) -> Float[Tensor, "*lead k"]:
    """Return J(p) times the logits, where J(p) is the derivative of softmax at probabilities p."""
    weighted = p * logits
    return weighted - p * weighted.sum(-1, keepdim=True)
