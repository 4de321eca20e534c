"""What the operations of a piece of code cost, counted as they run."""

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Operations(TorchDispatchMode):
    """The number of operations, the numbers that they return, and those of the largest tensor.

    ``bytes`` are those that they allocate, ``largest_bytes`` those of the largest tensor.
    """

    count = numbers = largest = bytes = largest_bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
        result = function(*args, **(kwargs or {}))
        self.count += 1
        given = storages((args, kwargs))
        for value in tree_leaves(result):
            size = value.numel() if isinstance(value, Tensor) else 0
            self.numbers += size
            self.largest = max(self.largest, size)
        for place, size in storages(result).items():
            if place not in given:  # no view
                self.bytes += size
                self.largest_bytes = max(self.largest_bytes, size)
        return result


def storages(values: object) -> dict[int, int]:
    """Return where the tensors among these values are stored, and in how many bytes."""
    stored = [leaf.untyped_storage() for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
    return {storage.data_ptr(): storage.nbytes() for storage in stored}
