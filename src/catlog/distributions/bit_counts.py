"""How many of the remaining bits are 1: the table behind :class:`catlog.Subset`, in log space.

Independent bits with log-probabilities ``on`` (of 1) and ``off`` (of 0), ``[d, *batch]``, have

.. math:: c_i(r) = \\log P(x_i + \\dots + x_d = r) = \\log\\bigl(
    e^{\\text{off}_i + c_{i+1}(r)} + e^{\\text{on}_i + c_{i+1}(r - 1)}\\bigr).

Tables are ``[d, width, *batch]``, for r from 0 to ``width`` - 1, so that a shift of r is a
contiguous slice. All passes are loops of d steps on ``[width, *batch]``. Their derivatives are such
loops again, not a graph of d nodes, and can be differentiated themselves.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

IMPOSSIBLE = -1e30  # log of zero: finite, so that differences and derivatives are never NaN


class SuffixCounts(torch.autograd.Function):
    """The table of :func:`suffix_counts`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        on: Float[Tensor, "d *batch"], off: Float[Tensor, "d *batch"], width: int
    ) -> Float[Tensor, "d_plus_1 width *batch"]:
        nothing = torch.full_like(on[:1], 2 * IMPOSSIBLE)
        later = torch.cat([torch.zeros_like(nothing), *[nothing] * (width - 1)])
        rows = [later]
        for log_on, log_off in zip(on.flip(0), off.flip(0), strict=True):
            with_bit = torch.cat([nothing, later[:-1] + log_on])
            later = torch.logaddexp(later + log_off, with_bit)
            rows.append(later)
        return torch.stack(rows[::-1])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
        on, off, _ = inputs
        ctx.save_for_backward(on, off, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        on, off, counts = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return *_ones_and_zeros(on, off, counts, grad), None
        log_zero, log_one = conditional_table(on, off, counts)  # to be differentiated again
        is_zero, is_one = log_zero.exp(), log_one.exp()
        arrivals = visits(grad[:-1], is_zero, is_one)
        return (arrivals * is_one).sum(1), (arrivals * is_zero).sum(1), None


def _ones_and_zeros(
    on: Float[Tensor, "d *batch"],
    off: Float[Tensor, "d *batch"],
    counts: Float[Tensor, "d_plus_1 width *batch"],
    source: Float[Tensor, "d_plus_1 width *batch"],
) -> tuple[Float[Tensor, "d *batch"], Float[Tensor, "d *batch"]]:
    """Return how much of what enters at ``source`` leaves each bit as a one, and as a zero.

    This is :func:`visits` and its sums, bit by bit: what it touches stays in a CPU's caches.
    """
    ones, zeros = [], []
    arrival = source[0]
    for log_on, log_off, now, later, extra in zip(
        on, off, counts[:-1], counts[1:], source[1:], strict=True
    ):
        stays = (later + log_off).sub_(now).exp_().mul_(arrival)
        leaves = (later[:-1] + log_on).sub_(now[1:]).exp_().mul_(arrival[1:])
        zeros.append(stays.sum(0))
        ones.append(leaves.sum(0))
        arrival = stays.add_(extra)
        arrival[:-1] += leaves
    return torch.stack(ones), torch.stack(zeros)


class Visits(torch.autograd.Function):
    """The linear recursion of :func:`visits`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        source: Float[Tensor, "d width *batch"],
        is_zero: Float[Tensor, "d width *batch"],
        is_one: Float[Tensor, "d width *batch"],
    ) -> Float[Tensor, "d width *batch"]:
        nothing = torch.zeros_like(is_one[0, :1])
        arrival = source[0]
        rows = [arrival]
        for stay, leave, extra in zip(is_zero[:-1], is_one[:-1], source[1:], strict=True):
            left = torch.cat([(arrival[1:] * leave[1:]), nothing])
            arrival = torch.addcmul(extra, arrival, stay) + left
            rows.append(arrival)
        return torch.stack(rows)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        _, is_zero, is_one = inputs
        ctx.save_for_backward(is_zero, is_one, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        is_zero, is_one, arrivals = ctx.saved_tensors
        nothing = torch.zeros_like(grad[0, :1])
        gain = grad[-1]
        gains = [gain]
        triples = zip(is_zero.flip(0)[1:], is_one.flip(0)[1:], grad.flip(0)[1:], strict=True)
        for stay, leave, extra in triples:
            gain = torch.addcmul(extra, gain, stay) + leave * torch.cat([nothing, gain[:-1]])
            gains.append(gain)
        later = torch.stack([torch.zeros_like(gain), *gains[:-1]]).flip(0)
        after_one = torch.cat([torch.zeros_like(later[:, :1]), later[:, :-1]], 1)
        return torch.stack(gains).flip(0), arrivals * later, arrivals * after_one


def suffix_counts(
    on: Float[Tensor, "d *batch"], off: Float[Tensor, "d *batch"], width: int
) -> Float[Tensor, "d_plus_1 width *batch"]:
    """Return log P(x_i + ... + x_d = r) for every i and every r below ``width``."""
    counts: Tensor = SuffixCounts.apply(on, off, width)  # type: ignore[no-untyped-call]
    return counts


def visits(
    source: Float[Tensor, "d width *batch"],
    is_zero: Float[Tensor, "d width *batch"],
    is_one: Float[Tensor, "d width *batch"],
) -> Float[Tensor, "d width *batch"]:
    """Return how much arrives at bit i with r ones to come, if ``source`` enters there.

    A part ``is_zero`` stays at r on its way to bit i + 1, a part ``is_one`` goes to r - 1. With one
    unit at the first bit, at r = k, these are the probabilities of r.
    """
    arrivals: Tensor = Visits.apply(source, is_zero, is_one)  # type: ignore[no-untyped-call]
    return arrivals


def conditional_table(
    on: Float[Tensor, "d *batch"],
    off: Float[Tensor, "d *batch"],
    counts: Float[Tensor, "d_plus_1 width *batch"],
) -> tuple[Float[Tensor, "d width *batch"], Float[Tensor, "d width *batch"]]:
    """Return log P(x_i = 0) and log P(x_i = 1) given r ones among x_i ... x_d.

    Where r is impossible, both are: nothing flows through these entries.
    """
    now, later = counts[:-1], counts[1:]
    is_impossible = now < IMPOSSIBLE / 2
    with_bit = later[:, :-1] + on.unsqueeze(1)
    with_bit = torch.cat([torch.full_like(later[:, :1], 2 * IMPOSSIBLE), with_bit], 1)
    log_zero = (later + off.unsqueeze(1) - now).masked_fill(is_impossible, IMPOSSIBLE)
    return log_zero, (with_bit - now).masked_fill(is_impossible, IMPOSSIBLE)
