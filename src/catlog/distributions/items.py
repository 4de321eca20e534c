"""Checks of scores of items that distributions over subsets and rankings share."""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ..core.categories import as_logits
from ..core.checks import check_dense, check_together, check_validate_args
from ..core.tracing import can_inspect


def check_items(
    owner: str, name: str, scores: object, mask: object, validate_args: object = None
) -> None:
    """Raise unless ``scores`` are floats of at least one item, and ``mask`` is None or bools."""
    check_validate_args(owner, validate_args, hint="A mask of items is the argument `mask`.")
    if not isinstance(scores, Tensor) or not scores.is_floating_point():
        what = scores.dtype if isinstance(scores, Tensor) else type(scores).__name__
        raise TypeError(f"{owner}: `{name}` must be a tensor of floats, but {what} was given.")
    check_dense(f"{owner}: `{name}`", scores)
    if scores.dim() == 0 or scores.shape[-1] == 0:
        raise ValueError(
            f"{owner}: `{name}` must have shape [*batch, d] with d of at least 1, but "
            f"{tuple(scores.shape)} was given."
        )
    if mask is None:
        return
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        what = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(
            f"{owner}: `mask` must be a tensor of bools, True where there is an item, but {what} "
            "was given."
        )
    if mask.dim() == 0 or mask.shape[-1] != scores.shape[-1]:
        raise ValueError(
            f"{owner}: `mask` must have shape [*batch, {scores.shape[-1]}] to go with `{name}` "
            f"{tuple(scores.shape)}, but {tuple(mask.shape)} was given."
        )
    check_dense(f"{owner}: `mask`", mask)
    check_together(owner, "mask", mask, f"`{name}`", scores.device)


def read_items(
    owner: str,
    name: str,
    scores: Float[Tensor, "*#batch d"],
    k: int | Tensor,
    mask: Bool[Tensor, "*#batch d"] | None = None,
    validate_args: bool | None = None,
) -> tuple[Float[Tensor, "*batch d"], Bool[Tensor, "*batch d"], Int64[Tensor, "*batch"]]:
    """Return the scores, -inf for what is never chosen, what can be chosen, and k.

    Raise unless their batches broadcast and, where numbers are read, k items can be chosen.
    """
    shapes = {name: scores.shape[:-1]}
    if mask is not None:
        shapes["mask"] = mask.shape[:-1]
    if isinstance(k, Tensor):
        shapes["k"] = k.shape
    try:
        batch = torch.broadcast_shapes(*shapes.values())
    except RuntimeError:
        listing = ", ".join(f"`{name}` {tuple(shape)}" for name, shape in shapes.items())
        raise ValueError(
            f"{owner}: the batch shapes must broadcast, but they are {listing}."
        ) from None
    scores = as_logits(scores).expand(batch + scores.shape[-1:])
    is_item = scores > -torch.inf if mask is None else (scores > -torch.inf) & mask
    if isinstance(k, Tensor):
        to_choose = k.to(scores.device, torch.int64).expand(batch)
    else:
        to_choose = torch.full(batch, k, dtype=torch.int64, device=scores.device)
    if can_inspect(validate_args is not False, scores):
        is_bad = scores.isnan() | (scores == torch.inf)
        if (bad := _first(is_bad if mask is None else is_bad & mask)) is not None:
            raise ValueError(
                f"{owner}: `{name}` must be finite (or -inf for what is never chosen), but it is "
                f"{float(scores[bad])} at index {bad}."
            )
        items = is_item.sum(-1)
        if (bad := _first((to_choose < 0) | (to_choose > items))) is not None:
            place = f" at batch index {bad}" if bad else ""
            raise ValueError(
                f"{owner}: `k` must be between 0 and the number of items that can be chosen, "
                f"{int(items[bad])}{place}, but {int(to_choose[bad])} was given. Masked items and "
                "those of score -inf cannot be chosen."
            )
    return scores.masked_fill(~is_item, -torch.inf), is_item, to_choose


def _first(is_bad: Tensor) -> tuple[int, ...] | None:
    """Return the index of the first True, or None. This reads the numbers."""
    return tuple(is_bad.nonzero()[0].tolist()) if bool(is_bad.any()) else None
