"""Grids of runs, one after another or on Ray: complete runs are skipped, others are resumed."""

import importlib
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import fields, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import torch
import tyro

from .data import DataError, load
from .named_estimators import chosen_estimator
from .run import execute, warn
from .run_folder import Folder, Notify, folder_for
from .settings import Settings, did_you_mean

TICK_EVERY = 0.5  # seconds
STOP_WITHIN = 60.0  # seconds that cancelled tasks of Ray have to write their checkpoints

AnySettings = TypeVar("AnySettings", bound=Settings)
Outcome = tuple[str | None, list[str]]  # of a run: what went wrong, and notes


def grid(base: AnySettings, axes: Sequence[str]) -> list[AnySettings]:
    """Return every combination of the axes ``field=value,value,...``; the last varies fastest.

    Values are read as those of the flags. One of ``options`` may hold several options with spaces
    between them.

    >>> from catlog_experiments import Addition
    >>> [(config.digits, config.seed) for config in grid(Addition(), ["digits=4,8", "seed=0,1"])]
    [(4, 0), (4, 1), (8, 0), (8, 1)]
    """
    names = [field.name for field in fields(base)]
    values: dict[str, list[Any]] = {}
    for axis in axes:
        flag, equals, listed = axis.partition("=")
        name = flag.replace("-", "_")
        if not equals or name not in names or name in values:
            raise ValueError(
                f"--grid: {axis!r} must be field=value,value,... with a field of "
                f"{', '.join(names)}, each given once.{did_you_mean(name, names)}"
            )
        values[name] = []
        for text in listed.split(","):
            words = text.split() if isinstance(getattr(base, name), tuple) else [text]
            arguments = [f"--{name.replace('_', '-')}", *words]
            config = (tyro.conf.FlagConversionOff,)
            parsed = tyro.cli(type(base), args=arguments, default=base, config=config)
            values[name].append(getattr(parsed, name))
        if len(set(values[name])) < len(values[name]):
            raise ValueError(f"--grid: {name} must have each value once, but {listed} was given.")
    combinations = product(*values.values())
    return [replace(base, **dict(zip(values, chosen, strict=True))) for chosen in combinations]


def check_sweep(configs: Sequence[Settings], here: bool) -> None:
    """Raise an error that names all wrong settings and missing data, so that no run starts before.

    Devices and data are checked for runs on this machine: a cluster may have what it lacks.
    """
    errors: dict[str, type[Exception]] = {}
    loaded = {None}
    for config in configs:
        name: Any = getattr(config, "data", None)
        try:
            chosen_estimator(config, config.torch_device if here else "cpu")
            if here and name not in loaded:
                loaded.add(name)
                load(name)
        except (ValueError, TypeError, DataError) as error:
            errors[str(error)] = DataError if isinstance(error, DataError) else ValueError
    if errors:
        raise next(iter(errors.values()))(f"No run was started. {' '.join(errors)}")


def sweep(
    configs: Sequence[Settings],
    root: Path | str = "runs",
    *,
    jobs: int | None = None,
    address: str | None = None,
    cpus_per_run: int = 1,
    gpus_per_run: float | None = None,
    retries: int = 3,
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
    check_sweep(list(todo.values()), here=not on_ray)
    work = [partial(_run, config, path, checkpoint_every) for path, config in todo.items()]
    outcomes = (job(tick=watch) for job in work)
    if on_ray and work:
        outcomes = _on_ray(work, jobs, retries, address, cpus_per_run, gpus_per_run, watch)
    problems = []
    with closing(outcomes):
        for problem, notes in outcomes:
            problems += [problem] if problem else []
            for note in notes:
                notify(note)
    return problems


def _run(
    config: Settings,
    path: Path,
    checkpoint_every: float,
    tick: Callable[[], None] = lambda: None,
    threads: int | None = None,
) -> Outcome:
    """Start or resume a run; return what went wrong, and notes."""
    notes: list[str] = []
    if threads is not None:
        torch.set_num_threads(threads)
    settings: dict[str, Any] = {"checkpoint_every": checkpoint_every, "notify": notes.append}
    try:
        execute(config, path, resume=True, watch=lambda *_: tick(), **settings)
    except Exception as error:
        return f"{path}: {type(error).__name__}: {error}", notes
    return None, notes


def _on_ray(
    work: Sequence[partial[Outcome]],
    jobs: int | None,
    retries: int,
    address: str | None,
    cpus: int,
    gpus: float | None,
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
        here = {"num_cpus": (jobs or 1) * cpus, "include_dashboard": False}
        settings = {"address": address} if address else here
        ray.init(log_to_driver=False, logging_level="error", **settings)
    waiting, running = list(reversed(work)), dict[Any, Path]()
    try:
        available = ray.cluster_resources().get("GPU", 0)
        gpus = min(1.0, available) if gpus is None else gpus
        if gpus > available:
            raise ValueError(
                f"--gpus-per-run must be at most {available:g}, which the Ray cluster has, "
                f"but {gpus:g} was given."
            )
        task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=retries)(_run)
        while waiting or running:
            while waiting and (jobs is None or len(running) < jobs):
                job = waiting.pop()
                running[task.remote(*job.args, threads=cpus)] = job.args[1]
            for reference in ray.wait(list(running), timeout=TICK_EVERY)[0]:
                path = running.pop(reference)
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
