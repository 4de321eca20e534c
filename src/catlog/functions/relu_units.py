"""The table of a ReLU network on a CPU, without the hidden units that are off."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

# Moves of a point from which it pays to pick the weights of its active hidden units.
FEWEST_MOVES = 160


def values_by_units(
    layers: Sequence[nn.Linear],
    targets: Tensor,
    x: Tensor,
    change: Tensor,
    which: Tensor,
    chunk_size: int | None,
) -> tuple[Tensor, Tensor]:
    """Return f at the points ``[n, *batch]`` and at their moves ``[n, *batch, moves]``.

    f is a Bernoulli cross-entropy of linear layers with ReLUs between them. Units that a ReLU turns
    off at a point and at all its moves are left out of the products. Most changes are small, so
    that is nearly every unit that is off at the point. Only changes from the point are multiplied.
    Temporaries are reused.

    Args:
        layers: the network's linear layers.
        targets: of the cross-entropy, ``[*batch, out]`` or fewer dimensions.
        x: the points, ``[n, *batch, d]``.
        change: by how much the input of every move changes, ``[n, *batch, moves]``.
        which: the input that it changes, ``[moves]`` or ``[n, *batch, moves]``.
        chunk_size: evaluations at once, or None.
    """
    first, *later = layers
    outputs = [first(x).flatten(0, -2)]
    for layer in later:
        outputs.append(layer(outputs[-1].relu()))
    logits = outputs[-1]
    zero = logits.new_zeros(())
    targets = targets.to(logits.dtype).expand(*x.shape[1:-1], -1)
    targets = targets.reshape(-1, logits.shape[-1]).repeat(len(x), 1)
    linear_part = (targets * logits).sum(-1, keepdim=True)
    slope = targets @ later[-1].weight
    unmoved = torch.logaddexp(logits, zero).sum(-1, keepdim=True) - linear_part

    change = change.flatten(0, -2).to(logits.dtype)
    count, moves = change.shape
    size = min(moves, chunk_size or 1024)
    group = max(1, min(count, 2 * torch.get_num_threads(), (chunk_size or size * count) // size))
    weights = [layer.weight.mT.contiguous() for layer in later]
    hidden_buffers = [logits.new_empty(group * len(weight) * size) for weight in weights]
    active_buffers = [logits.new_empty(group * len(weight) * size) for weight in weights]
    row_buffers = [logits.new_empty(group * weight.numel()) for weight in weights]
    logit_buffer = logits.new_empty(group * size * logits.shape[-1])
    rows = row_buffers[0]
    moved = torch.empty_like(change)
    for cut in (slice(begin, min(begin + size, moves)) for begin in range(0, moves, size)):
        shared_columns = first.weight[:, which[cut]] if which.dim() == 1 else None
        for part in (slice(start, min(start + group, count)) for start in range(0, count, group)):
            changes = change[part, cut].unsqueeze(1)
            many = changes.shape[-1]
            points = torch.arange(len(changes)).unsqueeze(1)
            columns = shared_columns
            if columns is None:
                columns = first.weight[:, which.flatten(0, -2)[part, cut]].movedim(1, 0)
            for i, weight in enumerate(weights):
                at_point = outputs[i][part].unsqueeze(2)
                out = _view_start(hidden_buffers[i], len(points), len(weight), many)
                if i == 0:
                    hidden = torch.addcmul(at_point, columns, changes, out=out)
                else:
                    hidden = torch.baddbmm(at_point, rows.mT, hidden, out=out)
                highest = hidden.relu_().amax(2)
                most = int((highest != 0).sum(1).max())
                active = highest.topk(most, 1, sorted=False).indices
                unit = (points * len(weight) + active).flatten()
                out = _view_start(active_buffers[i], len(unit), many)
                hidden = torch.index_select(hidden.flatten(0, 1), 0, unit, out=out)
                hidden = hidden.unflatten(0, active.shape)
                hidden -= at_point.relu().gather(1, active.unsqueeze(2))
                out = _view_start(row_buffers[i], len(unit), weight.shape[1])
                rows = torch.index_select(weight, 0, active.flatten(), out=out)
                rows = rows.unflatten(0, active.shape)
            out = _view_start(logit_buffer, len(points), many, logits.shape[-1])
            new = torch.baddbmm(logits[part].unsqueeze(1), hidden.mT, rows, out=out)
            by_slope = (slope[part].gather(1, active).unsqueeze(1) @ hidden).squeeze(1)
            total = torch.logaddexp(new, zero, out=new).sum(2)
            moved[part, cut] = total - (by_slope + linear_part[part])
    return unmoved.view(x.shape[:-1]), moved.unflatten(0, x.shape[:-1])


def _view_start(buffer: Tensor, *shape: int) -> Tensor:
    """Return the first numbers of a flat buffer, in this shape."""
    return buffer[: prod(shape)].view(shape)
