"""Running one configuration in its folder: step, log, checkpoint, resume."""

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

from .run_folder import Folder, Row, folder_for
from .settings import Settings

WATCH_EVERY = 0.2  # seconds between two calls of `watch` that no logged point causes

# called with the iterations done, their total, and the last metrics
Watcher = Callable[[int, int, Mapping[str, float]], None]


def execute(
    config: Settings,
    folder: Path | str | None = None,
    *,
    resume: bool = False,
    checkpoint_every: float = 30.0,
    watch: Watcher = lambda done, total, row: None,
) -> Row:
    """Run ``config`` in ``folder`` and return its last metrics. A complete run is not repeated.

    Nothing is written before the settings are checked and the data are loaded.

    Random numbers come from torch's global generators, whose states are part of a checkpoint. On a
    CPU, a resumed run therefore logs the same numbers as an uninterrupted one, provided that
    versions and the number of threads are the same, which are recorded.

    ``seconds`` in the metrics is the time spent in steps, without measuring and without the first
    step, which compiles.

    Args:
        config: an experiment.
        folder: by default ``folder_for(config)``.
        resume: continue the run in the folder; without it, a folder with a run is refused. A
            shorter run of the same settings is extended, such as from 10 to 12 epochs. The result
            is that of a run of 12 epochs from the start.
        checkpoint_every: seconds between checkpoints, which fall on logged points.
        watch: called with the iterations done, their total and the last metrics.
    """
    home = Folder(folder_for(config) if folder is None else folder)

    def complete_row() -> Row | None:
        home.check(config, resume=resume)
        return home.completed(config.record())

    if (last := complete_row()) is not None:
        return last
    torch.manual_seed(config.seed)
    task = config.task()
    with home.locked():
        if (last := complete_row()) is not None:  # another process has run it in the meantime
            return last
        start, clock = 0, _Clock()
        if (saved := home.restore()) is not None:
            task.load_state_dict(saved["task"])
            torch.set_rng_state(saved["cpu"])
            if "cuda" in saved and torch.cuda.is_available():
                torch.cuda.set_rng_state(saved["cuda"])
            start, clock.seconds = saved["iteration"], saved["seconds"]
        home.begin(config, start, task.iterations)

        def save(i: int) -> float:
            state: Row = {"config": config.record(), "task": task.state_dict()}
            state |= {"seconds": clock.seconds, "cpu": torch.get_rng_state()}
            if torch.cuda.is_available():
                state["cuda"] = torch.cuda.get_rng_state()
            home.save(i, state)
            return time.perf_counter()

        row: Row = (home.rows() or [{}])[-1]
        saved_at = watched_at = time.perf_counter()
        with interruptions() as is_asked_to_stop:
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
                    # The last checkpoint precedes the last measurement, because a longer run,
                    # which continues there, measures there only if it logs there.
                    if is_last and done > start:
                        save(done)
                    row = {"iteration": done, "seconds": round(clock.seconds, 6)}
                    row |= task.measure(done)
                    row = {key: value if _is_finite(value) else None for key, value in row.items()}
                    home.log(row)
                    if not is_last and time.perf_counter() - saved_at > checkpoint_every:
                        saved_at = save(done)
                if is_logged or done == start or time.perf_counter() - watched_at > WATCH_EVERY:
                    watched_at = time.perf_counter()
                    watch(done, task.iterations, row)
                if is_asked_to_stop() and not is_last:
                    clock.stop()
                    save(done)
                    raise KeyboardInterrupt
                if is_logged:
                    clock.start()
        return row


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


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
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self._started_at = time.perf_counter()

    def stop(self) -> None:
        started_at = self._started_at
        self.start()
        self.seconds += self._started_at - started_at
