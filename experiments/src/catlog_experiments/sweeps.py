"""Grids of runs, one after another or on Ray: complete runs are skipped, others are resumed."""

import importlib
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import fields, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import torch
import tyro

from .named_estimators import chosen_estimator
from .run import execute
from .run_folder import Folder, folder_for
from .settings import Settings

TICK_EVERY = 0.5  # seconds
RETRIES = 3  # of a run whose process died: it resumes from its last checkpoint
STOP_WITHIN = 60.0  # seconds that cancelled tasks of Ray have to write their checkpoints

AnySettings = TypeVar("AnySettings", bound=Settings)


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
                f"{', '.join(names)}, each given once."
            )
        values[name] = []
        for text in listed.split(","):
            words = text.split() if isinstance(getattr(base, name), tuple) else [text]
            arguments = [f"--{name.replace('_', '-')}", *words]
            config = (tyro.conf.FlagConversionOff,)
            parsed = tyro.cli(type(base), args=arguments, default=base, config=config)
            values[name].append(getattr(parsed, name))
    combinations = product(*values.values())
    return [replace(base, **dict(zip(values, chosen, strict=True))) for chosen in combinations]


def sweep(
    configs: Sequence[Settings],
    root: Path | str = "runs",
    *,
    jobs: int | None = None,
    address: str | None = None,
    gpus_per_run: float | None = None,
    checkpoint_every: float = 30.0,
    watch: Callable[[], None] = lambda: None,
) -> list[str]:
    """Run all ``configs`` and return what went wrong, an empty list if all runs are complete.

    The settings of all runs are checked before the first one starts. A sweep can be repeated: the
    folder of a run follows from its configuration, complete runs are skipped, and a lock in the
    folder keeps other processes out.

    Args:
        configs: the experiments.
        root: the folder below which the runs are stored.
        jobs: more than one: the number of runs at a time, as tasks of Ray, so that one that dies
            does not affect the others. None: one after another in this process.
        address: the Ray cluster to join ("auto": that of RAY_ADDRESS, or of this machine), which
            must see the same ``root``, and runs as many at a time as it has cores and GPUs. None:
            start one on this machine if ``jobs`` needs it.
        gpus_per_run: Ray: the number of GPUs of a run; None: one if the cluster has GPUs.
        checkpoint_every: seconds between the checkpoints of a run.
        watch: called regularly.
    """
    on_ray = address is not None or (jobs or 1) > 1
    runs = {folder_for(config, Path(root).resolve()): config for config in configs}
    todo = {path: config for path, config in runs.items() if Folder(path).completed() is None}
    # Devices are checked for runs on this machine: a cluster may have what it lacks.
    for config in todo.values():
        chosen_estimator(config, "cpu" if on_ray else config.torch_device)
    work = [partial(_run, config, path, checkpoint_every) for path, config in todo.items()]
    outcomes = (job(tick=watch) for job in work)
    if on_ray and work:
        outcomes = _on_ray(work, jobs, address, gpus_per_run, watch)
    with closing(outcomes):
        return [problem for problem in outcomes if problem]


def _run(
    config: Settings,
    path: Path,
    checkpoint_every: float,
    tick: Callable[[], None] = lambda: None,
    threads: int | None = None,
) -> str:
    """Start or resume a run; return what went wrong, "" if nothing did."""
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        execute(
            config, path, resume=True, checkpoint_every=checkpoint_every, watch=lambda *_: tick()
        )
    except Exception as error:
        return f"{path}: {type(error).__name__}: {error}"
    return ""


def _on_ray(
    work: Sequence[partial[str]],
    jobs: int | None,
    address: str | None,
    gpus: float | None,
    tick: Callable[[], None],
) -> Generator[str, None, None]:
    """Run jobs as tasks of a Ray cluster, which restarts a task if its worker or machine is lost.

    Ctrl-C is passed on: every run stops between two steps, at a checkpoint.
    """
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise ImportError("--jobs above 1, and --address, need Ray: pip install ray") from error
    joins = not ray.is_initialized()
    if joins:
        here = {"num_cpus": jobs or 1, "include_dashboard": False}
        settings = {"address": address} if address else here
        ray.init(log_to_driver=False, logging_level="error", **settings)
    running = dict[Any, Path]()
    try:
        available = ray.cluster_resources().get("GPU", 0)
        gpus = min(1.0, available) if gpus is None else gpus
        if gpus > available:
            raise ValueError(
                f"--gpus-per-run must be at most {available:g}, which the Ray cluster has, "
                f"but {gpus:g} was given."
            )
        task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(_run)
        running |= {task.remote(*job.args, threads=1): job.args[1] for job in work}
        while running:
            for reference in ray.wait(list(running), timeout=TICK_EVERY)[0]:
                path = running.pop(reference)
                try:
                    yield ray.get(reference)
                except ray.exceptions.RayError as error:
                    reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
                    yield f"{path}: {reason} Run the same command again to continue."
            tick()
    finally:
        for reference in running:
            ray.cancel(reference)
        if running:
            ray.wait(list(running), num_returns=len(running), timeout=STOP_WITHIN)
        if joins:
            ray.shutdown()
