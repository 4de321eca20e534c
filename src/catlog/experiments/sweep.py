"""A grid of runs: what is done is skipped, what was cut is resumed, several at a time where asked."""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, fields, replace
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import Any, Literal

from .engines import Job, in_processes, in_turn, on_ray
from .ranges import Count, Counted, NotNegative, annotations, check, converted
from .ranks import launched
from .run import folder_for, warn
from .run_folder import Folder, Tell


def grid(base: Any, axes: list[str]) -> list[Any]:
    """Every combination of the axes, each given as ``field=value,value,...``; the last axis turns fastest.

    Of ``options`` a value may hold several, with spaces between them.

    >>> from catlog.experiments import Addition
    >>> [(each.digits, each.seed) for each in grid(Addition(), ["digits=4,8", "seed=0,1"])]
    [(4, 0), (4, 1), (8, 0), (8, 1)]
    """
    known, hints = [field.name for field in fields(base)], annotations(type(base))
    values: dict[str, list[Any]] = {}
    for axis in axes:
        name, equals, given = axis.partition("=")
        if not equals or name not in known:
            raise ValueError(
                f"--grid: {axis!r} must be field=value,value,... with a field of {', '.join(known)}."
            )
        if name in values:
            raise ValueError(
                f"--grid: {name} is given twice. Give all of its values in one axis: {name}=value,value,..."
            )
        values[name] = [
            converted(f"--grid: {name}", each, hints[name]) for each in given.split(",")
        ]
        if len(set(values[name])) < len(values[name]):
            raise ValueError(f"--grid: {axis!r} has a value twice.")
    return [
        replace(base, **dict(zip(values, chosen, strict=True)))
        for chosen in product(*values.values())
    ]


def sweep(
    configs: list[Any],
    root: Path | str = "runs",
    *,
    engine: Literal["local", "ray"] = "local",
    jobs: int | None = None,
    address: str | None = None,
    cpus_per_run: int = 1,
    gpus_per_run: float | None = None,
    retries: int = 3,
    deadline: float | None = None,
    checkpoint_every: float = 30.0,
    watch: Callable[[list[Any]], None] = lambda configs: None,
    tell: Tell = warn,
) -> list[str]:
    """Run all ``configs`` and return what went wrong (nothing, if all is well).

    Runs are idempotent: their folders follow from their configurations, and a lock in the folder keeps a second process out.
    A run whose process died is tried again, ``retries`` times, from its last checkpoint. ``deadline`` (seconds from now) stops
    the sweep: no new run begins after it, and a running one is cut at its last checkpoint. ``watch`` is called now and then, and
    ``tell`` gets what should be known of runs that are resumed.

    engine: "local" runs here: one after another in this process, or ``jobs`` at a time in processes of their own, where one that
    dies does not harm the others. They stop at Ctrl-C, and when this process is killed. "ray" runs on a Ray cluster: the one at
    ``address`` (or RAY_ADDRESS), which must see the same ``root``, or one started here for ``jobs`` runs at a time.
    """
    if launched() > 1:
        raise ValueError(
            "A sweep is started without torchrun: its runs are processes of their own (--jobs, --engine ray)."
        )
    if engine == "local" and (address is not None or gpus_per_run is not None):
        raise ValueError(
            "--address and --gpus-per-run need --engine ray: runs that are local share what is here."
        )
    check("--jobs", jobs, Count | None)
    check("--cpus-per-run", cpus_per_run, Count)
    check("--gpus-per-run", gpus_per_run, NotNegative | None)
    check("--retries", retries, Counted)
    check("--deadline", deadline, NotNegative | None)
    check("--checkpoint-every", checkpoint_every, NotNegative)
    until = None if deadline is None else time.time() + deadline
    folders = {
        folder_for(config, Path(root).resolve()): config for config in configs
    }  # equal ones once
    todo = [
        Job(config, path, until, checkpoint_every)
        for path, config in folders.items()
        if not Folder(path).finished()
    ]
    if engine == "ray":
        outcomes = on_ray(
            todo, lambda: watch(configs), jobs, retries, address, cpus_per_run, gpus_per_run
        )
    elif jobs is None:
        outcomes = in_turn(todo, lambda: watch(configs))
    else:
        outcomes = in_processes(todo, lambda: watch(configs), jobs, retries)
    problems = []
    with closing(outcomes):
        for outcome in outcomes:
            problems += [] if outcome.problem is None else [outcome.problem]
            for note in outcome.notes:
                tell(note)
    return problems


@dataclass(frozen=True)
class Progress:
    """How far a run is: its last metrics, the number of its iterations, and the seconds it still needs, where they are known."""

    experiment: str
    path: Path
    state: Literal["waiting", "running", "done"]
    row: dict[str, Any] | None
    iterations: int | None = None
    left: float | None = None

    @property
    def fraction(self) -> float:
        if self.state == "done":
            return 1.0
        return self.row["iteration"] / self.iterations if self.row and self.iterations else 0.0


class Standing:
    """A sweep seen from outside, by what its runs write, wherever they are."""

    def __init__(self, configs: list[Any], root: Path | str) -> None:
        self.began = time.time()
        self.folders = {folder_for(config, root): config.name for config in configs}
        self._done: dict[Path, Progress] = {}
        self.at_first = sum(run.fraction for run in self.look())

    def look(self) -> list[Progress]:
        return [
            self._done.get(path) or self._look(path, name) for path, name in self.folders.items()
        ]

    def left(self, runs: list[Progress]) -> float | None:
        """Seconds until all are done, at the speed so far."""
        now = sum(run.fraction for run in runs)
        if now <= self.at_first or now == len(runs):
            return None
        return (time.time() - self.began) * (len(runs) - now) / (now - self.at_first)

    def _look(self, path: Path, name: str) -> Progress:
        folder = Folder(path)
        if (summary := folder.summary()) is not None:
            self._done[path] = Progress(name, path, "done", summary)
            return self._done[path]
        row, sessions = folder.last(), folder.sessions()
        if not sessions:
            return Progress(name, path, "waiting", row)
        session = sessions[-1]
        began, total = datetime.fromisoformat(session["began"]).timestamp(), session["iterations"]
        if began < self.began:
            return Progress(name, path, "waiting", row, total)
        left = None
        if row is not None and row["iteration"] > session["iteration"]:
            logged = folder.metrics_path.stat().st_mtime
            speed = (row["iteration"] - session["iteration"]) / max(1e-3, logged - began)
            left = max(0.0, (total - row["iteration"]) / speed - (time.time() - logged))
        return Progress(name, path, "running", row, total, left)
