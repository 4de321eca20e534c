"""How many of the remaining bits are 1: the table of `catlog.distributions.Subset`, in logs.

Independent bits with log-probabilities ``on`` (of 1) and ``off`` (of 0), ``[d, *batch]``, have

.. math:: c_i(r) = \\log P(x_i + \\dots + x_d = r) = \\log\\bigl(
    e^{\\text{off}_i + c_{i+1}(r)} + e^{\\text{on}_i + c_{i+1}(r - 1)}\\bigr).

Tables are ``[d, width, *batch]``, for r from 0 to ``width`` - 1, so that a shift of r is a
contiguous slice. All passes are loops of d steps on ``[width, *batch]``, which stays in a CPU's
caches. Their derivatives are such loops again, not a graph of d nodes, and can be differentiated
themselves.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

# The logarithm of zero: finite, as is a sum of 10^8 of them in float32, so that differences and
# derivatives are never NaN.
IMPOSSIBLE = -1e30
# Finite logits are kept within this distance of those that matter. A difference of this size is
# certain in every dtype, and a sum of 10^9 of them is not as low as IMPOSSIBLE.
LARGEST = 1e20
Bits = Float[Tensor, "d *batch"]
Row = Float[Tensor, "width *batch"]
Table = Float[Tensor, "d_plus_1 width *batch"]


class SuffixCounts(torch.autograd.Function):
    """The table of :func:`suffix_counts` and its first row.

    The derivative of the first row alone needs no table of derivatives.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(on: Bits, off: Bits, width: int) -> tuple[Table, Row]:
        nothing = torch.full_like(on[:1], 2 * IMPOSSIBLE)
        later = torch.cat([torch.zeros_like(nothing), *[nothing] * (width - 1)])
        rows = [later]
        for log_on, log_off in zip(on.flip(0), off.flip(0), strict=True):
            with_bit = later[:-1] + log_on
            later = later + log_off
            later[1:] = torch.logaddexp(later[1:], with_bit)
            rows.append(later)
        return torch.stack(rows[::-1]), later

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Bits, Bits, int], output: tuple[Table, Row]) -> None:
        ctx.save_for_backward(*inputs[:2], output[0])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, grad: Tensor | None, first: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None]:
        on, off, counts = ctx.saved_tensors
        if grad is None and first is None:
            return None, None, None
        if grad is None:
            source = torch.zeros_like(counts[0]) if first is None else first
            return *flow(on, off, counts, source), None
        source = grad[0] if first is None else grad[0] + first
        return *flow(on, off, counts, source, grad[1:]), None


def flow(
    on: Bits,
    off: Bits,
    counts: Table,
    source: Row,
    further: Float[Tensor, "d width *batch"] | None = None,
) -> tuple[Bits, Bits]:
    """Return the mass that passes each bit as a one, and as a zero.

    ``source`` enters at the first bit, with r ones to come, and ``further`` after each bit. At
    every bit the conditional probabilities divide it.
    """
    ones, zeros = [], []
    arrival = source
    for i, (log_on, log_off) in enumerate(zip(on, off, strict=True)):
        now, later = counts[i], counts[i + 1]
        stays = (later + log_off - now).exp() * arrival
        leaves = (later[:-1] + log_on - now[1:]).exp() * arrival[1:]
        zeros.append(stays.sum(0))
        ones.append(leaves.sum(0))
        stays[:-1] += leaves
        arrival = stays if further is None else stays + further[i]
    return torch.stack(ones), torch.stack(zeros)


class Marginals(torch.autograd.Function):
    r"""The probabilities of a one and of a zero at every bit, given r ones in all.

    The derivative in the log-odds is a covariance, :math:`\operatorname{Cov}(x_i, S)` with
    :math:`S = \sum_j g_j x_j`. Let r be the number of ones from bit i on, and :math:`D_i(r) =
    E[\sum_{j \ge i} g_j x_j \mid r]` (a loop from the last bit). The covariance has two parts, both
    free of cancellation: that given r,

    .. math:: E\bigl[q(1 \mid r)\, q(0 \mid r)\, (g_i + D_{i+1}(r - 1) - D_{i+1}(r))\bigr],

    and that of the conditional means, :math:`\operatorname{Cov}(q(1 \mid r), E[S \mid r])`.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(on: Bits, off: Bits, counts: Table, start: Row) -> tuple[Bits, Bits]:
        return flow(on, off, counts, start)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs, *output)

    @staticmethod
    def backward(ctx: Any, grad_ones: Bits, grad_zeros: Bits) -> tuple[Bits, Bits, None, None]:
        on, off, counts, start, ones, zeros = ctx.saved_tensors
        grad = grad_ones - grad_zeros
        # A constant added to `grad` multiplies the number of ones, which does not vary. This one
        # keeps the sums small.
        grad = grad - ((grad * ones).sum(0) / ones.sum(0).clamp(min=1)).detach()
        nothing = torch.zeros_like(counts[0, :1])
        gain = torch.zeros_like(counts[0])
        gains = [gain]
        for i in range(len(on) - 1, -1, -1):
            is_one = (counts[i + 1, :-1] + on[i] - counts[i, 1:]).exp()
            gain = gain + torch.cat([nothing, is_one * (grad[i] + gain[:-1] - gain[1:])])
            gains.append(gain)
        gains = gains[::-1]
        expected = (grad * ones).sum(0)
        covariance = []
        arrival, collected = start, torch.zeros_like(start)  # P(r), and E[sum of the earlier; r]
        for i in range(len(on)):
            is_one = (counts[i + 1, :-1] + on[i] - counts[i, 1:]).exp()
            is_zero = (counts[i + 1] + off[i] - counts[i]).exp()
            leaves = is_one * arrival[1:]
            jump = grad[i] + gains[i + 1][:-1] - gains[i + 1][1:]
            given_count = (leaves * is_zero[1:] * jump).sum(0)
            to_one = torch.cat([nothing, is_one])
            deviation = torch.where(ones[i] < 0.5, to_one - ones[i], zeros[i] - is_zero)
            centred = collected + arrival * (gains[i] - expected)
            covariance.append(given_count + (deviation * centred).sum(0))
            collected_leaves = is_one * collected[1:] + grad[i] * leaves
            arrival = arrival * is_zero + torch.cat([leaves, nothing])
            collected = collected * is_zero + torch.cat([collected_leaves, nothing])
        result = torch.stack(covariance)
        return result, -result, None, None


def suffix_counts(on: Bits, off: Bits, width: int) -> tuple[Table, Row]:
    """Return log P(x_i + ... + x_d = r) for every i and every r below ``width``; its first row."""
    return SuffixCounts.apply(on, off, width)  # type: ignore[no-untyped-call]


def marginals(on: Bits, off: Bits, counts: Table, start: Row) -> tuple[Bits, Bits]:
    """Return the probabilities that :class:`Marginals` describes; ``start`` is one-hot in r."""
    return Marginals.apply(on, off, counts, start)  # type: ignore[no-untyped-call]
