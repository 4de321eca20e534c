"""The distribution of a sum of independent whole numbers, by convolutions in a balanced tree."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from ..core.categories import integers

Convolution = Callable[[Tensor, Tensor], Tensor]
Probs = Float[Tensor, "*batch d k"]
Terms = Float[Tensor, "*batch d m"]
# Beyond the range of the terms' log-probabilities, the largest tilt; exp(-100) between neighbouring
# sums is as good as impossible.
STEEPEST = 100.0
SEARCH_STEPS = 24  # halve the interval to a 10^7th: for a range of 10^4, to 0.002
BLOCK = 64  # columns of a direct convolution's matrix; larger blocks copy more, smaller sum more


def spread(
    probs: Probs, weights: Sequence[int] | None, zero: float = 0.0, one: float = 1.0
) -> Terms:
    """Return the probabilities of the terms ``weights[i] * x_i``, on a lattice of whole numbers.

    A row begins at the least value of its term. Without weights, all are one. ``zero`` and ``one``
    are what stands for these probabilities: log-probabilities are spread by -inf and 0.

    >>> spread(torch.tensor([[0.2, 0.8], [0.3, 0.7]]), [1, -2])
    tensor([[0.2000, 0.8000, 0.0000],
            [0.7000, 0.0000, 0.3000]])
    """
    if weights is None:
        return probs
    k, width = probs.shape[-1], (probs.shape[-1] - 1) * max(map(abs, weights)) + 1
    weight = integers(weights, probs.device)[:, None]
    category = torch.arange(k, device=probs.device)
    value = torch.where(weight < 0, k - 1 - category, category) * weight.abs()
    lattice = probs.new_full((*probs.shape[:-1], width), zero)
    terms = lattice.scatter(-1, value.expand(probs.shape), probs)
    # The term of a variable without weight is 0 for certain.
    is_zero = torch.arange(width, device=probs.device) == 0
    return torch.where(weight == 0, torch.where(is_zero, one, zero).to(probs.dtype), terms)


def distribution_of_sum(terms: Terms, convolve: Convolution) -> Float[Tensor, "*batch n"]:
    """Return the probabilities of the sum 0, 1, ... of d independent terms 0, ..., m - 1.

    >>> distribution_of_sum(torch.full((3, 2), 0.5), by_products)
    tensor([0.1250, 0.3750, 0.3750, 0.1250])
    """
    d, m = terms.shape[-2:]
    while terms.shape[-2] > 1:
        if terms.shape[-2] % 2:  # a further term that is 0
            zero_term = torch.eye(1, terms.shape[-1], dtype=terms.dtype, device=terms.device)
            terms = torch.cat([terms, zero_term.expand_as(terms[..., :1, :])], -2)
        terms = convolve(terms[..., 0::2, :], terms[..., 1::2, :])
    return terms[..., 0, : d * (m - 1) + 1]


def by_fft(left: Float[Tensor, "*lead n"], right: Float[Tensor, "*lead n"]) -> Tensor:
    """Return the convolution along the last dimension in O(n log n).

    The error is about the rounding error of the *largest* entry, so that small probabilities have
    no correct digits.
    """
    size = 2 * left.shape[-1] - 1
    padded = 1 << (size - 1).bit_length()
    product = torch.fft.rfft(left, padded) * torch.fft.rfft(right, padded)
    return torch.fft.irfft(product, padded)[..., :size]


def by_products(left: Float[Tensor, "*lead n"], right: Float[Tensor, "*lead n"]) -> Tensor:
    """Return the convolution along the last dimension in O(n^2).

    It is a sum of products without subtractions, so that every probability is accurate, however
    small. Blocks of ``right`` are the columns of one matrix product, whose rows are windows of
    ``left``. Their results are added with shifts.
    """
    size = left.shape[-1]
    block = min(size, BLOCK)
    columns = -(-size // block)
    rows = -(-(size + block - 1) // block) * block
    windows = pad(left, (block - 1, rows - size)).unfold(-1, block, 1)
    blocks = pad(right, (0, columns * block - size)).unflatten(-1, (columns, block))
    parts = blocks.flip(-1) @ windows.mT  # [columns, rows]; column c belongs c blocks further on
    # Rows that are longer by one block than they count as shift each by one block more.
    parts = pad(parts, (0, columns * block)).flatten(-2)[..., : -columns * block]
    width = rows + (columns - 1) * block
    return parts.unflatten(-1, (columns, width)).sum(-2)[..., : 2 * size - 1]


@torch.no_grad()
def best_tilt(log_terms: Terms, log_values: Float[Tensor, "n *batch"]) -> Float[Tensor, "*batch"]:
    r"""Return the tilt that makes the sums that matter most to the mean of g likely.

    It minimises the bound :math:`\log \mathbb{E}[g] \le K(\theta) + \max_s [\log g(s) - \theta s]`,
    which is convex in :math:`\theta`, by bisection: where it falls, the sum that attains the
    maximum is above the mean of the tilted sum.

    Two terms of 0, 1 or 2, and a g that is 1 at a sum of 3:

    >>> g = torch.tensor([0.0, 0.0, 0.0, 1.0, 0.0])
    >>> best_tilt(torch.zeros(2, 3), g.log()).round(decimals=1)
    tensor(0.8000)
    """
    term = torch.arange(log_terms.shape[-1], dtype=log_terms.dtype, device=log_terms.device)
    total = torch.arange(len(log_values), dtype=log_terms.dtype, device=log_terms.device)
    total = total.view(-1, *[1] * (log_values.dim() - 1))
    least = log_terms.masked_fill(log_terms == -torch.inf, torch.inf).amin((-1, -2))
    high = (log_terms.amax((-1, -2)) - least + STEEPEST).expand_as(log_values[0])
    low = -high
    for _ in range(SEARCH_STEPS):
        tilt = (low + high) / 2
        mean = ((log_terms + tilt[..., None, None] * term).softmax(-1) @ term).sum(-1)
        falls = mean < (log_values - tilt * total).argmax(0)
        low, high = torch.where(falls, tilt, low), torch.where(falls, high, tilt)
    return torch.where(log_values.amax(0) > -torch.inf, (low + high) / 2, 0.0)
