"""Runs: one process and one file each."""

import json
import multiprocessing
import platform
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ..tables import Row
from .racers import Racer
from .races import RACES, measured, started

WARM_UP = 3


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        race, racer, seed: what is trained, with which estimator (a label), from which start.
        target: the level at which it stops; None: only at the limit.
        limit: CPU seconds of training after which it stops.
        every: CPU seconds of training between two measurements.
    """

    race: str
    racer: str
    seed: int
    target: float | None
    limit: float
    every: float

    def path(self, folder: Path) -> Path:
        name = re.sub(r"\W+", "-", self.racer).strip("-")
        return folder / self.race / f"{name}-seed-{self.seed}.jsonl"

    def has_reached(self, value: float) -> bool:
        """Return whether a value is the target or better."""
        if self.target is None:
            return False
        return value >= self.target if RACES[self.race].is_rising else value <= self.target


@dataclass(frozen=True)
class Record:
    """What the file of a run holds.

    Attributes:
        head: the run's fields, the processor and the version of torch.
        curve: a row per measurement: step, seconds, value.
        is_finished: whether the run came to its end.
    """

    head: Row
    curve: list[Row]
    is_finished: bool


def read_record(path: Path) -> Record | None:
    """Return the record in a file; None if there is no file, or nothing in it."""
    if not path.exists():
        return None
    lines: list[Row] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:  # the run was killed while it wrote
            break
    if not lines:
        return None
    curve = [line for line in lines[1:] if "step" in line]
    return Record(lines[0], curve, bool(lines[-1].get("is_finished")))


def is_done(run: Run, folder: Path) -> bool:
    """Return whether the folder holds this run, with the same settings, to its end."""
    record = read_record(run.path(folder))
    return (
        record is not None
        and record.is_finished
        and all(record.head.get(name) == value for name, value in asdict(run).items())
    )


def train(run: Run, folder: Path) -> Path:
    """Train to the end of the run, write its file, and return the file's path."""
    torch.set_num_threads(1)
    racer = Racer.parsed(run.racer)
    rehearsal = started(run.race, racer, run.seed)  # the first steps of a process are slow
    for i in range(WARM_UP):
        rehearsal.step(i)
    task = started(run.race, racer, run.seed)
    path = run.path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:

        def write(row: Row) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()

        write({**asdict(run), "cpu": processor(), "torch": torch.__version__})
        step, seconds, value = 0, 0.0, measured(task)
        write({"step": step, "seconds": seconds, "value": value})
        while seconds < run.limit and not run.has_reached(value):
            begin, took = time.process_time(), 0.0
            while took < run.every:
                task.step(step)
                step += 1
                took = time.process_time() - begin
            seconds += took
            value = measured(task)
            write({"step": step, "seconds": seconds, "value": value})
        write({"is_finished": True})
    return path


def processor() -> str:
    """Return the name of the processor."""
    path = Path("/proc/cpuinfo")
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    match = re.search(r"model name\s*: (.*)", text)
    return match[1].strip() if match else platform.machine()


def in_processes(
    jobs: int, tasks: Iterator[tuple[Callable[..., object], tuple[object, ...]]], once: bool = False
) -> Iterator[tuple[tuple[object, ...], Future[object]]]:
    """Yield the arguments and the future of every task that ended.

    Tasks are taken from the iterator when a process is free. With ``once``, every task has a
    process of its own.
    """
    context = multiprocessing.get_context("spawn")
    tasks_per_child = 1 if once else None
    with ProcessPoolExecutor(jobs, context, max_tasks_per_child=tasks_per_child) as pool:
        pending: dict[Future[object], tuple[object, ...]] = {}
        while True:
            while len(pending) < jobs and (task := next(tasks, None)) is not None:
                function, arguments = task
                pending[pool.submit(function, *arguments)] = arguments
            if not pending:
                return
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                yield pending.pop(future), future


def execute(runs: list[Run], folder: Path, jobs: int, until: float) -> int:
    """Make the runs that the folder does not hold and return how many failed."""
    begin = time.monotonic()
    missing = [run for run in runs if not is_done(run, folder)]
    print(f"{len(runs)} runs, {len(missing)} to do", flush=True)

    def tasks() -> Iterator[tuple[Callable[..., object], tuple[object, ...]]]:
        for run in missing:
            if time.monotonic() - begin < until:
                yield train, (run, folder)

    ended = failed = 0
    for (run, _), future in in_processes(jobs, tasks()):
        ended += 1
        assert isinstance(run, Run)
        name = f"{run.race} {run.racer} seed {run.seed}"
        if (error := future.exception()) is not None:
            failed += 1
            print(f"{name} failed: {type(error).__name__}: {error}", flush=True)
            continue
        record = read_record(run.path(folder))
        assert record is not None
        last = record.curve[-1]
        print(
            f"{name}: {last['value']:.4g} after {last['seconds']:.1f} CPU s, {last['step']} steps",
            flush=True,
        )
    if ended < len(missing):
        print(f"{len(missing) - ended} runs were not started: the time was up", flush=True)
    return failed
