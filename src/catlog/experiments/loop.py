"""The one loop that every experiment runs in: step, log, checkpoint, resume."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch

from .ranks import Ranks
from .run_folder import Folder, Tell, say_nothing

AGREE_EVERY = 10  # iterations after which several ranks ask each other whether to stop


class Task(Protocol):
    """What an experiment does.

    iterations: how many steps in all.
    every: measure and log after so many.
    """

    iterations: int
    every: int

    def step(self, i: int) -> None:
        """Iteration i, counted from 0. It must not wait for the device."""
        ...

    def measure(self, i: int) -> dict[str, float]:
        """The metrics after i iterations."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


Watcher = Callable[
    [int, int, Mapping[str, float]], None
]  # (iterations done, of how many, last metrics)


def loop(
    task: Task,
    folder: Folder,
    *,
    checkpoint_every: float = 30.0,
    watch: Watcher = lambda done, total, row: None,
    ranks: Ranks = Ranks(),
    tell: Tell = say_nothing,
    patience: float | None = None,
) -> dict[str, Any]:
    """Run ``task`` to its end, from where the folder's last good checkpoint stands, and return the last metrics.

    Random numbers come from torch's global generators; their state is part of a checkpoint, so a run that was cut and resumed
    on a CPU, with the same versions and the same number of threads, logs the same numbers as one that was not: sums are divided
    among threads, and another division rounds differently. Where versions or threads have changed, ``tell`` gets a note.
    ``seconds`` in the metrics is the time spent in steps (not in measuring, nor in the first step, which compiles).
    ``checkpoint_every`` is in seconds; checkpoints fall on logged points.

    With several ``ranks`` all step and measure, and the first one reads, logs and writes. A checkpoint holds the generators of
    all ranks; resumed with another number of them, the others' are made from the first one's. ``patience``: see
    :func:`interruptions`; None: 5 seconds with several ranks, none with one.
    """
    start, saved = ranks.from_first(lambda: folder.restore(tell))
    seconds, row = 0.0, dict[str, Any]()
    if saved is not None:
        task.load_state_dict(saved["task"])
        seconds = saved["seconds"]
        states = [saved["random"], *saved.get("random_others", [])]
        _set_random_state(states[ranks.rank if len(states) == ranks.size else 0])
        if len(states) != ranks.size:
            ranks.part()
        row = ranks.from_first(folder.last) or {}
    if ranks.first:
        folder.begin(start, task.iterations, ranks.size, tell)

    def save(i: int) -> None:
        random, *others = ranks.all(_random_state())
        state = {"task": task.state_dict(), "seconds": seconds, "random": random}
        if ranks.first:
            folder.checkpoint(i, {**state, "random_others": others} if others else state)

    def log(i: int) -> dict[str, Any]:
        row = {"iteration": i, "seconds": round(seconds, 6), **task.measure(i)}
        if ranks.first:
            folder.log(row)
        return row

    if start == 0:
        row = log(0)
        watch(0, task.iterations, row)
    saved_at = told_at = began = time.perf_counter()
    if patience is None:
        patience = 5.0 if ranks.size > 1 else 0.0
    with interruptions(patience) as asked_to_stop:
        for i in range(start, task.iterations):
            task.step(i)
            done = i + 1
            if i == start:
                _synchronise()
                began = time.perf_counter()
            logged = done % task.every == 0 or done == task.iterations
            if logged:
                _synchronise()
                seconds += time.perf_counter() - began
                row = log(done)
                if ranks.any(time.perf_counter() - saved_at > checkpoint_every):
                    save(done)
                    saved_at = time.perf_counter()
                watch(done, task.iterations, row)
                _synchronise()
                began = time.perf_counter()
            elif time.perf_counter() - told_at > 0.2:
                told_at = time.perf_counter()
                watch(done, task.iterations, row)
            if (ranks.size == 1 or logged or done % AGREE_EVERY == 0) and ranks.any(
                asked_to_stop()
            ):
                seconds += time.perf_counter() - began
                save(done)
                raise KeyboardInterrupt
    if ranks.first:
        folder.finish(row)
    return row


@contextlib.contextmanager
def interruptions(patience: float = 0.0) -> Iterator[Callable[[], bool]]:
    """Ctrl-C (or SIGTERM) as a question that the loop asks between two steps; the second Ctrl-C stops at once.

    ``patience``: not within so many seconds of the first, as torchrun passes on what the terminal has sent already.
    """
    asked: list[float] = []

    def handle(number: int, frame: object) -> None:
        if asked and time.monotonic() >= asked[0] + patience:
            raise KeyboardInterrupt
        asked.append(time.monotonic())

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
