"""Step times that were measured separately from the runs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from ..records import Row


@dataclass(frozen=True)
class StepTimes:
    """Milliseconds per training step, measured separately with the machine to itself.

    Attributes:
        milliseconds: By problem (see :func:`catlog_experiments.report.runs.problem_of`) and method.

    >>> sums = {"problem": "addition, 16 digits", "method": "RLOO-F", "ms": 0.4}
    >>> times = StepTimes.from_rows([sums, {"method": "RLOO-F", "ms": 2.2}])
    >>> times.get("addition, 16 digits", "RLOO-F"), times.get("dvae", "RLOO-F")
    (0.4, 2.2)
    >>> times.covers("optimisation"), bool(StepTimes())
    (False, False)
    """

    milliseconds: Mapping[tuple[str, str], float] = field(default_factory=dict)

    @classmethod
    def from_rows(cls, rows: Iterable[Row]) -> Self:
        """Return the step times of a table with the columns problem, method and ms.

        A row without a problem belongs to the autoencoder with bits, unless another row names it.
        """
        named: dict[tuple[str, str], float] = {}
        unnamed: dict[tuple[str, str], float] = {}
        for row in rows:
            if not row.get("method") or not isinstance(row.get("ms"), int | float):
                raise ValueError(
                    "--step-times: the columns method and ms (a number) are needed, "
                    f"but a line has {row}."
                )
            table = named if row.get("problem") else unnamed
            table[str(row.get("problem") or "dvae"), str(row["method"])] = float(row["ms"])
        return cls(unnamed | named)

    def get(self, problem: str, method: str) -> float | None:
        """Return the milliseconds of one step, or None if they were not measured."""
        return self.milliseconds.get((problem, method))

    def covers(self, problem: str) -> bool:
        """Return whether any method was measured on the problem."""
        return any(measured == problem for measured, _ in self.milliseconds)

    def __bool__(self) -> bool:
        return bool(self.milliseconds)


NO_STEP_TIMES = StepTimes()
