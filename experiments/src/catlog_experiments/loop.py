"""The loop of all experiments: step, log, checkpoint, resume."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from .ranks import Ranks
from .run_folder import Folder, Notify, ignore_note

AGREE_EVERY = 10  # iterations between two agreements of several ranks on whether to stop
WATCH_EVERY = 0.2  # seconds between two calls of `watch` that no logged point causes


class Task(Protocol):
    """The work of an experiment.

    Attributes:
        iterations: the number of steps.
        every: measure and log every N steps.
    """

    iterations: int
    every: int

    def step(self, i: int) -> None:
        """Run iteration i, counted from 0. It must not wait for the device."""
        ...

    def measure(self, i: int) -> dict[str, float]:
        """Return the metrics after i iterations."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


# called with the iterations done, their total, and the last metrics
Watcher = Callable[[int, int, Mapping[str, float]], None]


def ignore_progress(done: int, total: int, row: Mapping[str, float]) -> None:
    """Do nothing."""


def loop(
    task: Task,
    folder: Folder,
    *,
    checkpoint_every: float = 30.0,
    watch: Watcher = ignore_progress,
    ranks: Ranks = Ranks(),
    notify: Notify = ignore_note,
    patience: float | None = None,
) -> dict[str, Any]:
    """Run ``task`` from the folder's last good checkpoint to its end; return the last metrics.

    Random numbers come from torch's global generators, whose states are part of a checkpoint. On a
    CPU, a resumed run therefore logs the same numbers as an uninterrupted one, provided that
    versions and the number of threads are the same: another division of sums among threads rounds
    differently. If they have changed, ``notify`` gets a note.

    ``seconds`` in the metrics is the time spent in steps, without measuring and without the first
    step, which compiles. ``checkpoint_every`` is in seconds; checkpoints fall on logged points.
    The last one is written after the last step, from where a longer run can continue. It comes
    before the measurement, because a longer run measures there only if it logs there.

    With several ``ranks``, all of them step and measure, and the first one reads, logs and writes.
    A checkpoint holds the random states of all ranks. After resuming with another number of ranks,
    the states are derived from the first one. ``patience``: see :func:`interruptions`; None means
    5 seconds with several ranks, 0 with one.
    """
    start, seconds, row = _restore(task, folder, ranks, notify)
    if ranks.is_first:
        folder.begin_session(start, task.iterations, ranks.size, notify)
    clock = _Clock(seconds)
    records = _Records(task, folder, ranks, clock, row)
    if records.is_logged(start) and row.get("iteration") != start:
        records.log(start)
    watch(start, task.iterations, records.row)
    saved_at = watched_at = time.perf_counter()
    if patience is None:
        patience = 5.0 if ranks.size > 1 else 0.0
    with interruptions(patience) as asked_to_stop:
        for done in range(start + 1, task.iterations + 1):
            task.step(done - 1)
            if done == start + 1:
                clock.start()  # the first step, which may compile, does not count
            if records.is_logged(done):
                clock.stop()
                is_last = done == task.iterations
                if is_last:
                    records.save(done)
                records.log(done)
                if not is_last and ranks.any(time.perf_counter() - saved_at > checkpoint_every):
                    records.save(done)
                    saved_at = time.perf_counter()
                watch(done, task.iterations, records.row)
                clock.start()
            elif time.perf_counter() - watched_at > WATCH_EVERY:
                watched_at = time.perf_counter()
                watch(done, task.iterations, records.row)
            ranks_agree_now = ranks.size == 1 or records.is_logged(done) or done % AGREE_EVERY == 0
            if ranks_agree_now and ranks.any(asked_to_stop()):
                clock.stop()
                records.save(done)
                raise KeyboardInterrupt
    if ranks.is_first:
        folder.finish(records.row)
    return records.row


@dataclass
class _Records:
    """What a run leaves behind: metrics and checkpoints, written by the first rank.

    Attributes:
        row: the last metrics.
    """

    task: Task
    folder: Folder
    ranks: Ranks
    clock: "_Clock"
    row: dict[str, Any]

    def is_logged(self, i: int) -> bool:
        return i % self.task.every == 0 or i == self.task.iterations

    def log(self, i: int) -> None:
        """Measure after i iterations."""
        seconds = round(self.clock.seconds, 6)
        self.row = {"iteration": i, "seconds": seconds, **self.task.measure(i)}
        if self.ranks.is_first:
            self.folder.log(self.row)

    def save(self, i: int) -> None:
        """Write a checkpoint after i iterations."""
        random, *further = self.ranks.gather(_random_state())
        state = {"task": self.task.state_dict(), "seconds": self.clock.seconds, "random": random}
        if self.ranks.is_first:
            self.folder.checkpoint(i, {**state, "random_others": further} if further else state)


@contextlib.contextmanager
def interruptions(patience: float = 0.0) -> Iterator[Callable[[], bool]]:
    """Turn Ctrl-C and SIGTERM into a flag that the loop reads between two steps.

    A second signal stops at once, unless it arrives within ``patience`` seconds of the first:
    torchrun sends a second one itself after a single Ctrl-C.
    """
    signalled_at: list[float] = []

    def handle(number: int, frame: object) -> None:
        if signalled_at and time.monotonic() >= signalled_at[0] + patience:
            raise KeyboardInterrupt
        signalled_at.append(time.monotonic())

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(signalled_at)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _restore(
    task: Task, folder: Folder, ranks: Ranks, notify: Notify
) -> tuple[int, float, dict[str, Any]]:
    """Restore the last good checkpoint; return its iteration, seconds and last metrics."""
    start, saved = ranks.from_first(lambda: folder.restore(notify))
    if saved is None:
        return start, 0.0, {}
    task.load_state_dict(saved["task"])
    states = [saved["random"], *saved.get("random_others", [])]
    _set_random_state(states[ranks.rank if len(states) == ranks.size else 0])
    if len(states) != ranks.size:
        ranks.split_random_streams()
    return start, saved["seconds"], ranks.from_first(folder.last_metrics) or {}


class _Clock:
    """The seconds spent in steps, until the device has finished them."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.start()

    def start(self) -> None:
        _synchronise()
        self._started_at = time.perf_counter()

    def stop(self) -> None:
        _synchronise()
        self.seconds += time.perf_counter() - self._started_at


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _random_state() -> dict[str, torch.Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_random_state(state: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
