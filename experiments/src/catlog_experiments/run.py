"""Running one configuration in its folder: step, log, checkpoint, resume."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from pathlib import Path

import torch

from .run_folder import Folder, Row, folder_for
from .settings import Settings

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
        resume: continue the run in the folder; without it, a folder with a run is refused.
        checkpoint_every: seconds between checkpoints, which fall on logged points.
        watch: called at every step, with the iterations done, their total and the last metrics.
    """
    home = Folder(folder_for(config) if folder is None else folder)
    torch.manual_seed(config.seed)
    task = config.task()
    with home.locked(), interruptions() as is_asked_to_stop:
        home.check(config, resume=resume)
        if (last := home.completed()) is not None:
            return last
        start, seconds = 0, 0.0
        if (saved := home.restore()) is not None:
            task.load_state_dict(saved["task"])
            torch.set_rng_state(saved["cpu"])
            if "cuda" in saved and torch.cuda.is_available():
                torch.cuda.set_rng_state(saved["cuda"])
            start, seconds = saved["iteration"], saved["seconds"]
        home.begin(config, start, task.iterations)

        def save(i: int) -> float:
            state: Row = {"config": config.record(), "task": task.state_dict()}
            state |= {"seconds": seconds, "cpu": torch.get_rng_state()}
            if torch.cuda.is_available():
                state["cuda"] = torch.cuda.get_rng_state()
            home.save(i, state)
            return time.perf_counter()

        row: Row = (home.rows() or [{}])[-1]
        saved_at = started_at = now()
        for done in range(start, task.iterations + 1):
            if done > start:
                task.step(done - 1)
            if done == start + 1:
                started_at = now()  # the first step, which may compile, does not count
            is_last, is_stopped = done == task.iterations, is_asked_to_stop()
            is_logged = (done % task.every == 0 or is_last) and row.get("iteration") != done
            if is_logged or is_stopped:
                seconds += (now() - started_at) * (done > start)
            if is_logged:
                row = {"iteration": done, "seconds": round(seconds, 6), **task.measure(done)}
                row = {key: value if isfinite(value) else None for key, value in row.items()}
                home.log(row)
                if is_last or time.perf_counter() - saved_at > checkpoint_every:
                    saved_at = save(done)
                started_at = now()
            watch(done, task.iterations, row)
            if is_stopped and not is_last:
                save(done)
                raise KeyboardInterrupt
        return row


def now() -> float:
    """Return the time when the device has finished its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


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
