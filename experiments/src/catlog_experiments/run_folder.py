"""A run on disk: a folder that survives crashes, full disks and Ctrl-C.

run.lock              locked by the process that runs it
sessions.jsonl        one line per start: the settings, versions, host, command and time
metrics.jsonl         one line per logged point
checkpoint.pt         the state after some iterations, and the points until then
"""

import contextlib
import hashlib
import json
import logging
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

import catlog

from .files import append_line, pack, read_lines, unpack, write_atomically
from .settings import Settings

Row = dict[str, Any]
LOGGER = logging.getLogger(__name__)


def folder_for(config: Settings, root: Path | str = "runs") -> Path:
    """Return the default folder of a run: readable, and different for different runs.

    >>> from catlog_experiments import Addition
    >>> folder_for(Addition(digits=8, estimator="RLOO-F", seed=3)).as_posix()[:-7]
    'runs/addition/RLOO-F-mnist-5000-8-seed3'
    """
    record = json.dumps(config.record(), sort_keys=True)
    sizes = [str(getattr(config, size)) for size in config.sizes]
    digest = hashlib.sha256(record.encode()).hexdigest()[:6]
    name = "-".join([config.estimator, *sizes, f"seed{config.seed}", digest])
    return Path(root) / config.name / re.sub(r"[^\w+-]", "_", name)


class Folder:
    """The files of one run."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._metrics = self.path / "metrics.jsonl"
        self._sessions = self.path / "sessions.jsonl"
        self._checkpoint = self.path / "checkpoint.pt"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder and lock it; raise if it stays locked for five seconds.

        The operating system releases the lock when its process ends, for whatever reason.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / "run.lock")
        try:
            lock.acquire(timeout=5.0, poll_interval=0.05)
        except Timeout as error:
            raise ValueError(
                f"{self.path} is in use by another process. Wait for it, or stop it."
            ) from error
        try:
            for part in self.path.glob("*.part"):  # left by killed processes: no other one writes
                part.unlink(missing_ok=True)
            yield
        finally:
            lock.release()

    def check(self, config: Settings, *, resume: bool) -> None:
        """Raise if the folder holds another run, or holds this run and ``resume`` is False."""
        if not (any(row.get("iteration") for row in self.rows()) or self._checkpoint.exists()):
            return
        old, new = self.config() or {}, config.record()
        if wrong := sorted(key for key in {*old, *new} if old.get(key) != new.get(key)):
            raise ValueError(
                f"{self.path} holds another run (its {', '.join(wrong)} differ), or its "
                "sessions.jsonl is lost or damaged. Pass another --folder."
            )
        if not resume:
            raise ValueError(
                f"{self.path} holds this run already. Pass --resume to continue it, or another "
                "--folder."
            )

    def sessions(self) -> list[Row]:
        """Return the undamaged lines of sessions.jsonl."""
        rows = read_lines(self._sessions)
        return [row for row in rows if row and isinstance(row.get("config"), dict)]

    def config(self) -> Row | None:
        """Return the settings of the last session, or of the checkpoint; None without both."""
        sessions = self.sessions()
        saved = sessions[-1] if sessions else unpack(self._checkpoint)
        return saved["config"] if saved else None

    def rows(self) -> list[Row]:
        """Return the logged points before the first damaged line."""
        lines = read_lines(self._metrics)
        return lines[: lines.index(None)] if None in lines else lines  # type: ignore[return-value]

    def completed(self) -> Row | None:
        """Return the last point of a complete run, else None."""
        sessions, rows = self.sessions(), self.rows()
        if not sessions or not rows:
            return None
        return rows[-1] if rows[-1].get("iteration") == sessions[-1].get("iterations") else None

    def begin(self, config: Settings, iteration: int, iterations: int) -> None:
        """Record a session that starts at ``iteration``."""
        session = {
            "began": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "host": socket.gethostname(),
            "process": os.getpid(),
            "command": " ".join(["catlog", *sys.argv[1:]]),
            "iteration": iteration,
            "iterations": iterations,
            "config": config.record(),
        }
        append_line(self._sessions, session | environment())

    def log(self, row: Row) -> None:
        """Append a logged point."""
        append_line(self._metrics, row)

    def save(self, iteration: int, state: Mapping[str, Any]) -> None:
        """Save the state after ``iteration`` iterations, with the points logged so far."""
        state = {**state, "iteration": iteration, "rows": self.rows()}
        write_atomically(self._checkpoint, pack(state))

    def restore(self) -> Row | None:
        """Return the saved state, None if there is none or it is damaged; go back to its points."""
        saved: Row | None = unpack(self._checkpoint)
        if saved is None and self._checkpoint.exists():
            LOGGER.warning(f"{self._checkpoint} is damaged, so the run starts from scratch.")
        rows = saved["rows"] if saved else []
        if rows or self._metrics.exists():
            write_atomically(self._metrics, "".join(json.dumps(row) + "\n" for row in rows))
        return saved


def environment() -> Row:
    """Return what the last bits of a run's numbers depend on."""
    on_gpu = torch.cuda.is_available()
    return {
        "catlog": catlog.__version__,
        "commit": _commit(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name() if on_gpu else platform.processor() or "CPU",
        "threads": torch.get_num_threads(),
    }


@cache
def _commit() -> str:
    """Return the commit of the source tree, "" if the package is not in one."""
    source = Path(__file__).resolve().parents[3]
    if not (source / ".git").exists() or shutil.which("git") is None:
        return ""
    command = ["git", "-C", str(source), "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()
