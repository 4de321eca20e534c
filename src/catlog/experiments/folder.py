"""A run on disk: a folder that survives crashes, full disks and Ctrl-C.

config.json           what was asked for: the experiment and all its fields
provenance.json       with what: versions, device, git commit, command, time
sessions.jsonl        when and where it began and went on: one line each
metrics.jsonl         what was seen: one line per logged point
checkpoint-<i>.pt     where it stands after i iterations (the last two are kept), each with its .sha256
summary.json          the last metrics, written when the run is complete
"""

import contextlib
import errno
import hashlib
import io
import json
import math
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

if sys.platform != "win32":
    import fcntl

KEPT = 2


class Folder:
    """The files of one run. Files are replaced whole or appended to, so that a reader never sees half of one as good."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def config_path(self) -> Path:
        return self.path / "config.json"

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def summary_path(self) -> Path:
        return self.path / "summary.json"

    def create(self, config: Mapping[str, Any], *, resume: bool) -> None:
        """Make the folder for this configuration, or accept the one that is there if it is the same one."""
        if self.config_path.exists():
            there = self.config()
            wanted = json.loads(json.dumps(config))
            if there != wanted:
                keys = sorted(key for key in {*there, *wanted} if there.get(key) != wanted.get(key))
                raise ValueError(f"{self.path} holds another run (its {', '.join(keys)} differ). Give another --folder.")
            if not resume:
                raise ValueError(f"{self.path} holds this run already. Pass --resume to go on with it, or another --folder.")
        else:
            with told_when_full(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
                self.write_json("config.json", config)
                self.write_json("provenance.json", provenance())

    def config(self) -> dict[str, Any]:
        try:
            return json.loads(self.config_path.read_text())
        except (OSError, ValueError) as error:
            raise ValueError(f"{self.config_path} cannot be read ({error}). Is {self.path} the folder of a run?") from error

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        _replace(self.path / name, (json.dumps(content, indent=1) + "\n").encode())

    @contextlib.contextmanager
    def held(self, patience: float = 5.0) -> Iterator[None]:
        """Keep other processes out while this one runs; the lock ends with its process, however that ends."""
        with self.config_path.open("r+") as file:
            until = time.monotonic() + patience
            while sys.platform != "win32":
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() > until:
                        raise ValueError(f"{self.path} is being run by another process. Wait for it, or stop it.") from error
                    time.sleep(0.1)
            yield

    def begin(self, iteration: int, iterations: int, ranks: int) -> None:
        """Note that a process goes on from here."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        where = {"host": socket.gethostname(), "process": os.getpid(), "ranks": ranks}
        self._append("sessions.jsonl", {"began": now, "iteration": iteration, "iterations": iterations, **where})

    def sessions(self) -> list[dict[str, Any]]:
        return _lines(self.path / "sessions.jsonl")

    def log(self, row: Mapping[str, float]) -> None:
        """Append one line to the metrics; a number that is not finite is written as null."""
        self._append("metrics.jsonl", {key: value if math.isfinite(value) else None for key, value in row.items()})

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        with told_when_full(self.path), (self.path / name).open("a") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def metrics(self) -> list[dict[str, Any]]:
        """The complete lines; what follows the first damaged one is left out."""
        return _lines(self.metrics_path)

    def last(self) -> dict[str, Any] | None:
        """The last metrics, read from the end of the file."""
        try:
            with self.metrics_path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 65536))
                lines = file.read().splitlines(keepends=True)
        except FileNotFoundError:
            return None
        for line in reversed(lines):
            if (row := _row(line)) is not None:
                return row
        return None

    def checkpoint(self, iteration: int, state: Mapping[str, Any]) -> None:
        """Save the state after ``iteration`` iterations, beside the number of metrics written so far."""
        buffer = io.BytesIO()
        torch.save({"iteration": iteration, "lines": len(self.metrics()), "state": state}, buffer)
        content = buffer.getvalue()
        path = self.path / f"checkpoint-{iteration:09d}.pt"
        with told_when_full(self.path):
            _replace(path, content)
            _replace(path.with_suffix(".sha256"), hashlib.sha256(content).hexdigest().encode())
        for old in sorted(self.path.glob("checkpoint-*.pt"))[:-KEPT]:
            old.unlink()
            old.with_suffix(".sha256").unlink(missing_ok=True)

    def restore(self) -> tuple[int, dict[str, Any] | None]:
        """The newest state that is whole and whose metrics are there; the metrics are cut back to it. (0, None): from scratch."""
        rows = self.metrics()
        for path in sorted(self.path.glob("checkpoint-*.pt"), reverse=True):
            saved = _load(path)
            if saved is not None and saved["lines"] <= len(rows):
                self._rewrite(rows[: saved["lines"]])
                return saved["iteration"], saved["state"]
        self._rewrite([])
        return 0, None

    def _rewrite(self, rows: list[dict[str, Any]]) -> None:
        if self.metrics_path.exists() or rows:
            _replace(self.metrics_path, "".join(json.dumps(row) + "\n" for row in rows).encode())

    def finish(self, row: Mapping[str, float]) -> None:
        with told_when_full(self.path):
            self.write_json("summary.json", row)

    def summary(self) -> dict[str, Any]:
        """The last metrics of a complete run."""
        return json.loads(self.summary_path.read_text())

    def finished(self) -> bool:
        return self.summary_path.exists()


def _row(line: bytes) -> dict[str, Any] | None:
    """A line of JSON, or None where it is damaged."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if line.endswith(b"\n") and isinstance(row, dict) else None


def _lines(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    if path.exists():
        for line in path.read_bytes().splitlines(keepends=True):
            if (row := _row(line)) is None:
                break
            rows.append(row)
    return rows


def _load(path: Path) -> dict[str, Any] | None:
    """A checkpoint, or None where it is damaged."""
    try:
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != path.with_suffix(".sha256").read_text():
            return None
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except OSError:
        return None


def _replace(path: Path, content: bytes) -> None:
    """Write a whole file or leave the old one."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def told_when_full(path: Path) -> Iterator[None]:
    """Say it plainly where the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(
            error.errno,
            f"The disk is full: {path} could not be written to. What was written before is kept; make room and run the same "
            "command with --resume.",
        ) from error


def provenance() -> dict[str, str]:
    """With what a run was made."""
    from .. import __version__

    cuda = torch.cuda.is_available()
    return {
        "catlog": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name() if cuda else f"{platform.processor() or 'CPU'}, {torch.get_num_threads()} threads",
        "commit": _commit(),
        "command": " ".join(["catlog", *sys.argv[1:]]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _commit() -> str:
    """The commit of the source tree, where this is one."""
    source = Path(__file__).resolve().parents[3]
    if not (source / ".git").exists():
        return ""
    try:
        asked = ["git", "-C", str(source), "describe", "--always", "--dirty", "--abbrev=12"]
        return subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
