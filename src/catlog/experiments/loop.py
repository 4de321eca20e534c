"""The one loop that every experiment runs in: step, log, checkpoint, resume."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch

from .folder import Folder


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


Watcher = Callable[[int, int, Mapping[str, float]], None]  # (iterations done, of how many, last metrics)


def loop(
    task: Task, folder: Folder, *, checkpoint_every: float = 30.0, watch: Watcher = lambda done, total, row: None
) -> dict[str, Any]:
    """Run ``task`` to its end, from where the folder's last good checkpoint stands, and return the last metrics.

    Random numbers come from torch's global generators; their state is part of a checkpoint, so a run that was cut and resumed
    on a CPU logs the same numbers as one that was not. ``seconds`` in the metrics is the time spent in steps (not in
    measuring, nor in the first step, which compiles). ``checkpoint_every`` is in seconds; checkpoints fall on logged points.
    """
    start, saved = folder.restore()
    seconds, row = 0.0, dict[str, Any]()
    if saved is not None:
        task.load_state_dict(saved["task"])
        seconds = saved["seconds"]
        _set_random_state(saved["random"])
        rows = folder.metrics()
        row = rows[-1] if rows else {}

    def save(i: int) -> None:
        folder.checkpoint(i, {"task": task.state_dict(), "seconds": seconds, "random": _random_state()})

    if start == 0:
        row = {"iteration": 0, "seconds": 0.0, **task.measure(0)}
        folder.log(row)
        watch(0, task.iterations, row)
    saved_at = told_at = began = time.perf_counter()
    with interruptions() as asked_to_stop:
        for i in range(start, task.iterations):
            task.step(i)
            done = i + 1
            if i == start:
                _synchronise()
                began = time.perf_counter()
            if done % task.every == 0 or done == task.iterations:
                _synchronise()
                seconds += time.perf_counter() - began
                row = {"iteration": done, "seconds": round(seconds, 6), **task.measure(done)}
                folder.log(row)
                if time.perf_counter() - saved_at > checkpoint_every:
                    save(done)
                    saved_at = time.perf_counter()
                watch(done, task.iterations, row)
                _synchronise()
                began = time.perf_counter()
            elif time.perf_counter() - told_at > 0.2:
                told_at = time.perf_counter()
                watch(done, task.iterations, row)
            if asked_to_stop():
                seconds += time.perf_counter() - began
                save(done)
                raise KeyboardInterrupt
    folder.finish(row)
    return row


@contextlib.contextmanager
def interruptions() -> Iterator[Callable[[], bool]]:
    """Ctrl-C (or SIGTERM) as a question that the loop asks between two steps; the second Ctrl-C stops at once."""
    asked: list[int] = []

    def handle(number: int, frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

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
