"""The settings of a run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from ..tables import Row
from ..turns import seconds_in_turns


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
        """Return the seconds per call of every function, ``repeats`` times in turn."""
        return seconds_in_turns(calls, self.repeats, warm_up=2, least=least)

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
