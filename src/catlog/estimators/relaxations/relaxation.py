"""Relaxed points: the continuous draw behind a discrete one, derivatives in it, and derivatives straight through."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ...distributions.factors import Factors
from ...estimator import Function, Kind, once
from ...evaluation.evaluate import evaluate_through
from ...sampling.gumbel import gumbels_given_argmax

IMPOSSIBLE = -1e30  # z of a category that is impossible, finite


def conditional_gumbels(
    law: Factors,
    index: Int64[Tensor, "n *batch d"],
    noise: Tensor | None = None,
    generator: torch.Generator | None = None,
    validate: bool = True,
) -> tuple[Float[Tensor, "n *batch d k"], Float[Tensor, "n *batch d k"]]:
    r""":math:`z = \log p + g`, g Gumbel, given that its argmax is the draw; and the part of its derivative that is left when its
    derivative *given the draw* is subtracted.

    With arrival times :math:`t = e^{-z}`, independent and exponential with rates p, the draw x is the first to arrive. Given x
    and its time T, the others come at :math:`t_k = T + e_k / p_k`, :math:`e_k` standard exponential; neither T nor e depend
    on p. So :math:`\partial z_k = \partial \log p_k`; given x it is :math:`(1 - T/t_k)\, \partial \log p_k`, 0 for k = x;
    and :math:`T/t_k = e^{z_k - \max z}` is left.
    """
    z = gumbels_given_argmax(law, index, noise, (), generator, validate).clamp(min=IMPOSSIBLE)
    return z, (z - z.amax(-1, keepdim=True)).exp()


def relaxed(law: Factors, z: Float[Tensor, "n *batch d k"], temperature: Tensor | float) -> Tensor:
    """The softmax of z / temperature as a point ``[n, *batch, *event]``; what :func:`tied` has as impossible gets nothing."""
    none = z < IMPOSSIBLE / 2
    return to_point(
        law, (z.masked_fill(none, 0.0) / temperature).masked_fill(none, -torch.inf).softmax(-1)
    )


def to_point(law: Factors, table: Float[Tensor, "*lead d k"]) -> Tensor:
    """A number per category as a point ``[*lead, *event]`` between the categories; bits: that of category 1."""
    return law.shaped(table[..., 1] if law.kind == Kind.BITS else table)


def straight_through_mean(
    f: Function, law: Factors, x: Tensor, mean: Tensor, validate: bool
) -> Float[Tensor, "*batch"]:
    """The mean of f at the draws x, of which the derivative goes straight through to ``mean``, ``[*n, *batch, *event]``."""
    points = x + (mean - mean.detach()).to(law.dtype)
    return once(evaluate_through(f, points, law, validate=validate).mean(0))
