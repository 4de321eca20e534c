"""Run a sweep in a separate process, and observe its processes and folders."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from catlog_experiments import Optimisation, folder_for
from catlog_experiments.run_folder import LOCK, Folder
from catlog_experiments.sweep import grid

PATIENCE = 400.0  # seconds to wait before a test fails


def descendants(session: int) -> list[int]:
    """Return the processes of a session: its leader and the processes that this has started."""
    processes = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of_session = (
                path.read_text(encoding="utf-8").rpartition(")")[2].split()[:4]
            )
        except OSError:
            continue
        if int(of_session) == session and state != "Z":
            processes.append(int(path.parent.name))
    return processes


def until(condition: Callable[[], Any], meanwhile: Callable[[], None] = lambda: None) -> None:
    """Wait until the condition is true, and call ``meanwhile`` again and again."""
    limit = time.monotonic() + PATIENCE
    while not condition():
        meanwhile()
        assert time.monotonic() < limit, "the condition did not become true"
        time.sleep(0.01)


class Driver:
    """``catlog sweep optimisation --jobs 2`` over some seeds."""

    def __init__(self, root: Path, base: Optimisation, seeds: int, *flags: str) -> None:
        self.configs = grid(base, [f"seed={','.join(map(str, range(seeds)))}"])
        self.folders = [Folder(folder_for(config, root)) for config in self.configs]
        options = {
            "--iterations": base.iterations,
            "--every": base.every,
            "--variables": base.variables,
            "--grid": f"seed={','.join(map(str, range(seeds)))}",
            "--root": root,
        }
        self.command = [sys.executable, "-m", "catlog_experiments", "sweep", "optimisation", *flags]
        for name, value in options.items():
            self.command += [name, str(value)]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> int:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        quiet = subprocess.DEVNULL
        # A job in the background would pass on that it ignores the signal.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            self.process = subprocess.Popen(
                self.command, env=environment, stdout=quiet, stderr=quiet, start_new_session=True
            )
        finally:
            signal.signal(signal.SIGINT, before)
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def workers(self) -> list[int]:
        """Return the processes that have a run at the moment."""
        alive = set(descendants(self.process.pid)) if self.process is not None else set()
        return [
            pid
            for folder in self.folders
            for pid in (session["process"] for session in folder.sessions()[-1:])
            if pid in alive
        ]

    def signal(self, number: signal.Signals, group: bool = False) -> None:
        assert self.process is not None
        (os.killpg if group else os.kill)(self.process.pid, number)

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(PATIENCE)

    def gone(self) -> bool:
        """Return whether it has ended, with all processes that it started."""
        assert self.process is not None
        return not self.running and not descendants(self.process.pid)

    def end(self) -> None:
        """Kill its remaining processes."""
        for pid in descendants(self.process.pid) if self.process is not None else []:
            os.kill(pid, signal.SIGKILL)
        if self.process is not None:
            self.process.wait()


def untimed(folder: Folder) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in row.items() if key != "seconds"} for row in folder.metrics()
    ]


def check_clean(folder: Folder) -> None:
    """Check the folder of a complete run: no temporary file, no held lock, every point once."""
    assert folder.finished()
    assert not list(folder.path.glob("*.part"))
    with folder.locked(patience=0.0):
        pass
    expected = {
        "config.json",
        "metrics.jsonl",
        "provenance.json",
        "sessions.jsonl",
        "summary.json",
        LOCK,
    }
    assert {
        path.name for path in folder.path.iterdir() if not path.name.startswith("checkpoint-")
    } == expected
    iterations = [row["iteration"] for row in folder.metrics()]
    assert iterations == sorted(set(iterations))
