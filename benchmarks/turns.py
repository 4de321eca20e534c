"""Functions timed in turns, so that other work on the machine slows all of them alike."""

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import TypeVar

import torch

Key = TypeVar("Key")


def seconds_in_turns(
    calls: Mapping[Key, Callable[[], object]],
    rounds: int,
    *,
    warm_up: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Key, list[float]]:
    """Return the seconds of every call in each round, after rounds that do not count."""
    times: dict[Key, list[float]] = {key: [] for key in calls}
    for turn in range(-warm_up, rounds):
        for key, call in calls.items():
            synchronise()
            start = clock()
            call()
            synchronise()
            if turn >= 0:
                times[key].append(clock() - start)
    return times


def synchronise() -> None:
    """Wait for the GPU, if it is used."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def spread(times: list[float]) -> dict[str, float]:
    """Return the median, the shortest and the longest time, in milliseconds as they are given."""
    return {"ms": median(times), "ms_min": min(times), "ms_max": max(times)}


def median_ratio(times: list[float], reference: list[float]) -> float:
    """Return the median over rounds of how many times as long as the reference a call took."""
    return median(a / b for a, b in zip(times, reference, strict=True))
