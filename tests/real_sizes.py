"""Estimators at the sizes of real models, and what would keep their steps out of a CUDA graph."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

BATCH, BITS, DRAWS = 100, 200, 14
SETTINGS: dict[str, dict[str, Any]] = {
    "Exact": {},
    "MAPO": {"size": 7, "samples": 7, "max_variables": BITS},
    "MemoryCateR": {"samples": DRAWS, "max_variables": BITS},
    "SumAndSample": {"top": 13},
    "UnorderedSet": {"samples": 10},  # its table has 2**samples entries
}


def settings_of(name: str) -> dict[str, Any]:
    """Return the settings of an estimator of the registry."""
    return SETTINGS.get(name, {"samples": DRAWS})


class NoHostCopies(TorchFunctionMode):
    """Raise where a tensor on the device is made or indexed from numbers of the host."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            raise AssertionError(f"{func.__name__} copies from the host")
        if func is Tensor.new_tensor:
            raise AssertionError("new_tensor copies from the host")
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            parts = args[1] if isinstance(args[1], tuple) else (args[1],)
            on_host = [isinstance(part, Tensor) and not part.is_meta for part in parts]
            if any(isinstance(part, list) for part in parts) or (args[0].is_meta and any(on_host)):
                raise AssertionError("an index is copied from the host")
        if func in (Tensor.to, Tensor.copy_) and any(
            isinstance(value, Tensor) and not value.is_meta and value.dim() for value in args
        ):
            raise AssertionError("a tensor of the host is copied")
        return func(*args, **kwargs)
