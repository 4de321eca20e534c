"""Gumbel noise: plain, given its argmax, and its argmax for changed logits."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import one_hot

from ..distributions.factors import Factors
from .randomness import given_or_rand


def gumbels(uniforms: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return standard Gumbel noise, made from uniforms in [0, 1)."""
    return -(-positive(uniforms).log()).log()


def logistics(uniforms: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return standard logistic noise (the difference of two Gumbels) from uniforms in [0, 1)."""
    uniforms = positive(uniforms)
    return uniforms.log() - (-uniforms).log1p()


def positive(uniforms: Tensor) -> Tensor:
    """Return the uniforms, positive: the logarithm of 0 is infinite."""
    return uniforms.clamp(min=torch.finfo(uniforms.dtype).tiny)


@torch.no_grad()
def gumbels_given_argmax(
    law: Factors,
    index: Int64[Tensor, "n *batch d"],
    noise: Tensor | None = None,
    repeats: tuple[int, ...] = (),
    generator: torch.Generator | None = None,
) -> Float[Tensor, "*repeats_n_batch d k"]:
    r"""Return :math:`z = \log p + g` with Gumbel noise g, given that its argmax is ``index``.

    With :math:`e_k` standard exponential (:math:`-\log` of the uniform ``noise``) and j the argmax:
    the maximum is independent of its position, :math:`z_j = -\log e_j`, and the others are Gumbels
    truncated there, :math:`z_k = -\log(e_k / p_k + e_j)`. An impossible category has -inf.
    """
    shape = (*repeats, *index.shape, law.k)
    form, lead = "[..., n, *batch, d, k]", len(repeats) + 1
    u = given_or_rand(noise, shape, form, law, generator, lead=lead)
    return truncated_gumbels(law, index, u)


@torch.no_grad()
def truncated_gumbels(
    law: Factors,
    index: Int64[Tensor, "n *batch d"],
    uniforms: Float[Tensor, "*repeats_n_batch d k"],
) -> Float[Tensor, "*repeats_n_batch d k"]:
    """Return :func:`gumbels_given_argmax` for uniforms that were checked."""
    log_e = -gumbels(uniforms)
    argmax = index.unsqueeze(-1).expand(uniforms.shape[:-1] + (1,))
    top = log_e.gather(-1, argmax)
    return (-torch.logaddexp(log_e - law.log_probs, top)).scatter(-1, argmax, -top)


def argmax_shift(
    law: Factors,
    index: Int64[Tensor, "n *batch d"],
    z: Float[Tensor, "n *batch d k"],
    change: Float[Tensor, "n *batch d k"],
    step: float,
) -> Float[Tensor, "*batch d k"]:
    """Return the mean of (y - x) / step for the argmaxes x of z and y of z + step * change.

    Both are one-hot; x is ``index``.
    """
    shift = one_hot((z + step * change).argmax(-1), law.k) - one_hot(index, law.k)
    return (shift / step).to(law.real).mean(0)
