"""Grids of runs: complete runs are skipped, and interrupted ones are resumed."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal, TypeVar

from .data import DataError, load
from .engines import Job, run_in_processes, run_in_turn, run_on_ray
from .named_estimators import check_settings
from .ranges import Count, Counted, NotNegative, annotations, check, convert, did_you_mean
from .ranks import launched_ranks
from .run import folder_for, warn
from .run_folder import Folder, Notify
from .settings import Settings

AnySettings = TypeVar("AnySettings", bound=Settings)


def grid(base: AnySettings, axes: list[str]) -> list[AnySettings]:
    """Return every combination of the axes ``field=value,value,...``; the last varies fastest.

    A value of ``options`` may hold several options with spaces between them.

    >>> from catlog_experiments import Addition
    >>> [(config.digits, config.seed) for config in grid(Addition(), ["digits=4,8", "seed=0,1"])]
    [(4, 0), (4, 1), (8, 0), (8, 1)]
    """
    names, hints = [field.name for field in fields(base)], annotations(type(base))
    values: dict[str, list[Any]] = {}
    for axis in axes:
        name, equals, listed = axis.partition("=")
        name = name.replace("-", "_")
        if not equals or name not in names:
            raise ValueError(
                f"--grid: {axis!r} must be field=value,value,... with a field of "
                f"{', '.join(names)}.{did_you_mean(name, names)}"
            )
        if name in values:
            raise ValueError(
                f"--grid: {name} is given twice. "
                f"Give all of its values in one axis: {name}=value,value,..."
            )
        values[name] = [convert(f"--grid: {name}", text, hints[name]) for text in listed.split(",")]
        if len(set(values[name])) < len(values[name]):
            raise ValueError(f"--grid: {axis!r} has a value twice.")
    return [
        replace(base, **dict(zip(values, combination, strict=True)))
        for combination in product(*values.values())
    ]


def check_sweep(configs: Sequence[Settings], engine: Literal["local", "ray"] = "local") -> None:
    """Raise an error that names all wrong settings, so that no run starts before the others fail.

    The device is checked for local runs only: a cluster may have what this machine lacks.
    """
    wrong: dict[str, None] = {}
    for config in configs:
        try:
            check_settings(config)
            _ = config.torch_device if engine == "local" else None
        except (ValueError, TypeError) as error:
            wrong[str(error)] = None
    if wrong:
        raise ValueError(f"No run was started. {' '.join(wrong)}")


def check_data(configs: Iterable[Settings]) -> None:
    """Raise a DataError that names all missing or damaged data, by loading each data set once."""
    wrong = []
    for name in sorted({config.data_set for config in configs if config.data_set is not None}):
        try:
            load(name)
        except DataError as error:
            wrong.append(str(error))
    if wrong:
        raise DataError(f"No run was started. {' '.join(wrong)}")


def sweep(
    configs: Sequence[Settings],
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
    watch: Callable[[], None] = lambda: None,
    notify: Notify = warn,
    stopped: Callable[[Path], None] = lambda folder: None,
) -> list[str]:
    """Run all ``configs`` and return what went wrong, an empty list if all runs are complete.

    The settings of all runs are checked before the first one starts (:func:`check_sweep`), and so
    are the data of local runs (:func:`check_data`). A sweep can be repeated: the folder of a run
    follows from its configuration, complete runs are skipped, and a lock in the folder keeps other
    processes out.

    Args:
        configs: the experiments; equal ones are run once.
        root: the folder below which the runs are stored.
        engine: "local": this machine; "ray": a Ray cluster, which must see the same ``root``.
        jobs: the number of runs at a time. Local runs then have separate processes, so one that
            dies does not affect the others, and all stop at Ctrl-C and when this process is killed.
            None: one run after another in this process; on a cluster, as many as fit.
        address: the Ray cluster to join (or RAY_ADDRESS); None: start one for this sweep.
        cpus_per_run: Ray: the number of cores of a run.
        gpus_per_run: Ray: the number of GPUs of a run; None: one if the cluster has GPUs.
        retries: how often a run whose process died is resumed from its last checkpoint.
        deadline: stop after this many seconds: no further run starts, and running ones are cut at
            their last checkpoint.
        checkpoint_every: seconds between the checkpoints of a run.
        watch: called regularly.
        notify: called with notes about resumed runs.
        stopped: called with the folder of every run that ended before it was complete.
    """
    if launched_ranks() > 1:
        raise ValueError(
            "A sweep starts its runs itself (--jobs, --engine ray). Start it without torchrun."
        )
    if engine == "local" and (address is not None or gpus_per_run is not None):
        raise ValueError(
            "--address and --gpus-per-run need --engine ray: local runs share this machine."
        )
    check("--jobs", jobs, Count | None)
    check("--cpus-per-run", cpus_per_run, Count)
    check("--gpus-per-run", gpus_per_run, NotNegative | None)
    check("--retries", retries, Counted)
    check("--deadline", deadline, NotNegative | None)
    check("--checkpoint-every", checkpoint_every, NotNegative)
    check_sweep(configs, engine)
    stop_at = None if deadline is None else time.time() + deadline
    by_folder = {folder_for(config, Path(root).resolve()): config for config in configs}
    todo = [
        Job(config, path, stop_at, checkpoint_every)
        for path, config in by_folder.items()
        if not Folder(path).finished()
    ]

    if engine == "local":  # a cluster may have what this machine lacks
        check_data(job.config for job in todo)

    if engine == "ray":
        outcomes = run_on_ray(todo, watch, jobs, retries, address, cpus_per_run, gpus_per_run)
    elif jobs is None:
        outcomes = run_in_turn(todo, watch)
    else:
        outcomes = run_in_processes(todo, watch, jobs, retries)
    problems = []
    with closing(outcomes):
        for outcome in outcomes:
            if outcome.problem is not None:
                problems.append(outcome.problem)
                stopped(outcome.folder)
            for note in outcome.notes:
                notify(note)
    return problems
