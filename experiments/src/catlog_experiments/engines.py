"""The engines of a sweep: one run after another, processes on this machine, or a Ray cluster.

An engine takes jobs and yields the outcome of each one that has ended. It calls ``tick``
regularly.
"""

import importlib
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import torch

from .run import execute
from .run_folder import Notify
from .settings import Settings
from .workers import Died, Workers

TICK_EVERY = 0.5  # seconds
STOP_WITHIN = 60.0  # seconds that cancelled tasks of Ray have to write their checkpoints

Tick = Callable[[], None]


@dataclass(frozen=True)
class Outcome:
    """The end of a run.

    Attributes:
        folder: the folder of the run.
        problem: what went wrong; None if the run is complete.
        notes: what the user should know in any case.
    """

    folder: Path
    problem: str | None = None
    notes: tuple[str, ...] = ()


Outcomes = Generator[Outcome, None, None]


@dataclass(frozen=True)
class Job:
    """One run, which can be executed in any process.

    Attributes:
        config: the experiment.
        folder: the folder of the run.
        deadline: the time, in seconds since the epoch, after which it must stop.
        checkpoint_every: seconds between checkpoints.
    """

    config: Settings
    folder: Path
    deadline: float | None = None
    checkpoint_every: float = 30.0

    def __call__(self, tick: Tick = lambda: None, patience: float | None = None) -> Outcome:
        """Start or resume the run."""
        notes: list[str] = []
        return Outcome(self.folder, self._run(tick, notes.append, patience), tuple(notes))

    def _run(self, tick: Tick, notify: Notify, patience: float | None) -> str | None:
        """Run, and return what went wrong, or None."""
        if self._is_late():
            return f"{self.folder}: not started before the deadline"

        def watch(done: int, total: int, row: object) -> None:
            tick()
            if self._is_late():
                raise _DeadlineError

        try:
            execute(
                self.config,
                self.folder,
                resume=True,
                checkpoint_every=self.checkpoint_every,
                watch=watch,
                notify=notify,
                patience=patience,
            )
        except _DeadlineError:
            return f"{self.folder}: stopped by the deadline"
        except Exception as error:
            return f"{self.folder}: {type(error).__name__}: {error}"
        return None

    def _is_late(self) -> bool:
        return self.deadline is not None and time.time() >= self.deadline


class _DeadlineError(Exception):
    pass


def _run_with_threads(job: Job, threads: int, patience: float | None = None) -> Outcome:
    torch.set_num_threads(threads)
    return job(patience=patience)


def _died(job: Job, retries: int) -> Outcome:
    attempts = "" if retries == 0 else f", and so did those of {retries} more attempts"
    return Outcome(
        job.folder,
        f"{job.folder}: its process died (killed, or out of memory){attempts}. "
        "Run the same command again to continue.",
    )


def run_in_turn(jobs: list[Job], tick: Tick) -> Outcomes:
    """Run one job after another in this process; if one is killed, so is the sweep."""
    ticked_at = 0.0

    def tick_sometimes() -> None:
        nonlocal ticked_at
        if time.monotonic() > ticked_at + TICK_EVERY:
            tick()
            ticked_at = time.monotonic()

    for job in jobs:
        yield job(tick_sometimes)


def run_in_processes(jobs: list[Job], tick: Tick, processes: int, retries: int) -> Outcomes:
    """Run ``processes`` jobs at a time. If a process dies, its job is retried in a new process.

    Ctrl-C and SIGTERM are passed on: every run stops between two steps, at a checkpoint, and no
    further one starts.
    """
    threads = max(1, (os.cpu_count() or 1) // processes)  # more would compete for the cores
    waiting, by_folder, deaths = deque(jobs), {job.folder: job for job in jobs}, Counter[Path]()
    with Workers(min(processes, len(jobs)), _run_with_threads) as workers:
        while waiting or workers.busy:
            while waiting and workers.free:
                job = waiting.popleft()
                # Infinite patience: one Ctrl-C may arrive twice, from here and from the terminal.
                workers.submit(job.folder, job, threads, inf)
            for folder, outcome in workers.results(timeout=TICK_EVERY):
                deaths[folder] += isinstance(outcome, Died)
                if not isinstance(outcome, Died):
                    yield outcome
                elif deaths[folder] > retries:
                    yield _died(by_folder[folder], retries)
                else:
                    waiting.append(by_folder[folder])
            tick()


def run_on_ray(
    jobs: list[Job],
    tick: Tick,
    at_once: int | None,
    retries: int,
    address: str | None,
    cpus_per_run: int,
    gpus_per_run: float | None,
) -> Outcomes:
    """Run jobs as tasks of a Ray cluster, which restarts a task if its worker or machine is lost.

    Ctrl-C is passed on: every run stops between two steps, at a checkpoint.
    """
    if not jobs:
        return
    ray, joined = join_ray(address, num_cpus=None if at_once is None else at_once * cpus_per_run)
    gpus = ray.cluster_resources().get("GPU", 0)
    if gpus_per_run is None:
        gpus_per_run = 1.0 if gpus and jobs[0].config.device != "cpu" else 0.0
    if gpus_per_run and not gpus:
        raise ValueError(
            f"--gpus-per-run must be 0, but {gpus_per_run:g} was given, "
            "and the Ray cluster has no GPU."
        )
    remote = ray.remote(num_cpus=cpus_per_run, num_gpus=gpus_per_run, max_retries=retries)
    task = remote(_run_with_threads)
    waiting, running = deque(jobs), dict[Any, Job]()
    try:
        while waiting or running:
            while waiting and (at_once is None or len(running) < at_once):
                job = waiting.popleft()
                running[task.remote(job, cpus_per_run)] = job
            ended, _ = ray.wait(list(running), timeout=TICK_EVERY)
            for reference in ended:
                job = running.pop(reference)
                try:
                    yield ray.get(reference)
                except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError):
                    yield _died(job, retries)
                except ray.exceptions.RayError as error:
                    reason = str(error).splitlines()[0]
                    yield Outcome(job.folder, f"{job.folder}: {type(error).__name__}: {reason}")
            tick()
    finally:
        for reference in running:
            ray.cancel(reference)
        if running:
            ray.wait(list(running), num_returns=len(running), timeout=STOP_WITHIN)
        if joined:
            ray.shutdown()


def join_ray(address: str | None = None, **local: Any) -> tuple[Any, bool]:
    """Connect to a Ray cluster; return the module ray, and whether it was connected just now.

    The cluster is that at ``address`` (or RAY_ADDRESS), else one that is started on this machine
    with the settings ``local``.
    """
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise ImportError("Ray is not installed: pip install 'catlog[ray]'.") from error
    if ray.is_initialized():
        return ray, False
    address = address or os.environ.get("RAY_ADDRESS")
    settings: dict[str, Any] = {"include_dashboard": False, **local}
    if address:
        settings = {"address": address}
    ray.init(log_to_driver=False, logging_level="error", **settings)
    return ray, True
