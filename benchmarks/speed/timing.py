"""The settings of a run, and timing in turns."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from ..tables import Row
from ..turns import synchronise


@dataclass(frozen=True)
class Bench:
    """Where and how to measure.

    Attributes:
        device: "cpu" or "cuda".
        repeats: measurements of every row.
        compile: on a CPU, measure compiled steps as well.
        quick: use tiny sizes.
        digits: the sizes of the addition.
        step_times: rows of step_times_<device>.csv, which `catlog report` reads.
    """

    device: str = "cpu"
    repeats: int = 11
    compile: bool = False
    quick: bool = False
    digits: tuple[int, ...] = (16,)
    step_times: list[Row] = field(default_factory=list)

    @property
    def cuda(self) -> bool:
        return self.device == "cuda"

    @property
    def modes(self) -> list[str]:
        return ["eager", "compiled"] if self.cuda or self.compile else ["eager"]

    def turns(
        self, calls: Mapping[str, Callable[[], object]], *, least: float = 0.0
    ) -> dict[str, list[float]]:
        """Return the milliseconds per call of every function, ``repeats`` times in turn.

        A first round does not count. A measurement of a short function makes as many calls as fit
        into ``least`` seconds, at most 100.
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
        """Return the milliseconds per call."""
        synchronise()
        start = time.perf_counter()
        for _ in range(count):
            call()
        synchronise()
        return 1000 * (time.perf_counter() - start) / count

    def peak_mib(self, call: Callable[[], object]) -> float | None:
        """Return the peak of a call's allocations on the GPU; None on a CPU."""
        if not self.cuda:
            return None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
