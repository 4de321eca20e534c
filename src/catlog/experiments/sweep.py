"""A grid of runs: what is done is skipped, what was cut is resumed, several at a time where asked."""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from .folder import Folder
from .methods import parsed
from .run import execute, folder_for


def grid(base: Any, axes: list[str]) -> list[Any]:
    """Every combination of the axes, each given as ``field=value,value,...``; the last axis turns fastest.

    >>> from catlog.experiments import Addition
    >>> [(each.digits, each.seed) for each in grid(Addition(), ["digits=4,8", "seed=0,1"])]
    [(4, 0), (4, 1), (8, 0), (8, 1)]
    """
    known = [field.name for field in fields(base)]
    names, values = [], []
    for axis in axes:
        name, equals, given = axis.partition("=")
        if not equals or name not in known:
            raise ValueError(f"--grid: {axis!r} must be field=value,value,... with a field of {', '.join(known)}.")
        names.append(name)
        values.append([parsed(each) for each in given.split(",")])
    return [replace(base, **dict(zip(names, chosen, strict=True))) for chosen in product(*values)]


def sweep(
    configs: list[Any],
    root: Path | str = "runs",
    *,
    jobs: int = 1,
    deadline: float | None = None,
    watch: Callable[[list[Any]], None] = lambda configs: None,
) -> list[str]:
    """Run all ``configs``, ``jobs`` at a time in processes of their own, and return what went wrong (nothing, if all is well).

    Runs are idempotent: their folders follow from their configurations. ``deadline`` (seconds from now) stops the sweep in good
    order: no new run begins after it, and a running one is cut at its last checkpoint. ``watch`` is called now and then.
    """
    todo = [each for each in configs if not Folder(folder_for(each, root)).finished()]
    until = None if deadline is None else time.time() + deadline
    if jobs == 1:
        return [problem for config in todo if (problem := _one(config, str(root), until)) is not None]
    failures: list[str] = []
    threads = max(1, (os.cpu_count() or 1) // jobs)  # more would have the runs wait for each other
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn, initializer=torch.set_num_threads, initargs=(threads,)) as pool:
        pending: set[Future[str | None]] = {pool.submit(_one, config, str(root), until) for config in todo}
        try:
            while pending:
                done, pending = wait(pending, timeout=0.5)
                failures += [problem for each in done if (problem := each.result()) is not None]
                watch(configs)
        except BrokenProcessPool:
            failures.append("A worker process died (killed, or out of memory). Run the same command again to go on.")
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True, wait=False)
            raise
    return failures


class _TooLateError(Exception):
    pass


def _one(config: Any, root: str, until: float | None) -> str | None:
    """One run, in whatever process; the reason why it failed, if it did."""

    def watch(done: int, total: int, row: object) -> None:
        if until is not None and time.time() > until:
            raise _TooLateError

    folder = folder_for(config, root)
    try:
        if until is None or time.time() < until:
            execute(config, folder, resume=True, watch=watch)
            return None
        return f"{folder}: not begun before the deadline"
    except _TooLateError:
        return f"{folder}: cut by the deadline"
    except Exception as error:
        return f"{folder}: {type(error).__name__}: {error}"


def progress(configs: list[Any], root: Path | str) -> Iterator[tuple[Path, dict[str, Any] | None, bool]]:
    """Of every run: its folder, its last metrics, and whether it is complete."""
    for config in configs:
        folder = Folder(folder_for(config, root))
        rows = [folder.summary()] if folder.finished() else folder.metrics()  # a short file in place of a long one
        yield folder.path, rows[-1] if rows else None, folder.finished()
