"""Where the runs of a sweep go: here, one after another; here, in processes; or to a Ray cluster.

An engine takes jobs and gives, for each that ended, its outcome. It calls ``tick`` now and then.
"""

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import torch

from ..parallel.workers import join_ray
from .run import execute
from .run_folder import Tell
from .workers import Died, Workers

Tick = Callable[[], None]


@dataclass(frozen=True)
class Outcome:
    """How a run ended: what went wrong (None: nothing), and what should be known of it anyway."""

    problem: str | None = None
    notes: tuple[str, ...] = ()


Outcomes = Generator[Outcome, None, None]


@dataclass(frozen=True)
class Job:
    """One run, to be executed wherever; ``until``: the time after which it must stop."""

    config: Any
    folder: Path
    until: float | None = None
    checkpoint_every: float = 30.0

    def __call__(self, tick: Tick = lambda: None, patience: float | None = None) -> Outcome:
        """Begin or resume the run."""
        notes: list[str] = []
        return Outcome(self._problem(tick, notes.append, patience), tuple(notes))

    def _problem(self, tick: Tick, tell: Tell, patience: float | None) -> str | None:

        def watch(done: int, total: int, row: object) -> None:
            tick()
            if self.until is not None and time.time() > self.until:
                raise _TooLateError

        try:
            if self.until is None or time.time() < self.until:
                execute(
                    self.config,
                    self.folder,
                    resume=True,
                    checkpoint_every=self.checkpoint_every,
                    watch=watch,
                    tell=tell,
                    patience=patience,
                )
                return None
            return f"{self.folder}: not begun before the deadline"
        except _TooLateError:
            return f"{self.folder}: cut by the deadline"
        except Exception as error:
            return f"{self.folder}: {type(error).__name__}: {error}"


class _TooLateError(Exception):
    pass


def _with_threads(job: Job, threads: int, patience: float | None = None) -> Outcome:
    torch.set_num_threads(threads)
    return job(patience=patience)


def _died(job: Job, retries: int) -> Outcome:
    often = "" if retries == 0 else f", and so did those of {retries} more attempts"
    return Outcome(
        f"{job.folder}: its process died (killed, or out of memory){often}. Run the same command again to go on."
    )


def in_turn(todo: list[Job], tick: Tick) -> Outcomes:
    """In this process, which ends with a run that is killed."""
    told_at = 0.0

    def sometimes() -> None:
        nonlocal told_at
        if time.monotonic() > told_at + 0.5:
            tick()
            told_at = time.monotonic()

    for job in todo:
        yield job(sometimes)


def in_processes(todo: list[Job], tick: Tick, jobs: int, retries: int) -> Outcomes:
    """``jobs`` at a time. Where the process of one dies, that run alone is tried again, in a new process.

    Ctrl-C (or SIGTERM) is passed on: every run stops between two steps, at a checkpoint, and no other begins.
    """
    threads = max(1, (os.cpu_count() or 1) // jobs)  # more would have the runs wait for each other
    waiting, named, deaths = deque(todo), {job.folder: job for job in todo}, Counter[Path]()
    with Workers(min(jobs, len(todo)), _with_threads) as workers:
        while waiting or workers.busy:
            while waiting and workers.free:
                job = waiting.popleft()
                workers.give(
                    job.folder, job, threads, inf
                )  # a stop may come twice: from here and the terminal
            for folder, outcome in workers.results(timeout=0.5):
                deaths[folder] += isinstance(outcome, Died)
                if not isinstance(outcome, Died):
                    yield outcome
                elif deaths[folder] > retries:
                    yield _died(named[folder], retries)
                else:
                    waiting.append(named[folder])
            tick()


def on_ray(
    todo: list[Job],
    tick: Tick,
    jobs: int | None,
    retries: int,
    address: str | None,
    cpus_per_run: int,
    gpus_per_run: float | None,
) -> Outcomes:
    """As tasks of a Ray cluster, which starts a task again where its worker or its machine was lost.

    Ctrl-C is passed on: every run stops between two steps, at a checkpoint.
    """
    if not todo:
        return
    ray, joined = join_ray(address, num_cpus=None if jobs is None else jobs * cpus_per_run)
    gpus = ray.cluster_resources().get("GPU", 0)
    if gpus_per_run is None:
        gpus_per_run = 1.0 if gpus and todo[0].config.device != "cpu" else 0.0
    if gpus_per_run and not gpus:
        raise ValueError(
            f"--gpus-per-run {gpus_per_run:g} was given, but the Ray cluster has no GPU."
        )
    task = ray.remote(num_cpus=cpus_per_run, num_gpus=gpus_per_run, max_retries=retries)(
        _with_threads
    )
    waiting, running = deque(todo), dict[Any, Job]()
    try:
        while waiting or running:
            while waiting and (jobs is None or len(running) < jobs):
                job = waiting.popleft()
                running[task.remote(job, cpus_per_run)] = job
            done, _ = ray.wait(list(running), timeout=0.5)
            for each in done:
                job = running.pop(each)
                try:
                    yield ray.get(each)
                except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError):
                    yield _died(job, retries)
                except ray.exceptions.RayError as error:
                    yield Outcome(
                        f"{job.folder}: {type(error).__name__}: {str(error).splitlines()[0]}"
                    )
            tick()
    finally:
        for each in running:
            ray.cancel(each)
        if running:
            ray.wait(list(running), num_returns=len(running), timeout=60)
        if joined:
            ray.shutdown()
