"""Running one configuration in its folder."""

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

from .loop import Watcher, ignore_progress, loop
from .named_estimators import check_known
from .ranges import NotNegative, check
from .ranks import join_ranks
from .run_folder import Folder, Notify
from .settings import Settings


def record(config: Settings) -> dict[str, Any]:
    """Return the configuration as it is written to config.json."""
    return {"experiment": config.name, **asdict(config)}


def folder_for(config: Settings, root: Path | str = "runs") -> Path:
    """Return the default folder of a run: readable, and different for different configurations.

    >>> from catlog.experiments import Addition
    >>> folder_for(Addition(digits=8, estimator="RLOO-F", seed=3)).as_posix()[:-7]
    'runs/addition/RLOO-F-mnist-5000-8-seed3'
    """
    digest = hashlib.sha256(json.dumps(record(config), sort_keys=True).encode()).hexdigest()[:6]
    sizes = [str(getattr(config, size)) for size in config.sizes]
    name = "-".join([config.estimator, *sizes, f"seed{config.seed}", digest])
    return Path(root) / config.name / re.sub(r"[^\w+-]", "_", name)


def warn(note: str) -> None:
    """Issue a note as a warning."""
    warnings.warn(note, stacklevel=3)


def execute(
    config: Settings,
    folder: Path | str | None = None,
    *,
    resume: bool = False,
    checkpoint_every: float = 30.0,
    tensorboard: bool = False,
    watch: Watcher = ignore_progress,
    notify: Notify = warn,
    patience: float | None = None,
) -> dict[str, Any]:
    """Run ``config`` in ``folder`` and return its last metrics. A complete run is not repeated.

    Only the folder and its lock are created before the run is known to start. Under torchrun all
    ranks call this function, and every step divides its batch among them (if ``config.divides``).

    Args:
        config: an experiment.
        folder: by default :func:`folder_for` of ``config``.
        resume: continue the run in the folder; without it, a folder with a run is refused.
        checkpoint_every: seconds between checkpoints.
        tensorboard: write TensorBoard events as well.
        watch: called with the iterations done, their total and the last metrics.
        notify: called with notes about a resumed run: other versions, damaged checkpoints.
        patience: see ``catlog.experiments.loop.interruptions``.
    """
    check("--checkpoint-every", checkpoint_every, NotNegative)
    check_known(config.estimator, config.labels)
    home = Folder(folder_for(config) if folder is None else folder)
    with contextlib.ExitStack() as stack:
        ranks = stack.enter_context(join_ranks(config.torch_device))
        if ranks.size > 1 and not config.divides:
            raise ValueError(
                f"{config.name} has no batches to divide among {ranks.size} ranks. "
                "Run it without torchrun."
            )
        ranks.from_first(lambda: stack.enter_context(home.locked()))
        ranks.from_first(lambda: home.check_config(record(config), resume=resume))
        if (summary := ranks.from_first(home.summary)) is not None:
            return summary
        torch.manual_seed(config.seed)
        task = config.task()
        ranks.split_random_streams()
        ranks.from_first(lambda: home.write_config(record(config)))
        if not ranks.is_first:
            watch = ignore_progress
        elif tensorboard:
            watch = _with_events(home.path, watch, stack)
        return loop(
            task,
            home,
            checkpoint_every=checkpoint_every,
            watch=watch,
            ranks=ranks,
            notify=notify,
            patience=patience,
        )


def _with_events(path: Path, watch: Watcher, stack: contextlib.ExitStack) -> Watcher:
    """Return a watcher that writes TensorBoard events and then calls ``watch``."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            "--tensorboard needs the package tensorboard. "
            "Install it with: pip install 'catlog[tensorboard]'"
        ) from error
    writer = stack.enter_context(SummaryWriter(str(path)))

    def write_and_watch(done: int, total: int, row: Mapping[str, float]) -> None:
        if done == row.get("iteration"):
            for key, value in row.items():
                if key != "iteration":
                    writer.add_scalar(key, value, done)
        watch(done, total, row)

    return write_and_watch
