"""Execute one configuration in its folder."""

import contextlib
import hashlib
import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from .loop import Task, Watcher, loop
from .named_estimators import check_known
from .ranges import NotNegative, check
from .ranks import ranks
from .run_folder import Folder, Tell


def record(config: Any) -> dict[str, Any]:
    """The configuration as it is written to config.json."""
    return {"experiment": config.name, **asdict(config)}


def folder_for(config: Any, root: Path | str = "runs") -> Path:
    """Where a run lives unless told otherwise: below the root, readable, and different for different configurations.

    >>> from catlog.experiments import Addition
    >>> folder_for(Addition(digits=8, estimator="RLOO-F", seed=3)).as_posix()[:-7]
    'runs/addition/RLOO-F-mnist-5000-8-seed3'
    """
    digest = hashlib.sha256(json.dumps(record(config), sort_keys=True).encode()).hexdigest()[:6]
    sizes = [str(getattr(config, size)) for size in config.sizes]
    name = "-".join([config.estimator, *sizes, f"seed{config.seed}", digest])
    return Path(root) / config.name / re.sub(r"[^\w+-]", "_", name)


def warn(note: str) -> None:
    """Tell it as a warning."""
    warnings.warn(note, stacklevel=3)


def execute(
    config: Any,
    folder: Path | str | None = None,
    *,
    resume: bool = False,
    checkpoint_every: float = 30.0,
    tensorboard: bool = False,
    watch: Watcher = lambda done, total, row: None,
    tell: Tell = warn,
    patience: float | None = None,
) -> dict[str, Any]:
    """Run ``config`` in ``folder`` (see :func:`folder_for`) and return its last metrics; a complete run is not run again.

    Nothing but the folder and its lock is made before the run is known to start. ``tell`` gets what should be known of a run that
    is resumed (other versions than before, damaged checkpoints); ``patience`` is that of :func:`.loop.interruptions`.

    Under torchrun all ranks call this; every step divides its batch among them (experiments with ``divides``).
    """
    check("--checkpoint-every", checkpoint_every, NotNegative)
    check_known(config.estimator, config.labels)
    home = Folder(folder_for(config) if folder is None else folder)
    with contextlib.ExitStack() as stack:
        us = stack.enter_context(ranks(config.torch_device))
        if us.size > 1 and not config.divides:
            raise ValueError(
                f"{config.name} has no batches to divide among {us.size} ranks: run it without torchrun."
            )
        us.from_first(lambda: stack.enter_context(home.held()))
        us.from_first(lambda: home.accept(record(config), resume=resume))
        if (done := us.from_first(home.summary)) is not None:
            return done
        torch.manual_seed(config.seed)
        task: Task = config.task()
        us.part()
        us.from_first(lambda: home.create(record(config)))
        if not us.first:
            watch = lambda done, total, row: None  # noqa: E731
        elif tensorboard:
            watch = _with_events(home.path, watch, stack)
        return loop(
            task,
            home,
            checkpoint_every=checkpoint_every,
            watch=watch,
            ranks=us,
            tell=tell,
            patience=patience,
        )


def _with_events(path: Path, watch: Watcher, stack: contextlib.ExitStack) -> Watcher:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            "--tensorboard needs the package tensorboard: pip install 'catlog[tensorboard]'."
        ) from error
    writer = stack.enter_context(SummaryWriter(str(path)))

    def both(done: int, total: int, row: Mapping[str, float]) -> None:
        if done == row.get("iteration"):
            for key, value in row.items():
                if key != "iteration":
                    writer.add_scalar(key, value, done)
        watch(done, total, row)

    return both
