"""Running one configuration in its folder."""

import contextlib
import hashlib
import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from .loop import Watcher, ignore_progress, loop
from .named_estimators import check_settings
from .ranges import NotNegative, check
from .ranks import join_ranks
from .run_folder import Folder, Notify
from .settings import Settings


def record(config: Settings) -> dict[str, Any]:
    """Return the configuration as it is read from config.json, where tuples are lists."""
    return json.loads(json.dumps({"experiment": config.name, **asdict(config)}))


def folder_for(config: Settings, root: Path | str = "runs") -> Path:
    """Return the default folder of a run: readable, and different for different configurations.

    >>> from catlog_experiments import Addition
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
    extends: Path | str | None = None,
    checkpoint_every: float = 30.0,
    tensorboard: bool = False,
    watch: Watcher = ignore_progress,
    notify: Notify = warn,
    patience: float | None = None,
) -> dict[str, Any]:
    """Run ``config`` in ``folder`` and return its last metrics. A complete run is not repeated.

    Nothing is written before the settings are checked and the data are loaded. Under torchrun all
    ranks call this function, and every step divides its batch among them (if ``config.divides``).

    Args:
        config: an experiment.
        folder: by default :func:`folder_for` of ``config``.
        resume: continue the run in the folder; without it, a folder with a run is refused. A
            shorter run of the same settings is extended, such as from 10 to 12 epochs. The result
            is that of a run of 12 epochs from the start.
        extends: the folder of a shorter run, which is copied and extended if ``folder`` has none.
        checkpoint_every: seconds between checkpoints.
        tensorboard: write TensorBoard events as well.
        watch: called with the iterations done, their total and the last metrics.
        notify: called with notes about a resumed run: what is extended, other versions, damaged
            checkpoints.
        patience: see ``catlog_experiments.loop.interruptions``.
    """
    check("--checkpoint-every", checkpoint_every, NotNegative)
    check_settings(config)
    home = Folder(folder_for(config) if folder is None else folder, config.length)
    source = home if extends is None else Folder(extends, config.length)
    content = record(config)

    def look() -> tuple[dict[str, Any] | None, Folder | None]:
        """Return the metrics of a complete run, and the folder of a shorter one to extend."""
        home.check_config(content, resume=resume)
        shorter = home if home.has_progress() else source
        length = shorter.shorter_length(content)
        if length is None:
            return home.completed(content), None
        change: dict[str, Any] = {config.length: length}
        replace(config, **change).check_extension()
        return home.completed(content), shorter

    with contextlib.ExitStack() as stack:
        ranks = stack.enter_context(join_ranks(config.torch_device))
        if ranks.size > 1 and not config.divides:
            raise ValueError(
                f"{config.name} has no batches to divide among {ranks.size} ranks. "
                "Run it without torchrun."
            )
        if (summary := ranks.from_first(look)[0]) is not None:
            return summary
        torch.manual_seed(config.seed)
        task = config.task()
        ranks.split_random_streams()
        writer = _summary_writer() if tensorboard else None
        ranks.from_first(lambda: stack.enter_context(home.locked()))
        summary, shorter = ranks.from_first(look)
        if summary is not None:
            return summary  # another process has completed it in the meantime
        if shorter is not None:
            note = ranks.from_first(lambda: home.extend(content, shorter))
            if ranks.is_first:
                notify(note)
        ranks.from_first(lambda: home.write_config(content))
        if not ranks.is_first:
            watch = ignore_progress
        elif writer is not None:
            watch = _with_events(stack.enter_context(writer(str(home.path))), watch)
        return loop(
            task,
            home,
            checkpoint_every=checkpoint_every,
            watch=watch,
            ranks=ranks,
            notify=notify,
            patience=patience,
        )


def find_shorter_run(config: Settings) -> Path | None:
    """Return the folder of the longest run that :func:`execute` can extend to ``config``."""
    content, best = record(config), None
    for path in sorted(folder_for(config).parent.glob("*")):
        if (length := Folder(path, config.length).shorter_length(content)) is not None:
            best = max(best or (0, path), (length, path))
    return None if best is None else best[1]


def _summary_writer() -> Any:
    """Return the class that writes TensorBoard events."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            "--tensorboard needs the package tensorboard. Install it with: pip install tensorboard"
        ) from error
    return SummaryWriter


def _with_events(writer: Any, watch: Watcher) -> Watcher:
    """Return a watcher that writes TensorBoard events and then calls ``watch``."""

    def write_and_watch(done: int, total: int, row: Mapping[str, float]) -> None:
        if done == row.get("iteration"):
            for key, value in row.items():
                if key != "iteration" and value is not None:  # None: not finite before a resumption
                    writer.add_scalar(key, value, done)
        watch(done, total, row)

    return write_and_watch
