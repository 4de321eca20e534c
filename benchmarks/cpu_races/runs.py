"""Runs: one process each, and the rows that they leave."""

import multiprocessing
import platform
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import torch

from ..tables import Row, Table, selected
from .curves import seconds_to, thinned
from .races import RACES, measured, started

KEY = ("race", "method", "seed")
WARM_UP = 3
CURVE_POINTS = 16  # of a run in the file of curves, which stays below 300 kB


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        race, method, seed: what is trained, with which estimator (a label), from which start.
        target: the level at which it stops; None: only at the limit.
        limit: CPU seconds of training after which it stops.
        every: CPU seconds of training between two measurements.
    """

    race: str
    method: str
    seed: int
    target: float | None
    limit: float
    every: float

    @property
    def key(self) -> Row:
        return {"race": self.race, "method": self.method, "seed": self.seed}

    def has_reached(self, value: float) -> bool:
        """Return whether a value is the target or better."""
        if self.target is None:
            return False
        return value >= self.target if RACES[self.race].is_rising else value <= self.target

    def is_done(self, rows: list[Row]) -> bool:
        """Return whether rows hold this run: at its target, or trained for as long."""
        same = selected(rows, **self.key, target=self.target)
        return any(row.get("seconds") is not None or row["trained"] >= self.limit for row in same)

    def summary(self, curve: list[Row]) -> Row:
        """Return the row of the run: `seconds` to the target, none if it was not reached."""
        last, reached = curve[-1], None
        if self.target is not None:
            reached = seconds_to(curve, self.target, RACES[self.race].is_rising)
        row = {**self.key, "target": self.target, "seconds": reached, "trained": last["seconds"]}
        row |= {"steps": last["step"], "value": last["value"]}
        return row | {"cpu": processor(), "torch": torch.__version__}


def train(run: Run) -> list[Row]:
    """Train to the end of the run and return its curve: step, seconds and value."""
    torch.set_num_threads(1)
    rehearsal = started(run.race, run.method, run.seed)  # the first steps of a process are slow
    for i in range(WARM_UP):
        rehearsal.step(i)
    task = started(run.race, run.method, run.seed)
    step, seconds, value = 0, 0.0, measured(task)
    curve = [{"step": step, "seconds": seconds, "value": value}]
    while seconds < run.limit and not run.has_reached(value):
        begin, took = time.process_time(), 0.0
        while took < run.every:
            task.step(step)
            step += 1
            took = time.process_time() - begin
        seconds += took
        value = measured(task)
        curve.append({"step": step, "seconds": seconds, "value": value})
    return curve


def processor() -> str:
    """Return the name of the processor."""
    path = Path("/proc/cpuinfo")
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    match = re.search(r"model name\s*: (.*)", text)
    return match[1].strip() if match else platform.machine()


def in_processes(
    function: Callable[..., Any], calls: Iterable[tuple[Any, ...]], jobs: int, until: float = inf
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the arguments and the result of every call, each in a process of its own.

    ``jobs`` of them run at a time. None is started later than ``until`` seconds from now. A call
    that fails does not stop the others; the program then exits with 1 after the last one.
    """
    begin, waiting, failed = time.monotonic(), list(calls), 0
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, max_tasks_per_child=1) as pool:
        pending: dict[Future[Any], tuple[Any, ...]] = {}
        while True:
            while waiting and len(pending) < jobs and time.monotonic() - begin < until:
                arguments = waiting.pop(0)
                pending[pool.submit(function, *arguments)] = arguments
            if not pending:
                break
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                arguments = pending.pop(future)
                if (error := future.exception()) is None:
                    yield arguments, future.result()
                else:
                    failed += 1
                    print(f"{arguments} failed: {type(error).__name__}: {error}", flush=True)
    if waiting:
        print(f"{len(waiting)} runs were not started: the time was up", flush=True)
    if failed:
        sys.exit(1)


def execute(runs: list[Run], table: Table, curves: Table, jobs: int, until: float) -> None:
    """Make the runs that the table does not hold."""
    missing = [run for run in runs if not run.is_done(table.rows)]
    print(f"{len(runs)} runs, {len(missing)} to do", flush=True)
    for (run,), curve in in_processes(train, [(run,) for run in missing], jobs, until):
        table.add([run.summary(curve)])
        curves.add([{**run.key, **row} for row in thinned(curve, CURVE_POINTS)])
        last = curve[-1]
        print(
            f"{run.race} {run.method} seed {run.seed}: {last['value']:.4g} after "
            f"{last['seconds']:.1f} CPU s, {last['step']} steps",
            flush=True,
        )
