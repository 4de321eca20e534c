"""How many of the remaining bits are 1: the table behind :class:`catlog.Subset`, in log space.

Independent bits with log-probabilities ``on`` (of 1) and ``off`` (of 0), ``[d, *batch]``, have

.. math:: c_i(r) = \\log P(x_i + \\dots + x_d = r) = \\log\\bigl(
    e^{\\text{off}_i + c_{i+1}(r)} + e^{\\text{on}_i + c_{i+1}(r - 1)}\\bigr).

Both passes are loops of d steps on ``[*batch, width]``. Their derivatives are such loops again, not
a graph of d nodes, and can be differentiated themselves.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

IMPOSSIBLE = -1e30  # log of zero: finite, so that differences and derivatives are never NaN


class SuffixCounts(torch.autograd.Function):
    """The table ``c[i, ..., r]`` of ``[d + 1, *batch, width]``, for r below ``width``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        on: Float[Tensor, "d *batch"], off: Float[Tensor, "d *batch"], width: int
    ) -> Float[Tensor, "d_plus_1 *batch width"]:
        later = pad(torch.zeros_like(on[0]).unsqueeze(-1), (0, width - 1), value=IMPOSSIBLE)
        rows = [later]
        for log_on, log_off in zip(
            on.flip(0).unsqueeze(-1), off.flip(0).unsqueeze(-1), strict=True
        ):
            with_bit = pad(later[..., :-1] + log_on, (1, 0), value=2 * IMPOSSIBLE)
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
        log_off, log_on = conditional_table(on, off, counts)
        is_one, is_zero = log_on.exp(), log_off.exp()
        arrivals = visits(grad[:-1], is_zero, is_one)
        return (arrivals * is_one).sum(-1), (arrivals * is_zero).sum(-1), None


class Visits(torch.autograd.Function):
    """The linear recursion of :func:`visits`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        source: Float[Tensor, "d *batch width"],
        is_zero: Float[Tensor, "d *batch width"],
        is_one: Float[Tensor, "d *batch width"],
    ) -> Float[Tensor, "d *batch width"]:
        arrival = source[0]
        rows = [arrival]
        for stay, leave, extra in zip(is_zero[:-1], is_one[:-1], source[1:], strict=True):
            arrival = torch.addcmul(extra, arrival, stay) + pad((arrival * leave)[..., 1:], (0, 1))
            rows.append(arrival)
        return torch.stack(rows)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        _, is_zero, is_one = inputs
        ctx.save_for_backward(is_zero, is_one, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        is_zero, is_one, arrivals = ctx.saved_tensors
        gain = grad[-1]
        gains = [gain]
        triples = zip(is_zero.flip(0)[1:], is_one.flip(0)[1:], grad.flip(0)[1:], strict=True)
        for stay, leave, extra in triples:
            gain = torch.addcmul(extra, gain, stay) + leave * pad(gain[..., :-1], (1, 0))
            gains.append(gain)
        later = torch.stack([torch.zeros_like(gain), *gains[:-1]]).flip(0)
        in_zero = arrivals * later
        in_one = arrivals * pad(later[..., :-1], (1, 0))
        return torch.stack(gains).flip(0), in_zero, in_one


def suffix_counts(
    on: Float[Tensor, "d *batch"], off: Float[Tensor, "d *batch"], width: int
) -> Float[Tensor, "d_plus_1 *batch width"]:
    """Return log P(x_i + ... + x_d = r) for every i and every r below ``width``."""
    counts: Tensor = SuffixCounts.apply(on, off, width)  # type: ignore[no-untyped-call]
    return counts


def visits(
    source: Float[Tensor, "d *batch width"],
    is_zero: Float[Tensor, "d *batch width"],
    is_one: Float[Tensor, "d *batch width"],
) -> Float[Tensor, "d *batch width"]:
    """Return how much arrives at bit i with r ones to come, if ``source`` enters there.

    A part ``is_zero`` stays at r on its way to bit i + 1, a part ``is_one`` goes to r - 1. With one
    unit at the first bit, at r = k, these are the probabilities of r.
    """
    arrivals: Tensor = Visits.apply(source, is_zero, is_one)  # type: ignore[no-untyped-call]
    return arrivals


def conditional_table(
    on: Float[Tensor, "d *batch"],
    off: Float[Tensor, "d *batch"],
    counts: Float[Tensor, "d_plus_1 *batch width"],
) -> tuple[Float[Tensor, "d *batch width"], Float[Tensor, "d *batch width"]]:
    """Return log P(x_i = 0) and log P(x_i = 1) given r ones among x_i ... x_d.

    Where r is impossible, both are: nothing flows through these entries.
    """
    now, later = counts[:-1], counts[1:]
    is_impossible = now < IMPOSSIBLE / 2
    with_bit = pad(later[..., :-1] + on.unsqueeze(-1), (1, 0), value=2 * IMPOSSIBLE)
    log_zero = (later + off.unsqueeze(-1) - now).masked_fill(is_impossible, IMPOSSIBLE)
    return log_zero, (with_bit - now).masked_fill(is_impossible, IMPOSSIBLE)
