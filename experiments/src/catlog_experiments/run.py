"""Running one configuration in its folder: step, log, checkpoint, resume."""

import contextlib
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from .run_folder import Folder, Notify, Row, finite, folder_for
from .settings import Settings, Task

WATCH_EVERY = 0.2  # seconds between two calls of `watch` that no logged point causes

# called with the iterations done, their total, and the last metrics
Watcher = Callable[[int, int, Mapping[str, float]], None]


def ignore_progress(done: int, total: int, row: Mapping[str, float]) -> None:
    """Do nothing."""


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
) -> Row:
    """Run ``config`` in ``folder`` and return its last metrics. A complete run is not repeated.

    Nothing is written before the settings are checked and the data are loaded.

    Random numbers come from torch's global generators, whose states are part of a checkpoint. On a
    CPU, a resumed run therefore logs the same numbers as an uninterrupted one, provided that
    versions and the number of threads are the same. If they have changed, ``notify`` gets a note.

    Args:
        config: an experiment.
        folder: by default ``folder_for(config)``.
        resume: continue the run in the folder; without it, a folder with a run is refused. A
            shorter run of the same settings is extended, such as from 10 to 12 epochs. The result
            is that of a run of 12 epochs from the start.
        checkpoint_every: seconds between checkpoints, which fall on logged points.
        tensorboard: write TensorBoard events as well.
        watch: called with the iterations done, their total and the last metrics.
        notify: called with notes about a resumed run: what is extended, other versions, damaged
            checkpoints.
    """
    home = Folder(folder_for(config) if folder is None else folder)
    home.check(config, resume=resume)
    if (row := home.completed(config.record())) is not None:
        return row
    torch.manual_seed(config.seed)
    task = config.task()
    with contextlib.ExitStack() as stack:
        if tensorboard:
            watch = _with_events(stack, home.path, watch)
        stack.enter_context(home.locked())
        home.check(config, resume=resume)  # another process may have run it in the meantime
        if (row := home.completed(config.record())) is not None:
            return row
        start, clock = 0, _Clock()
        if (saved := home.restore(notify)) is not None:
            task.load_state_dict(saved["task"])
            torch.set_rng_state(saved["cpu"])
            if "cuda" in saved and torch.cuda.is_available():
                torch.cuda.set_rng_state(saved["cuda"])
            start, clock.seconds = saved["iteration"], saved["seconds"]
        home.begin(config, start, task.iterations, notify)
        stop = stack.enter_context(interruptions())
        return _loop(config.record(), task, home, start, clock, checkpoint_every, watch, stop)


def _loop(
    config: Row,
    task: Task,
    home: Folder,
    start: int,
    clock: "_Clock",
    checkpoint_every: float,
    watch: Watcher,
    asked_to_stop: Callable[[], bool],
) -> Row:
    """Run the task from iteration ``start`` to its end; return the last metrics.

    ``seconds`` in the metrics is the time spent in steps, without measuring and without the first
    step, which compiles. The last checkpoint is written after the last step and before its
    measurement, because a longer run, which continues there, measures there only if it logs there.
    """
    row: Row = home.last_row() or {}
    saved_at = watched_at = time.perf_counter()

    def save(i: int) -> None:
        state: Row = {"config": config, "task": task.state_dict(), "seconds": clock.seconds}
        state["cpu"] = torch.get_rng_state()
        if torch.cuda.is_available():
            state["cuda"] = torch.cuda.get_rng_state()
        home.save(i, state)

    for done in range(start, task.iterations + 1):
        if done > start:
            task.step(done - 1)
            if done == start + 1:
                clock.start()  # the first step, which may compile, does not count
        is_last = done == task.iterations
        is_logged = (done % task.every == 0 or is_last) and row.get("iteration") != done
        if is_logged:
            if done > start:
                clock.stop()
            if is_last and done > start:
                save(done)
            row = finite({"iteration": done, "seconds": round(clock.seconds, 6)})
            row |= finite(task.measure(done))
            home.log(row)
            if not is_last and time.perf_counter() - saved_at > checkpoint_every:
                save(done)
                saved_at = time.perf_counter()
        if is_logged or done == start or time.perf_counter() - watched_at > WATCH_EVERY:
            watched_at = time.perf_counter()
            watch(done, task.iterations, row)
        if asked_to_stop() and not is_last:
            clock.stop()
            save(done)
            raise KeyboardInterrupt
        if is_logged:
            clock.start()
    return row


@contextlib.contextmanager
def interruptions() -> Iterator[Callable[[], bool]]:
    """Turn Ctrl-C and SIGTERM into a flag that the loop reads between two steps.

    A second signal stops at once.
    """
    signals: list[int] = []

    def handle(number: int, frame: object) -> None:
        if signals:
            raise KeyboardInterrupt
        signals.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(signals)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Clock:
    """The seconds spent in steps, until the device has finished them."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.start()

    def start(self) -> None:
        _synchronise()
        self._started_at = time.perf_counter()

    def stop(self) -> None:
        _synchronise()
        self.seconds += time.perf_counter() - self._started_at
        self._started_at = time.perf_counter()


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _with_events(stack: contextlib.ExitStack, path: Path, watch: Watcher) -> Watcher:
    """Return a watcher that writes TensorBoard events and then calls ``watch``."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError("--tensorboard needs tensorboard: pip install tensorboard") from error
    writer: Any = stack.enter_context(SummaryWriter(str(path)))

    def write_and_watch(done: int, total: int, row: Mapping[str, Any]) -> None:
        if done == row.get("iteration"):
            for key, value in row.items():
                if key != "iteration" and value is not None:
                    writer.add_scalar(key, value, done)
        watch(done, total, row)

    return write_and_watch
