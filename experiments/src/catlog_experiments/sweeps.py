"""Grids of runs, one after another or on Ray: complete runs are skipped, others are resumed."""

import importlib
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import fields, replace
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import torch
import tyro

from .data import DataError, load
from .named_estimators import chosen_estimator
from .run import execute, warn
from .run_folder import Folder, Notify, folder_for
from .settings import Settings, did_you_mean

MOST_RUNS = 10_000
TICK_EVERY = 0.5  # seconds
STOP_WITHIN = 60.0  # seconds that cancelled tasks of Ray have to write their checkpoints

AnySettings = TypeVar("AnySettings", bound=Settings)
Outcome = tuple[str | None, list[str]]  # of a run: what went wrong, and notes


def grid(base: AnySettings, axes: Sequence[str]) -> list[AnySettings]:
    """Return every combination of the axes ``field=value,value,...``; the last varies fastest.

    A value of ``options`` may hold several options with spaces between them.

    >>> from catlog_experiments import Addition
    >>> [(config.digits, config.seed) for config in grid(Addition(), ["digits=4,8", "seed=0,1"])]
    [(4, 0), (4, 1), (8, 0), (8, 1)]
    """
    names = [field.name for field in fields(base)]
    texts: dict[str, list[str]] = {}
    for axis in axes:
        name, equals, listed = axis.partition("=")
        name = name.replace("-", "_")
        if not equals or name not in names:
            raise ValueError(
                f"--grid: {axis!r} must be field=value,value,... with a field of "
                f"{', '.join(names)}.{did_you_mean(name, names)}"
            )
        if name in texts:
            raise ValueError(
                f"--grid: {name} is given twice. "
                f"Give all of its values in one axis: {name}=value,value,..."
            )
        texts[name] = listed.split(",")
    if (count := prod(map(len, texts.values()))) > MOST_RUNS:
        raise ValueError(
            f"--grid must make at most {MOST_RUNS:,} runs, but it makes {count:,}. "
            "Give fewer values, or divide them among several sweeps."
        )
    values = {name: [_parsed(base, name, text) for text in texts[name]] for name in texts}
    for name, parsed in values.items():
        value, times = Counter(parsed).most_common(1)[0]
        if times > 1:
            raise ValueError(
                f"--grid: {name} must have each value once, but {value} is there {times} times. "
                "Give it once."
            )
    combinations = product(*values.values())
    return [replace(base, **dict(zip(values, chosen, strict=True))) for chosen in combinations]


def _parsed(base: Settings, name: str, text: str) -> Any:
    """Return the value of a field that the command line makes of a text."""
    words = text.split() if isinstance(getattr(base, name), tuple) else [text]
    flag = f"--{name.replace('_', '-')}"
    config = (tyro.conf.FlagConversionOff,)
    return getattr(tyro.cli(type(base), args=[flag, *words], default=base, config=config), name)


def check_sweep(configs: Iterable[Settings], here: bool) -> None:
    """Raise an error that names all wrong settings and missing data, so that no run starts before.

    Devices and data are checked for runs on this machine: a cluster may have what it lacks.
    """
    wrong: dict[str, type[Exception]] = {}
    loaded: set[str] = set()
    for config in configs:
        name = getattr(config, "data", None)
        try:
            chosen_estimator(config)
            if here:
                _ = config.torch_device
            if here and name is not None and name not in loaded:
                loaded.add(name)
                load(name)
        except (ValueError, TypeError, DataError) as error:
            wrong[str(error)] = DataError if isinstance(error, DataError) else ValueError
    if wrong:
        raise next(iter(wrong.values()))(f"No run was started. {' '.join(wrong)}")


def sweep(
    configs: Sequence[Settings],
    root: Path | str = "runs",
    *,
    jobs: int | None = None,
    address: str | None = None,
    cpus_per_run: int = 1,
    gpus_per_run: float | None = None,
    retries: int = 3,
    deadline: float | None = None,
    checkpoint_every: float = 30.0,
    watch: Callable[[], None] = lambda: None,
    notify: Notify = warn,
) -> list[str]:
    """Run all ``configs`` and return what went wrong, an empty list if all runs are complete.

    The settings of all runs are checked before the first one starts. A sweep can be repeated: the
    folder of a run follows from its configuration, complete runs are skipped, and a lock in the
    folder keeps other processes out.

    Args:
        configs: the experiments; equal ones are run once.
        root: the folder below which the runs are stored.
        jobs: more than one: the number of runs at a time, as tasks of Ray, so that one that dies
            does not affect the others. None: one after another in this process.
        address: the Ray cluster to join (or RAY_ADDRESS), which must see the same ``root``. None:
            start one on this machine if ``jobs`` needs it.
        cpus_per_run: Ray: the number of cores of a run.
        gpus_per_run: Ray: the number of GPUs of a run; None: one if the cluster has GPUs.
        retries: Ray: how often a run whose process died is resumed from its last checkpoint.
        deadline: stop after this many seconds: no further run starts, and running ones are cut at
            their last checkpoint.
        checkpoint_every: seconds between the checkpoints of a run.
        watch: called regularly.
        notify: called with notes about resumed runs.
    """
    on_ray = address is not None or (jobs or 1) > 1
    by_folder: dict[Path, Settings] = {}
    for config in configs:
        other = by_folder.setdefault(folder_for(config, Path(root).resolve()), config)
        if other != config:
            raise ValueError(
                f"--grid: runs that differ in their {config.length} alone share a folder, as the "
                "longest contains the others. Give the longest only."
            )
    todo = {
        path: config
        for path, config in by_folder.items()
        if Folder(path).completed(config.record()) is None
    }
    check_sweep(todo.values(), here=not on_ray)
    stop_at = None if deadline is None else time.time() + deadline
    work = [partial(_run, config, path, stop_at, checkpoint_every) for path, config in todo.items()]
    outcomes = (
        _on_ray(work, jobs, retries, address, cpus_per_run, gpus_per_run, watch)
        if on_ray and work
        else (job(tick=watch) for job in work)
    )
    problems = []
    with closing(outcomes):
        for problem, notes in outcomes:
            problems += [problem] if problem else []
            for note in notes:
                notify(note)
    return problems


class _DeadlineError(Exception):
    pass


def _run(
    config: Settings,
    path: Path,
    stop_at: float | None,
    checkpoint_every: float,
    tick: Callable[[], None] = lambda: None,
) -> Outcome:
    """Start or resume a run; return what went wrong, and notes."""
    notes: list[str] = []
    ticked_at = time.monotonic()

    def watch(*_: object) -> None:
        nonlocal ticked_at
        if time.monotonic() > ticked_at + TICK_EVERY:
            tick()
            ticked_at = time.monotonic()
        if stop_at is not None and time.time() >= stop_at:
            raise _DeadlineError

    if stop_at is not None and time.time() >= stop_at:
        return f"{path}: not started before the deadline", notes
    settings: dict[str, Any] = {"checkpoint_every": checkpoint_every, "notify": notes.append}
    try:
        execute(config, path, resume=True, watch=watch, **settings)
    except _DeadlineError:
        return f"{path}: stopped by the deadline", notes
    except Exception as error:
        return f"{path}: {type(error).__name__}: {error}", notes
    return None, notes


def _with_threads(job: Callable[[], Outcome], threads: int) -> Outcome:
    torch.set_num_threads(threads)
    return job()


def _on_ray(
    work: Sequence[partial[Outcome]],
    jobs: int | None,
    retries: int,
    address: str | None,
    cpus_per_run: int,
    gpus_per_run: float | None,
    tick: Callable[[], None],
) -> Generator[Outcome, None, None]:
    """Run jobs as tasks of a Ray cluster, which restarts a task if its worker or machine is lost.

    Ctrl-C is passed on: every run stops between two steps, at a checkpoint.
    """
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise ImportError("--jobs above 1, and --address, need Ray: pip install ray") from error
    joins = not ray.is_initialized()
    if joins:
        address = address or os.environ.get("RAY_ADDRESS")
        here = {"num_cpus": (jobs or 1) * cpus_per_run, "include_dashboard": False}
        settings = {"address": address} if address else here
        ray.init(log_to_driver=False, logging_level="error", **settings)
    gpus = ray.cluster_resources().get("GPU", 0)
    if gpus_per_run is None:
        gpus_per_run = min(1.0, gpus)
    if gpus_per_run and not gpus:
        raise ValueError(
            f"--gpus-per-run must be 0, but {gpus_per_run:g} was given, "
            "and the Ray cluster has no GPU."
        )
    remote = ray.remote(num_cpus=cpus_per_run, num_gpus=gpus_per_run, max_retries=retries)
    task = remote(_with_threads)
    waiting, running = deque(work), dict[Any, Any]()
    try:
        while waiting or running:
            while waiting and (jobs is None or len(running) < jobs):
                job = waiting.popleft()
                running[task.remote(job, cpus_per_run)] = job
            ended, _ = ray.wait(list(running), timeout=TICK_EVERY)
            for reference in ended:
                path = running.pop(reference).args[1]
                try:
                    yield ray.get(reference)
                except ray.exceptions.RayError as error:
                    reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
                    died = (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError)
                    if isinstance(error, died):
                        reason = f"its process died (killed, or out of memory) {retries + 1} times"
                    yield f"{path}: {reason}. Run the same command again to continue.", []
            tick()
    finally:
        for reference in running:
            ray.cancel(reference)
        if running:
            ray.wait(list(running), num_returns=len(running), timeout=STOP_WITHIN)
        if joins:
            ray.shutdown()
