"""Categories as tensors: their numbers, their probabilities, derivatives in their logits."""

from collections.abc import Sequence
from enum import StrEnum

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor
from torch.nn.functional import logsigmoid

from .tracing import inside_functorch

IMPOSSIBLE = -1e30  # in place of -inf where it is multiplied: 0 times it is 0


class Kind(StrEnum):
    """The kinds of distribution. The first three are also the forms in which f sees points."""

    BITS = "bits"  # Bernoulli: floats 0 and 1
    INDEX = "index"  # Categorical: integers
    ONE_HOT = "one-hot"  # OneHotCategorical: one-hot floats
    MIXED = "mixed"  # Categoricals: integers, with different numbers of categories
    COUNTS = "counts"  # Poisson, Binomial, Geometric, NegativeBinomial
    STRUCTURED = "structured"  # Autoregressive, MarkovChain, Subset, ...: dependent variables


def integers(values: Sequence[int], device: torch.device) -> Int64[Tensor, " count"]:
    """Return the values as a tensor, without a copy from the host to a GPU.

    Such a copy waits for the GPU, and a CUDA graph cannot capture it. So runs of equal values, and
    of values that count upwards, are made where they are needed.

    >>> integers([3, 3, 3, 0, 1, 2, 7], torch.device("cpu"))
    tensor([3, 3, 3, 0, 1, 2, 7])
    """
    if device.type == "cpu":
        return torch.tensor(values, dtype=torch.int64)
    runs = [
        torch.arange(first, first + count, device=device)
        if step
        else torch.full((count,), first, dtype=torch.int64, device=device)
        for first, step, count in _runs(values)
    ]
    return torch.cat(runs) if runs else torch.zeros(0, dtype=torch.int64, device=device)


def _runs(values: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return (first value, step, length) of the runs in which all steps are 0, or all are 1.

    >>> _runs([3, 3, 3, 0, 1, 2, 7])
    [(3, 0, 3), (0, 1, 3), (7, 0, 1)]
    """
    runs: list[tuple[int, int, int]] = []
    for value in values:
        if runs:
            first, step, count = runs[-1]
            if count == 1 and value - first in (0, 1):
                runs[-1] = (first, value - first, 2)
                continue
            if count > 1 and value == first + step * count:
                runs[-1] = (first, step, count + 1)
                continue
        runs.append((value, 0, 1))
    return runs


def inverse_cdf(probs: Tensor, u: Tensor, dtype: torch.dtype = torch.int64) -> Tensor:
    """Return the category whose interval of the CDF contains u.

    It is never an impossible one, even for u = 1. ``probs`` has the categories last; the dimensions
    before them and those of ``u`` broadcast.
    """
    if probs.shape[-1] == 2:
        first, second = probs.unbind(-1)
        return (u >= torch.where(first + second > first, first, torch.inf)).to(dtype)
    return (u.unsqueeze(-1) >= cdf_steps(probs)).sum(-1, dtype=dtype)


def cdf_steps(probs: Float[Tensor, "*lead k"]) -> Float[Tensor, "*lead k_minus_1"]:
    """Return where the CDF steps to the next category, infinite where no possible one follows."""
    cdf = probs.cumsum(-1)
    return cdf.masked_fill(cdf >= cdf[..., -1:], torch.inf)[..., :-1]


def as_index(variables: tuple[int, ...]) -> slice | list[int]:
    """Return an index for these variables: a slice, if possible, saves a copy and a GPU sync."""
    first, count = variables[0] if variables else 0, len(variables)
    if variables == tuple(range(first, first + count)):
        return slice(first, first + count)
    return list(variables)


def one_hots(
    index: Int64[Tensor, "*lead"], k: int, dtype: torch.dtype
) -> Shaped[Tensor, "*lead k"]:
    """Return one-hot vectors. Unlike torch's ``one_hot``, ``vmap`` maps it.

    In eager mode, writing the ones is faster than a comparison. Compilers before PyTorch 2.13 lose
    the dtype of numbers that are written into zeros: the vectors would be integers, which a GPU
    cannot multiply with a matrix.
    """
    index = index.unsqueeze(-1)
    if torch.compiler.is_compiling() or inside_functorch():
        return (index == torch.arange(k, device=index.device)).to(dtype)
    zeros = torch.zeros(*index.shape[:-1], k, dtype=dtype, device=index.device)
    return zeros.scatter_(-1, index.long(), 1)


def widened(values: Tensor) -> Tensor:
    """Return ``values``, converted to float32 if they are floats of fewer bits.

    bfloat16 has too few different uniforms to reach all of many categories.
    """
    return values.float() if values.is_floating_point() and values.dtype.itemsize < 4 else values


def as_logits(values: Tensor) -> Tensor:
    """Return ``values`` as floats of at least 32 bits, integers too."""
    is_wide = values.is_floating_point() and values.dtype.itemsize >= 4
    return values if is_wide else values.to(torch.promote_types(values.dtype, torch.float32))


def log_softmax(logits: Float[Tensor, "*lead k"]) -> Float[Tensor, "*lead k"]:
    """Return the normalised logits. For two categories, torch's own takes twice as long."""
    if logits.shape[-1] != 2:
        return logits.log_softmax(-1)
    zero, one = logits.unbind(-1)
    odds = one - zero
    return logsigmoid(torch.stack([-odds, odds], -1))


def softmax(logits: Float[Tensor, "*lead k"]) -> Float[Tensor, "*lead k"]:
    """Return the probabilities. For few categories, torch's own takes three times as long."""
    weights = (logits - logits.amax(-1, keepdim=True)).exp()
    return weights / weights.sum(-1, keepdim=True)


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


def times_jacobian(
    p: Float[Tensor, "*shape k"], logits: Float[Tensor, "*other k"]
) -> Float[Tensor, "*both k"]:
    """Return J(p) times the logits, where J(p) is the derivative of softmax at probabilities p."""
    weighted = p * logits
    return weighted - p * weighted.sum(-1, keepdim=True)


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
