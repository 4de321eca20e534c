"""Fast tables of one kind of function: a ReLU network under a Bernoulli cross-entropy.

:class:`catlog.functions.FirstLayerLinear` asks ``relu_table``, at the first table of such a
network, and nothing outside this folder imports anything else of it. Without the folder, tables are
as right and slower.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...core.tracing import full_precision, may_write
from .operation import bernoulli_table, tf32_allowed, usable
from .relu_units import FEWEST_MOVES, values_by_units


def relu_table(
    layers: Sequence[nn.Linear],
    targets: Tensor,
    x: Tensor,
    variables: Tensor | None,
    categories: int,
    chunk_size: int | None,
    precision: str | None,
) -> Tensor | None:
    """Return the table ``[n, *batch, slots, categories]``, or None if no kernel makes it faster.

    Args:
        layers: the linear layers; between them are ReLUs.
        targets: of the cross-entropy, ``[*batch, out]`` or fewer dimensions.
        x: the points as floats, ``[n, *batch, d]``.
        variables: the changed variables, ``[n, *batch, slots]``; None: all, in order.
        categories: of every variable.
        chunk_size: evaluations at once, or None.
        precision: that of :class:`catlog.functions.FirstLayerLinear`.
    """
    slots = (x if variables is None else variables).shape[-1]
    is_half = precision == "half" or (precision is None and tf32_allowed())
    free = not (chunk_size or torch.is_grad_enabled())
    if free and is_half and len(layers) == 3 and categories == 2 and usable(x, slots):
        return _by_triton(layers, targets, x, variables)
    moves = slots * (categories - 1)
    on_cpu = x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    wide = x.dtype == layers[0].weight.dtype and x.itemsize >= 4
    if on_cpu and wide and may_write() and min(moves, chunk_size or moves) >= FEWEST_MOVES:
        return _by_units(layers, targets, x, variables, categories, chunk_size)
    return None


def _by_triton(
    layers: Sequence[nn.Linear], targets: Tensor, x: Tensor, variables: Tensor | None
) -> Tensor:
    first, second, last = layers
    targets = targets.to(last.weight.dtype)
    targets = targets.expand(*x.shape[1:-1], -1).reshape(-1, last.out_features)
    with full_precision(x):  # the kernels set their precision themselves
        values = bernoulli_table(
            x.flatten(0, -2),
            None if variables is None else variables.flatten(0, -2),
            first.weight,
            first.bias,
            second.weight,
            second.bias,
            last.weight,
            last.bias,
            targets @ last.weight,
            targets.new_zeros(len(targets)) if last.bias is None else targets @ last.bias,
        ).unflatten(0, x.shape[:-1])
    current = (x if variables is None else x.gather(-1, variables)).bool()
    moved, unmoved = values[..., :-1], values[..., -1:]
    at_zero = torch.where(current, moved, unmoved)
    return torch.stack([at_zero, torch.where(current, unmoved, moved)], -1)


def _by_units(
    layers: Sequence[nn.Linear],
    targets: Tensor,
    x: Tensor,
    variables: Tensor | None,
    k: int,
    chunk_size: int | None,
) -> Tensor:
    current = (x if variables is None else x.gather(-1, variables)).long()
    slots = current.shape[-1]
    slot = torch.arange(slots, device=x.device).repeat_interleave(k - 1)
    moved_to = (current[..., slot] + torch.arange(1, k, device=x.device).repeat(slots)) % k
    change = moved_to - current[..., slot]
    which = slot if variables is None else variables[..., slot]
    base = layers[0](x)
    size = chunk_size or 1024
    parts = [
        values_by_units(layers, targets.to(base.dtype), base, changes, inputs, chunk_size)
        for changes, inputs in zip(change.split(size, -1), which.split(size, -1), strict=True)
    ]
    table = parts[0][0].unsqueeze(-1).expand(*current.shape[:-1], slots * k)
    moved = torch.cat([values for _, values in parts], -1)
    return table.scatter(-1, slot * k + moved_to, moved).unflatten(-1, (slots, k))
