"""What torch.compile, torch.func and inference mode allow at this point of a run."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")


def constant_result(function: Callable[P, T]) -> Callable[P, T]:
    """Let torch.compile call ``function`` and keep its result, instead of tracing it.

    The arguments must be constants, and the result must depend on nothing else. This is
    ``torch.compiler.assume_constant_result``, which would import the compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def inside_functorch() -> bool:
    """Return whether a transform of ``torch.func`` is active.

    It forbids ``requires_grad_`` and makes in-place scatters slow.
    """
    return (
        not torch.compiler.is_compiling() and torch._C._functorch.maybe_current_level() is not None
    )


def is_transformed() -> bool:
    """Return whether the code is compiled, or inside a transform of ``torch.func``."""
    return torch.compiler.is_compiling() or torch._C._functorch.maybe_current_level() is not None


def in_inference_mode() -> bool:
    """Return whether ``torch.inference_mode`` is active; compiled code cannot know."""
    return not torch.compiler.is_compiling() and torch.is_inference_mode_enabled()


def may_write() -> bool:
    """Return whether results may be written into buffers, and Python may look at them."""
    return not (torch.is_grad_enabled() or is_transformed())


def can_inspect(validate: bool, *values: Tensor) -> bool:
    """Return whether Python may look at the numbers in ``values``.

    Looking costs a synchronisation, so it happens in eager mode only, like ``validate_args`` of
    torch.distributions: not under ``torch.compile``, not while a CUDA graph is captured, not inside
    ``torch.func`` transforms, and not on the "meta" device, which has no numbers.
    """
    if not validate or torch.compiler.is_compiling():
        return False
    for value in values:  # a loop is twice as fast as any(...) of each condition
        if value.is_meta or torch._C._functorch.is_functorch_wrapped_tensor(value):
            return False
        if value.is_cuda and torch.cuda.is_current_stream_capturing():
            return False
    return True


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """Turn autocast off if it is on.

    f and the networks of q run as the user wants. The arithmetic of estimators does not: products
    of 16 bits would change probabilities and the weights that have to cancel.
    """
    kind = x.device.type
    if x.is_meta or not torch.is_autocast_enabled(kind):  # "meta" knows no autocast
        return nullcontext()
    return torch.autocast(kind, enabled=False)
