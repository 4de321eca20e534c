"""Gumbel noise: plain, and given its argmax."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor


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
    log_probs: Float[Tensor, "*rows d k"],
    index: Int64[Tensor, "n *batch d"],
    uniforms: Float[Tensor, "*repeats_n_batch d k"],
) -> Float[Tensor, "*repeats_n_batch d k"]:
    r"""Return :math:`z = \log p + g` with Gumbel noise g, given that its argmax is ``index``.

    With :math:`e_k` standard exponential (:math:`-\log` of the uniforms) and j the argmax: the
    maximum is independent of its position, :math:`z_j = -\log e_j`, and the others are Gumbels
    truncated there, :math:`z_k = -\log(e_k / p_k + e_j)`. An impossible category has -inf.
    """
    log_e = -gumbels(uniforms)
    argmax = index.unsqueeze(-1).expand(uniforms.shape[:-1] + (1,))
    top = log_e.gather(-1, argmax)
    return (-torch.logaddexp(log_e - log_probs, top)).scatter(-1, argmax, -top)
