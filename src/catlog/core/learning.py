"""State that is learned between calls: read once per call, then written once."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from .tracing import in_inference_mode, inside_functorch

_LIBRARY = torch.library.Library("catlog", "FRAGMENT")
_LIBRARY.define("frozen(Tensor[] learned) -> Tensor[]")


def _copies(learned: list[Tensor]) -> list[Tensor]:
    return [buffer.clone() for buffer in learned]


_LIBRARY.impl("frozen", _copies, "CompositeExplicitAutograd")


def learns(module: nn.Module, values: Tensor | None = None) -> bool:
    """Return whether this call may change what ``module`` has learned: in training mode, not in
    inference mode nor inside torch.func's transforms, and from values of f, of which an empty batch
    has none."""
    return (
        module.training
        and not inside_functorch()
        and not in_inference_mode()
        and (values is None or values.numel() > 0)
    )


def frozen(module: nn.Module, *learned: Tensor) -> list[Tensor]:
    """Return copies of what was learned in earlier calls, which later writes do not change.

    A compiler may recompute in the backward pass whatever the forward pass computed, and would read
    buffers that learning has overwritten since. The copies are made by an operation that compilers
    do not look into and do not repeat.

    Raise inside the recomputation of ``torch.utils.checkpoint``: the forward pass has learned by
    then, so that the second pass would not repeat the first.

    >>> module = nn.BatchNorm1d(1)
    >>> (mean,) = frozen(module, module.running_mean)
    >>> _ = module.running_mean.fill_(3.0)
    >>> mean
    tensor([0.])
    """
    if torch.compiler.is_compiling():
        return list(torch.ops.catlog.frozen(list(learned)))
    if learns(module) and torch._C._current_graph_task_id() != -1:
        name = type(module).__name__
        raise RuntimeError(
            f"{name} learns from every call, so that torch.utils.checkpoint cannot repeat one: the "
            "second pass would not see the state that the first one saw. Put the checkpoint around "
            f"the network inside f, or freeze {name} with eval()."
        )
    return _copies(list(learned))


@torch.no_grad()
def write(updates: Iterable[tuple[Tensor, Tensor]], together: bool = False) -> None:
    """Write new values into their buffers, except where they are NaN or infinite.

    With ``together``, a single NaN or infinity leaves all buffers unchanged. That costs a few more
    kernels.

    >>> kept = torch.zeros(2)
    >>> write([(kept, torch.tensor([1.0, torch.inf]))]); kept
    tensor([1., 0.])
    >>> write([(kept, torch.tensor([2.0, torch.inf]))], together=True); kept
    tensor([1., 0.])
    """
    pairs = [(kept, new.to(kept)) for kept, new in updates]
    good = [new.isfinite() for _, new in pairs]
    if together:
        good = [torch.stack([finite.all() for finite in good]).all()] * len(pairs)
    for (kept, new), finite in zip(pairs, good, strict=True):
        kept.copy_(torch.where(finite, new, kept))
