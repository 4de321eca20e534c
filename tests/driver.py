"""A sweep in a process of its own, seen from outside: what it runs, what it leaves behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from catlog.experiments import Optimisation, folder_for
from catlog.experiments.run_folder import LOCK, Folder
from catlog.experiments.sweep import grid

PATIENCE = 400.0  # seconds after which something is broken


def descendants(session: int) -> list[int]:
    """The processes of a session: a process that was started in one of its own, and all that it started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its = path.read_text(encoding="utf-8").rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(its) == session and state != "Z":
            found.append(int(path.parent.name))
    return found


def until(what: Callable[[], Any], meanwhile: Callable[[], None] = lambda: None) -> None:
    """Wait for it."""
    limit = time.monotonic() + PATIENCE
    while not what():
        meanwhile()
        assert time.monotonic() < limit, "it did not come to pass"
        time.sleep(0.01)


class Driver:
    """``catlog sweep optimisation --jobs 2`` over some seeds."""

    def __init__(self, root: Path, base: Optimisation, seeds: int, *flags: str) -> None:
        self.configs = grid(base, [f"seed={','.join(map(str, range(seeds)))}"])
        self.folders = [Folder(folder_for(config, root)) for config in self.configs]
        given = [
            "--iterations",
            str(base.iterations),
            "--every",
            str(base.every),
            "--variables",
            str(base.variables),
        ]
        axis = ["--grid", f"seed={','.join(map(str, range(seeds)))}"]
        self.command = [
            sys.executable,
            "-m",
            "catlog",
            "sweep",
            "optimisation",
            *given,
            *axis,
            "--root",
            str(root),
            *flags,
        ]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> int:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        quiet = subprocess.DEVNULL
        before = signal.signal(
            signal.SIGINT, signal.default_int_handler
        )  # else a job in the background hands down that it is ignored
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
        """The processes that run something now."""
        alive = set(descendants(self.process.pid)) if self.process is not None else set()
        return [
            pid
            for folder in self.folders
            for pid in (each["process"] for each in folder.sessions()[-1:])
            if pid in alive
        ]

    def signal(self, number: signal.Signals, group: bool = False) -> None:
        assert self.process is not None
        (os.killpg if group else os.kill)(self.process.pid, number)

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(PATIENCE)

    def gone(self) -> bool:
        """Whether nothing is left of it, neither itself nor what it started."""
        assert self.process is not None
        return not self.running and not descendants(self.process.pid)

    def end(self) -> None:
        """Kill what is left of it."""
        for pid in descendants(self.process.pid) if self.process is not None else []:
            os.kill(pid, signal.SIGKILL)
        if self.process is not None:
            self.process.wait()


def untimed(folder: Folder) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in row.items() if key != "seconds"} for row in folder.metrics()
    ]


def check_clean(folder: Folder) -> None:
    """A complete run's folder: nothing half-written, no lock that is held, each point once."""
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
