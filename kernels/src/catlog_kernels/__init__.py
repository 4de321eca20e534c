r"""The table of a three-layer network under a Bernoulli cross-entropy, by Triton on a GPU.

``decoder_table`` is the entry point: :class:`catlog.functions.FirstLayerLinear` asks it where this
package is installed. It runs the first-layer update of every neighbour, ReLU, second layer, ReLU,
last layer, and the sum of the softplus; 16-bit changes are the most of it that goes through memory.

``bernoulli_table`` is a custom operation of PyTorch, opaque to ``torch.compile`` and captured by
CUDA graphs. On a CPU (and where Triton is missing) it is the formula in plain PyTorch, for tests.
It has no derivative: tables are made without autograd.

On a GPU operands are rounded to float16, which has TF32's 10 bits of mantissa, and sums are in
float32. The points themselves are evaluated in nearly float32. In every layer only the *change*
from the point is multiplied, so that rounding is relative to the change, about 8 times less than
with TF32. float16's range is no limit, because weights and rows of changes are divided by powers of
two. Products run at twice TF32's rate.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, softplus

AVAILABLE = torch.version.cuda is not None and find_spec("triton") is not None
FEWEST_CHANGES = 63  # of a point, for which the kernels were tuned


def decoder_table(
    layers: Sequence[nn.Linear], targets: Tensor, x: Tensor, variables: Tensor | None
) -> Tensor | None:
    """Return the table ``[n, *batch, slots, 2]``, or None if the kernels do not take these points.

    Args:
        layers: the three linear layers; between them are ReLUs.
        targets: of the cross-entropy, ``[*batch, out]`` or fewer dimensions.
        x: the points, bits as floats ``[n, *batch, d]``.
        variables: the changed bits, ``[n, *batch, slots]``; None: all, in order.
    """
    if not usable(x, (x if variables is None else variables).shape[-1]):
        return None
    last = layers[-1]
    targets = targets.to(last.weight.dtype)
    targets = targets.expand(*x.shape[1:-1], -1).reshape(-1, last.out_features)
    which = None if variables is None else variables.flatten(0, -2)
    tensors = [tensor for layer in layers for tensor in (layer.weight, layer.bias)]
    with torch.autocast(x.device.type, enabled=False):  # the kernels set their precision themselves
        offset = targets.new_zeros(len(targets)) if last.bias is None else targets @ last.bias
        slope = targets @ last.weight
        values = bernoulli_table(x.flatten(0, -2), which, *tensors, slope, offset)
    values = values.unflatten(0, x.shape[:-1])
    current = (x if variables is None else x.gather(-1, variables)).bool()
    moved, unmoved = values[..., :-1], values[..., -1:]
    at_zero = torch.where(current, moved, unmoved)
    return torch.stack([at_zero, torch.where(current, unmoved, moved)], -1)


def usable(x: Tensor, slots: int) -> bool:
    """Return whether the kernels take these points, with this number of changes of each."""
    return (
        AVAILABLE
        and x.is_cuda
        and x.dtype == torch.float32
        and 0 < x.numel() < 2**30
        and slots >= FEWEST_CHANGES
    )


@torch.library.custom_op("catlog::bernoulli_table", mutates_args=())
def bernoulli_table(
    x: Tensor,
    which: Tensor | None,
    w1: Tensor,
    b1: Tensor | None,
    w2: Tensor,
    b2: Tensor | None,
    w3: Tensor,
    b3: Tensor | None,
    slope: Tensor,
    offset: Tensor,
) -> Tensor:
    """Return values with one bit flipped, for every slot, and at the point:
    ``[points, slots + 1]``.

    Args:
        x: ``[points, inputs]``, 0 or 1.
        which: ``[points, slots]``, the bits to flip; None: all, in order.
        w1, b1, w2, b2, w3, b3: the three layers: ``[h1, inputs]``, ``[h1]``, ``[h2, h1]``,
            ``[h2]``, ``[out, h2]``, ``[out]``.
        slope, offset: ``[batch, h2]`` and ``[batch]``, the targets times w3 and b3; point p is of
            batch element p % batch.
    """
    index = torch.arange(x.shape[1], device=x.device).expand(x.shape) if which is None else which
    sign = 1 - 2 * x.gather(1, index)
    base = linear(x, w1, b1).unsqueeze(1)
    hidden = linear(
        torch.cat([base + sign.unsqueeze(-1) * w1.mT[index], base], 1).relu(), w2, b2
    ).relu()
    repeats = len(x) // max(1, len(slope))
    linear_part = (hidden * slope.repeat(repeats, 1).unsqueeze(1)).sum(-1)
    linear_part = linear_part + offset.repeat(repeats).unsqueeze(1)
    return softplus(linear(hidden, w3, b3)).sum(-1) - linear_part


@bernoulli_table.register_kernel("cuda")
def _(x: Tensor, which: Tensor | None, *tensors: Any) -> Tensor:
    from .triton_kernels import layer_by_layer

    *layers, slope, offset = tensors
    which = which if which is None else which.contiguous()
    last: list[Any] = [*layers, slope.contiguous(), offset.contiguous()]
    with torch.cuda.device_of(x):
        return layer_by_layer(x.contiguous(), which, *last)


@bernoulli_table.register_fake
def _(x: Tensor, which: Tensor | None, *tensors: Any) -> Tensor:
    return x.new_empty(x.shape[0], (x if which is None else which).shape[1] + 1)
