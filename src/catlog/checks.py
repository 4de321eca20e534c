"""Checks of arguments and values: what was given, what was expected, what to do."""

import torch
from torch import Tensor


def check_count(owner: str, name: str, value: object, least: int = 1, most: int | None = None, hint: str = "") -> None:
    """Raise unless ``value`` is an int with ``least <= value <= most``."""
    bounds = f"at least {least}" if most is None else f"between {least} and {most}"
    advice = f" {hint}" if hint else ""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{owner}: `{name}` must be an int of {bounds}, but {value!r} was given.{advice}")
    if value < least or (most is not None and value > most):
        raise ValueError(f"{owner}: `{name}` must be {bounds}, but {value} was given.{advice}")


def check_choice(owner: str, name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise ValueError(f"{owner}: `{name}` must be one of {', '.join(map(repr, choices))}, but {value!r} was given.")


def transformed() -> bool:
    """Whether this runs inside a transform of ``torch.func``, which forbids ``requires_grad_`` and has slow in-place scatters."""
    return not torch.compiler.is_compiling() and torch._C._functorch.maybe_current_level() is not None


def may_look(validate: bool, value: Tensor) -> bool:
    """Whether Python may look at the numbers in ``value``.

    Looking costs a synchronisation, so it happens in eager mode only (like ``validate_args`` of torch.distributions): not
    under ``torch.compile``, not while a CUDA graph is captured, not inside ``torch.func`` transforms.
    """
    if not validate or torch.compiler.is_compiling():
        return False
    if value.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(value)
