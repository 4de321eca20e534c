"""The time of a call, on the device too."""

from collections.abc import Callable
from typing import TypeVar

import torch

Clock = Callable[[], float]
Result = TypeVar("Result")


def timed(call: Callable[[], Result], clock: Clock, device: torch.device) -> tuple[float, Result]:
    """Return the seconds that a call takes until the device has done its work, and its result."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = clock()
    result = call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - start, result
