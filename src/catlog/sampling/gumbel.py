"""Gumbel noise given its argmax, and the argmax that the same noise gives elsewhere."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import one_hot

from ..checks import check_uniforms
from ..distributions.factors import Factors
from .randomness import rand


def gumbels(uniforms: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return standard Gumbel noise, made from uniforms in [0, 1)."""
    return -(-_positive(uniforms).log()).log()


def logistics(uniforms: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return standard logistic noise, the difference of two Gumbels, made from uniforms in [0, 1)."""
    uniforms = _positive(uniforms)
    return uniforms.log() - (-uniforms).log1p()


def _positive(uniforms: Tensor) -> Tensor:
    return uniforms.clamp(min=torch.finfo(uniforms.dtype).tiny)  # the logarithm of 0 is infinite


@torch.no_grad()
def gumbels_given_argmax(
    law: Factors,
    index: Int64[Tensor, "n *batch d"],
    noise: Tensor | None = None,
    repeats: tuple[int, ...] = (),
    generator: torch.Generator | None = None,
    validate: bool = True,
) -> Float[Tensor, "*repeats_n_batch d k"]:
    r""":math:`z = \log p + g` with Gumbel noise g, given that its argmax is ``index``.

    With :math:`e_k` standard exponential (:math:`-\log` of the uniform ``noise``) and j the argmax: the maximum does not depend
    on where it is, :math:`z_j = -\log e_j`, and the others are Gumbels cut off there,
    :math:`z_k = -\log(e_k / p_k + e_j)`. An impossible category has -inf.
    """
    shape = (*repeats, *index.shape, law.k)
    if noise is None:
        noise = rand(shape, dtype=law.real, device=law.device, generator=generator)
    else:
        noise = check_uniforms("noise", noise, shape, "[..., n, *batch, d, k]", law, validate)
    log_e = -gumbels(noise)
    at = index.unsqueeze(-1).expand(shape[:-1] + (1,))
    top = log_e.gather(-1, at)
    return (-torch.logaddexp(log_e - law.log_probs, top)).scatter(-1, at, -top)


def argmax_shift(
    law: Factors,
    index: Int64[Tensor, "n *batch d"],
    z: Float[Tensor, "n *batch d k"],
    change: Float[Tensor, "n *batch d k"],
    step: float,
) -> Float[Tensor, "*batch d k"]:
    """The mean of (y - x) / step, one-hot: x the argmax of z, which is ``index``, and y that of z + step * change."""
    away = one_hot((z + step * change).argmax(-1), law.k) - one_hot(index, law.k)
    return (away / step).to(law.real).mean(0)
