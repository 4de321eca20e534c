"""Checks of scores of items that distributions over subsets and rankings share."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ..core.categories import as_logits
from ..core.checks import check_is_tensor, check_together, check_validate_args, refusal
from ..core.tracing import can_inspect


def check_items(
    owner: str, name: str, scores: Any, mask: Any, validate_args: object = None
) -> None:
    """Raise unless ``scores`` are floats of at least one item, and ``mask`` is None or bools."""
    check_validate_args(owner, validate_args, hint="A mask of items is the argument `mask`.")
    _check_entries(owner, name, scores, "floats")
    if scores.dim() == 0 or scores.shape[-1] == 0:
        claim = "have shape [*batch, d] with d of at least 1"
        raise refusal(f"{owner}: `{name}`", claim, f"{tuple(scores.shape)} was given")
    if mask is None:
        return
    _check_entries(owner, "mask", mask, "bools")
    if mask.dim() == 0 or mask.shape[-1] != scores.shape[-1]:
        claim = f"have shape [*batch, {scores.shape[-1]}], as `{name}` has items"
        raise refusal(f"{owner}: `mask`", claim, f"{tuple(mask.shape)} was given")
    check_together(owner, "mask", mask, f"`{name}`", scores.device)


def _check_entries(owner: str, name: str, value: Any, kind: str) -> None:
    """Raise unless a tensor holds "floats" or "bools"."""
    form = f"[*batch, d] of {kind}"
    check_is_tensor(owner, name, value, form)
    if not (value.is_floating_point() if kind == "floats" else value.dtype == torch.bool):
        but = f"{value.dtype} was given"
        raise refusal(f"{owner}: `{name}`", f"be a tensor {form}", but, kind=TypeError)


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
        but = f"they are {listing}"
        raise refusal(f"{owner}: the batch shapes", "broadcast", but) from None
    scores = as_logits(scores).expand(batch + scores.shape[-1:])
    is_item = scores > -torch.inf if mask is None else (scores > -torch.inf) & mask
    if isinstance(k, Tensor):
        to_choose = k.to(scores.device, torch.int64).expand(batch)
    else:
        to_choose = torch.full(batch, k, dtype=torch.int64, device=scores.device)
    if can_inspect(validate_args is not False, scores):
        is_bad = scores.isnan() | (scores == torch.inf)
        if (bad := _first(is_bad if mask is None else is_bad & mask)) is not None:
            but = f"it is {float(scores[bad])} at index {bad}"
            claim = "be finite (or -inf for what is never chosen)"
            raise refusal(f"{owner}: `{name}`", claim, but)
        items = is_item.sum(-1)
        if (bad := _first((to_choose < 0) | (to_choose > items))) is not None:
            place = f" at batch index {bad}" if bad else ""
            most = f"the number of items that can be chosen, {int(items[bad])}{place}"
            but = f"{int(to_choose[bad])} was given"
            remedy = "Masked items and those of score -inf cannot be chosen."
            raise refusal(f"{owner}: `k`", f"be between 0 and {most}", but, remedy)
    return scores.masked_fill(~is_item, -torch.inf), is_item, to_choose


def _first(is_bad: Tensor) -> tuple[int, ...] | None:
    """Return the index of the first True, or None. This reads the numbers."""
    return tuple(is_bad.nonzero()[0].tolist()) if bool(is_bad.any()) else None
