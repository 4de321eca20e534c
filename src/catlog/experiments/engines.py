"""Where the runs of a sweep go: here, one after another; here, in processes; or to a Ray cluster.

An engine takes jobs and gives, for each that ended, what went wrong with it (None: nothing). It calls ``tick`` now and then.
"""

import multiprocessing
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..pool import joined_ray
from .run import execute

Tick = Callable[[], None]


@dataclass(frozen=True)
class Job:
    """One run, to be executed wherever; ``until``: the time after which it must stop."""

    config: Any
    folder: Path
    until: float | None = None
    checkpoint_every: float = 30.0

    def __call__(self, tick: Tick = lambda: None) -> str | None:
        """Begin or resume the run; the reason why it failed, if it did."""

        def watch(done: int, total: int, row: object) -> None:
            tick()
            if self.until is not None and time.time() > self.until:
                raise _TooLateError

        try:
            if self.until is None or time.time() < self.until:
                execute(self.config, self.folder, resume=True, checkpoint_every=self.checkpoint_every, watch=watch)
                return None
            return f"{self.folder}: not begun before the deadline"
        except _TooLateError:
            return f"{self.folder}: cut by the deadline"
        except Exception as error:
            return f"{self.folder}: {type(error).__name__}: {error}"


class _TooLateError(Exception):
    pass


def _with_threads(job: Job, threads: int) -> str | None:
    torch.set_num_threads(threads)
    return job()


def _died(job: Job, retries: int) -> str:
    often = "" if retries == 0 else f", and so did those of {retries} more attempts"
    return f"{job.folder}: its process died (killed, or out of memory){often}. Run the same command again to go on."


def in_turn(todo: list[Job], tick: Tick) -> Iterator[str | None]:
    """In this process."""
    told_at = 0.0

    def sometimes() -> None:
        nonlocal told_at
        if time.monotonic() > told_at + 0.5:
            tick()
            told_at = time.monotonic()

    for job in todo:
        yield job(sometimes)


def in_processes(todo: list[Job], tick: Tick, jobs: int, retries: int) -> Iterator[str | None]:
    """``jobs`` at a time. Where one process dies, concurrent.futures ends them all: those that were cut go on in new ones."""
    threads = max(1, (os.cpu_count() or 1) // jobs)  # more would have the runs wait for each other
    spawn = multiprocessing.get_context("spawn")
    for _ in range(retries + 1):
        with ProcessPoolExecutor(jobs, mp_context=spawn) as pool:
            pending: dict[Future[str | None], Job] = {pool.submit(_with_threads, job, threads): job for job in todo}
            try:
                while pending:
                    for each in wait(pending, timeout=0.5).done:
                        yield each.result()
                        del pending[each]
                    tick()
            except BrokenProcessPool:
                pass
            except BaseException:
                pool.shutdown(cancel_futures=True, wait=False)
                raise
        todo = list(pending.values())
        if not todo:
            return
    yield from (_died(job, retries) for job in todo)


def on_ray(
    todo: list[Job],
    tick: Tick,
    jobs: int | None,
    retries: int,
    address: str | None,
    cpus_per_run: int,
    gpus_per_run: float | None,
) -> Iterator[str | None]:
    """As tasks of a Ray cluster, which starts a task again where its worker or its machine was lost.

    Ctrl-C is passed on: every run stops between two steps, at a checkpoint.
    """
    if not todo:
        return
    ray, joined = joined_ray(address, num_cpus=None if jobs is None else jobs * cpus_per_run)
    gpus = ray.cluster_resources().get("GPU", 0)
    if gpus_per_run is None:
        gpus_per_run = 1.0 if gpus and todo[0].config.device != "cpu" else 0.0
    if gpus_per_run and not gpus:
        raise ValueError(f"--gpus-per-run {gpus_per_run:g} was given, but the Ray cluster has no GPU.")
    task = ray.remote(num_cpus=cpus_per_run, num_gpus=gpus_per_run, max_retries=retries)(_with_threads)
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
                    yield f"{job.folder}: {type(error).__name__}: {str(error).splitlines()[0]}"
            tick()
    finally:
        for each in running:
            ray.cancel(each)
        if running:
            ray.wait(list(running), num_returns=len(running), timeout=60)
        if joined:
            ray.shutdown()
