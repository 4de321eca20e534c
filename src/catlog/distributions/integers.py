"""Integers that are known in Python, as a tensor."""

from collections.abc import Sequence

import torch
from jaxtyping import Int64
from torch import Tensor


def integers(values: Sequence[int], device: torch.device) -> Int64[Tensor, " count"]:
    """Return the values as a tensor, without a copy from the host to a GPU.

    Such a copy waits for the GPU, and a CUDA graph cannot capture it. So runs of equal values, and
    of values that count upwards, are made where they are needed.

    >>> integers([3, 3, 3, 0, 1, 2, 7], torch.device("cpu"))
    tensor([3, 3, 3, 0, 1, 2, 7])
    """
    if device.type == "cpu":
        return torch.tensor(values, dtype=torch.int64)
    runs = [
        torch.arange(first, first + count, device=device)
        if step
        else torch.full((count,), first, dtype=torch.int64, device=device)
        for first, step, count in _runs(values)
    ]
    return torch.cat(runs) if runs else torch.zeros(0, dtype=torch.int64, device=device)


def _runs(values: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return (first value, step, length) of the runs in which all steps are 0, or all are 1.

    >>> _runs([3, 3, 3, 0, 1, 2, 7])
    [(3, 0, 3), (0, 1, 3), (7, 0, 1)]
    """
    runs: list[tuple[int, int, int]] = []
    for value in values:
        if runs:
            first, step, count = runs[-1]
            if count == 1 and value - first in (0, 1):
                runs[-1] = (first, value - first, 2)
                continue
            if count > 1 and value == first + step * count:
                runs[-1] = (first, step, count + 1)
                continue
        runs.append((value, 0, 1))
    return runs
