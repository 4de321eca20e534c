"""What all sections share: the settings of a run, and timing in turns."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

Row = dict[str, Any]


@dataclass(frozen=True)
class Bench:
    """Where and how to measure."""

    device: str = "cpu"
    repeats: int = 11
    compile: bool = False
    quick: bool = False
    digits: tuple[int, ...] = (16,)
    output: Path | None = None
    step_times: list[Row] = field(default_factory=list)
    """Rows for results/speed/step_times_<device>.csv, which catlog's report reads; sections add theirs."""

    @property
    def cuda(self) -> bool:
        return self.device == "cuda"

    @property
    def modes(self) -> list[str]:
        return ["eager", "compiled"] if self.cuda or self.compile else ["eager"]

    def turns(
        self, calls: Mapping[str, Callable[[], object]], *, least: float = 0.0
    ) -> dict[str, list[float]]:
        """Milliseconds per call of every function, ``repeats`` times in turn, after a first round that does not count.

        With ``least`` seconds, short functions are called several times per measurement, to last so long.
        """
        inner = {}
        for name, call in calls.items():
            self.timed(call, 1)
            inner[name] = max(1, min(100, int(least / max(1e-6, self.timed(call, 1) / 1000))))
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(self.repeats):
            for name, call in calls.items():
                times[name].append(self.timed(call, inner[name]))
        return times

    def timed(self, call: Callable[[], object], count: int) -> float:
        """Milliseconds per call."""
        self.synchronise()
        start = time.perf_counter()
        for _ in range(count):
            call()
        self.synchronise()
        return 1000 * (time.perf_counter() - start) / count

    def synchronise(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def peak_mib(self, call: Callable[[], object]) -> float | None:
        """What a call holds on the GPU at its highest, beside what was there before it; None on a CPU."""
        if not self.cuda:
            return None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20


def spread(times: list[float]) -> Row:
    return {"ms": statistics.median(times), "ms_min": min(times), "ms_max": max(times)}
