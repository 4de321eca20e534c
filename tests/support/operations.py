"""What the operations of a piece of code cost, counted as they run."""

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Operations(TorchDispatchMode):
    """The number of operations, the numbers that they return, and those of the largest tensor."""

    count = numbers = largest = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
        result = function(*args, **(kwargs or {}))
        self.count += 1
        for value in result if isinstance(result, tuple) else [result]:
            size = value.numel() if isinstance(value, Tensor) else 0
            self.numbers += size
            self.largest = max(self.largest, size)
        return result
