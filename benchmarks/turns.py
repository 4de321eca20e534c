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
    least: float = 0.0,
) -> dict[Key, list[float]]:
    """Return the seconds of every call in each round, after rounds that do not count.

    A measurement of a short call makes as many calls as fit into ``least`` seconds, at most 100,
    and is their mean.
    """
    times: dict[Key, list[float]] = {key: [] for key in calls}
    counts = dict.fromkeys(calls, 1)
    for turn in range(-warm_up, rounds):
        for key, call in calls.items():
            synchronise()
            start = clock()
            for _ in range(counts[key] if turn >= 0 else 1):
                call()
            synchronise()
            seconds = clock() - start
            if turn >= 0:
                times[key].append(seconds / counts[key])
            else:
                counts[key] = max(1, min(100, int(least / max(1e-6, seconds))))
    return times


def synchronise() -> None:
    """Wait for the GPU, if it is used."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def spread(times: list[float]) -> dict[str, float]:
    """Return the median, the shortest and the longest of some seconds, in milliseconds."""
    ms = [1000 * seconds for seconds in times]
    return {"ms": median(ms), "ms_min": min(ms), "ms_max": max(ms)}


def median_ratio(times: list[float], reference: list[float]) -> float:
    """Return the median over rounds of how many times as long as the reference a call took."""
    return median(a / b for a, b in zip(times, reference, strict=True))
