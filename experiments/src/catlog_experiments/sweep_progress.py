"""The progress of a sweep, read from the files of its runs."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from .run import folder_for
from .run_folder import Folder
from .settings import Settings


@dataclass(frozen=True)
class RunProgress:
    """The progress of one run.

    Attributes:
        experiment: the name of the experiment.
        path: the folder of the run.
        state: whether it waits, runs, is complete or ended before that.
        row: its last metrics.
        iterations: the number of iterations of the complete run, if known.
        seconds_left: the estimated time to its end, if known.
    """

    experiment: str
    path: Path
    state: Literal["waiting", "running", "done", "stopped"]
    row: dict[str, Any] | None
    iterations: int | None = None
    seconds_left: float | None = None

    @property
    def fraction(self) -> float:
        if self.state == "done":
            return 1.0
        return self.row["iteration"] / self.iterations if self.row and self.iterations else 0.0


def distinguish(configs: Sequence[Settings]) -> list[dict[str, str]]:
    """Return, for every different configuration, the settings in which they differ.

    Without a difference, it is the estimator.

    >>> from catlog_experiments import Addition
    >>> from catlog_experiments.sweep import grid
    >>> distinguish(grid(Addition(), ["digits=4,8", "samples=None,2"]))[1]
    {'samples': '2', 'digits': '4'}
    """
    different = list(dict.fromkeys(configs))
    names = [
        field.name
        for field in fields(different[0])
        if len({getattr(config, field.name) for config in different}) > 1
    ] or ["estimator"]
    return [{name: _short(getattr(config, name)) for name in names} for config in different]


def _short(value: object) -> str:
    return " ".join(value) if isinstance(value, tuple) else str(value)


class SweepProgress:
    """The progress of a sweep, read from the files of its runs, wherever they are executed."""

    def __init__(self, configs: Sequence[Settings], root: Path | str) -> None:
        self.started_at = time.time()
        self.experiments = {folder_for(config, root): config.name for config in configs}
        self.labels = dict(zip(self.experiments, distinguish(configs), strict=True))
        self._done: dict[Path, RunProgress] = {}
        self._stopped: set[Path] = set()
        self.initial_fraction = sum(run.fraction for run in self.runs())

    def runs(self) -> list[RunProgress]:
        """Return the present progress of all runs."""
        return [
            self._done.get(path) or self._read(path, name)
            for path, name in self.experiments.items()
        ]

    def stop(self, folder: Path) -> None:
        """Record that the run in this folder ended before it was complete."""
        self._stopped.add(folder.resolve())

    def seconds_left(self, runs: list[RunProgress]) -> float | None:
        """Estimate the time until all runs are done, at the speed so far."""
        fraction = sum(run.fraction for run in runs)
        if fraction <= self.initial_fraction or fraction == len(runs):
            return None
        elapsed = time.time() - self.started_at
        return elapsed * (len(runs) - fraction) / (fraction - self.initial_fraction)

    def _read(self, path: Path, name: str) -> RunProgress:
        folder = Folder(path)
        if (summary := folder.summary()) is not None:
            self._done[path] = RunProgress(name, path, "done", summary)
            return self._done[path]
        row, sessions = folder.last_metrics(), folder.sessions()
        if path.resolve() in self._stopped:
            return RunProgress(name, path, "stopped", row)
        if not sessions:
            return RunProgress(name, path, "waiting", row)
        session = sessions[-1]
        total = session["iterations"]
        began = datetime.fromisoformat(session["began"]).timestamp()
        if began < self.started_at:
            return RunProgress(name, path, "waiting", row, total)
        seconds_left = None
        if row is not None and row["iteration"] > session["iteration"]:
            logged = folder.metrics_path.stat().st_mtime
            speed = (row["iteration"] - session["iteration"]) / max(1e-3, logged - began)
            seconds_left = (total - row["iteration"]) / speed - (time.time() - logged)
            seconds_left = max(0.0, seconds_left)
        return RunProgress(name, path, "running", row, total, seconds_left)
