"""A run on disk: a folder that survives crashes, full disks and Ctrl-C.

run.lock              held by the process that runs it; never written to, never replaced
config.json           what was asked for: the experiment and all its fields
provenance.json       with what: versions, device, git commit, command, time
sessions.jsonl        when, where and with what it began and went on: one line each
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
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from ..files.atomic import unfinished, write_atomically

KEPT = 2
LOCK = "run.lock"
FILES = re.compile(
    r"run\.lock|(config|provenance|summary)\.json|(sessions|metrics)\.jsonl|checkpoint-\d+\.(pt|sha256)"
)
MADE_WITH = (
    "catlog",
    "commit",
    "torch",
    "python",
    "device",
    "threads",
)  # where one of them differs, so may the last bits

Tell = Callable[[str], None]


def say_nothing(note: str) -> None:
    """Leave a note unsaid."""


class Folder:
    """The files of one run. Files are replaced whole or appended to, so that a reader never sees half of one as good."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._good: list[Path] | None = (
            None  # checkpoints that are known to be whole, the newest last
        )

    @property
    def config_path(self) -> Path:
        return self.path / "config.json"

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def summary_path(self) -> Path:
        return self.path / "summary.json"

    @contextlib.contextmanager
    def held(self, patience: float = 5.0) -> Iterator[None]:
        """Make the folder and keep other processes out of it; the lock ends with its process, however that ends."""
        with told_when_full(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / LOCK)
            try:
                lock.acquire(timeout=patience, poll_interval=0.05)
            except Timeout as error:
                raise ValueError(
                    f"{self.path} is being run by another process. Wait for it, or stop it."
                ) from error
        try:
            for part in unfinished(
                self.path
            ):  # of processes that were killed: only the holder writes here
                part.unlink(missing_ok=True)
            yield
        finally:
            lock.release()

    def accept(self, config: Mapping[str, Any], *, resume: bool) -> None:
        """Raise unless this configuration may be run here: nothing was done here yet, or it is the same run, to be resumed."""
        if not self.begun():
            return
        there, wanted = self.recorded(), json.loads(json.dumps(config))
        if there is None:
            raise ValueError(
                f"{self.path} holds a run, but its config.json is lost or damaged, so that nobody knows which. "
                "Give another --folder, or remove this one."
            )
        if there != wanted:
            keys = sorted(key for key in {*there, *wanted} if there.get(key) != wanted.get(key))
            raise ValueError(
                f"{self.path} holds another run (its {', '.join(keys)} differ). Give another --folder."
            )
        if not resume:
            raise ValueError(
                f"{self.path} holds this run already. Pass --resume to go on with it, or another --folder."
            )

    def create(self, config: Mapping[str, Any]) -> None:
        """Write down what is run here, and with what, unless that is done."""
        if _json(self.config_path) == json.loads(json.dumps(config)):
            return
        with told_when_full(self.path):
            if not self.begun() or _json(self.path / "provenance.json") is None:
                self.write_json("provenance.json", provenance())
            self.write_json("config.json", config)

    def begun(self) -> bool:
        """Whether there is something to lose: a checkpoint, or metrics of more than the start."""
        return (
            any(self._checkpoints())
            or self.summary_path.exists()
            or any(row.get("iteration") for row in self.metrics())
        )

    def config(self) -> dict[str, Any]:
        try:
            return json.loads(self.config_path.read_bytes())
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{self.config_path} cannot be read ({error}). Is {self.path} the folder of a run?"
            ) from error

    def recorded(self) -> dict[str, Any] | None:
        """The configuration that is run here: config.json's, else that of the last session, else that of a checkpoint."""
        if (config := _json(self.config_path)) is not None:
            return config
        for session in reversed(self.sessions()):
            if "config" in session:
                return session["config"]
        found = (
            saved.get("config")
            for path in self._checkpoints()
            if (saved := _load(path)) is not None
        )
        return next((config for config in found if config is not None), None)

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        write_atomically(self.path / name, json.dumps(content, indent=1) + "\n")

    def begin(self, iteration: int, iterations: int, ranks: int, tell: Tell = say_nothing) -> None:
        """Note that a process goes on from here, and with what; tell where that is something else than before."""
        using = made_with()
        if iteration > 0 and (changes := self._changes(using)):
            tell(
                f"{self.path} goes on from iteration {iteration} with {', '.join(changes)}. From here on its numbers may differ "
                "from those of a run that was not interrupted; sessions.jsonl has the record."
            )
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        where = {"host": socket.gethostname(), "process": os.getpid(), "ranks": ranks}
        session = {"began": now, "iteration": iteration, "iterations": iterations, **where, **using}
        self._append("sessions.jsonl", {**session, "config": _json(self.config_path)})

    def _changes(self, using: Mapping[str, Any]) -> list[str]:
        """What is not as it was in the last session, or at the beginning."""
        before = {**(_json(self.path / "provenance.json") or {}), **(self.sessions() or [{}])[-1]}
        return [
            f"{name} {using[name] or 'unknown'} (before: {before[name] or 'unknown'})"
            for name in MADE_WITH
            if name in before and before[name] != using[name]
        ]

    def sessions(self) -> list[dict[str, Any]]:
        """The lines that are whole."""
        return [
            row
            for row in _lines(self.path / "sessions.jsonl")
            if row is not None and {"began", "iteration"} <= row.keys()
        ]

    def log(self, row: Mapping[str, float]) -> None:
        """Append one line to the metrics; a number that is not finite is written as null."""
        self._append("metrics.jsonl", _finite(row))

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        with told_when_full(self.path), (self.path / name).open("a+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            if size and file.read(1) != b"\n":
                file.write(b"\n")  # the last line was cut: this one is to be whole
            file.write(json.dumps(row).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def metrics(self) -> list[dict[str, Any]]:
        """The complete lines; what follows the first damaged one is left out."""
        rows: list[dict[str, Any]] = []
        for row in _lines(self.metrics_path):
            if row is None:
                break
            rows.append(row)
        return rows

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

    def _checkpoints(self) -> list[Path]:
        """All of them, whole or not, the newest first."""
        return sorted(self.path.glob("checkpoint-*.pt"), reverse=True)

    def checkpoint(self, iteration: int, state: Mapping[str, Any]) -> None:
        """Save the state after ``iteration`` iterations, beside the number of metrics written so far.

        Of the others the last one that is known to be whole stays; what is damaged goes, whatever its number.
        """
        if self._good is None:
            self._good = [each for each in reversed(self._checkpoints()) if _load(each) is not None]
        buffer = io.BytesIO()
        lines = len(self.metrics())
        torch.save(
            {
                "iteration": iteration,
                "lines": lines,
                "config": _json(self.config_path),
                "state": state,
            },
            buffer,
        )
        content = buffer.getvalue()
        path = self.path / f"checkpoint-{iteration:09d}.pt"
        with told_when_full(self.path):
            write_atomically(path, content)
            write_atomically(path.with_suffix(".sha256"), hashlib.sha256(content).hexdigest())
        self._good = [*(each for each in self._good if each != path), path][-KEPT:]
        for old in self._checkpoints():
            if old not in self._good:
                _remove(old)

    def restore(self, tell: Tell = say_nothing) -> tuple[int, dict[str, Any] | None]:
        """The newest state that is whole, this run's, and whose metrics are there; the metrics are cut back to it.

        (0, None): from scratch. ``tell`` gets what had to be passed over.
        """
        rows, config, passed = self.metrics(), _json(self.config_path), list[str]()
        iteration, state, lines, self._good = 0, None, 0, []
        for path in self._checkpoints():
            saved = _load(path)
            if saved is None:
                passed.append(f"{path.name} is damaged")
            elif config is not None and saved.get("config") not in (None, config):
                passed.append(f"{path.name} is of another run")
            elif saved["lines"] > len(rows):
                passed.append(f"the metrics of {path.name} are lost")
                _remove(
                    path
                )  # else it would fit again as soon as there are as many metrics, made in another way
            else:
                iteration, state, lines, self._good = (
                    saved["iteration"],
                    saved["state"],
                    saved["lines"],
                    [path],
                )
                break
        self._rewrite(rows[:lines])
        if passed:
            where = f"goes on from iteration {iteration}" if iteration else "begins again"
            tell(f"{self.path} {where}: {', '.join(passed)}.")
        return iteration, state

    def _rewrite(self, rows: list[dict[str, Any]]) -> None:
        if self.metrics_path.exists() or rows:
            with told_when_full(self.path):
                write_atomically(self.metrics_path, "".join(json.dumps(row) + "\n" for row in rows))

    def finish(self, row: Mapping[str, float]) -> None:
        with told_when_full(self.path):
            self.write_json("summary.json", _finite(row))

    def summary(self) -> dict[str, Any] | None:
        """The last metrics of a complete run; None where it is not complete, or its end is damaged and has to be run again."""
        summary, last = _json(self.summary_path), self.last()
        whole = (
            summary is not None
            and last is not None
            and summary.get("iteration") == last.get("iteration")
        )
        return summary if whole else None

    def finished(self) -> bool:
        return self.summary() is not None


def refuse_run_file(path: Path | str) -> None:
    """Raise where ``path``, to be written to, is a file of a run."""
    path = Path(path).resolve()
    if FILES.fullmatch(path.name) and any(
        (path.parent / name).exists() for name in (LOCK, "config.json", "metrics.jsonl")
    ):
        raise ValueError(
            f"{path} is a file of the run in {path.parent}, which would be lost. Give another file to write to."
        )


def _finite(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value if value is not None and math.isfinite(value) else None
        for key, value in row.items()
    }


def _row(line: bytes) -> dict[str, Any] | None:
    """A line of JSON, or None where it is damaged."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if line.endswith(b"\n") and isinstance(row, dict) else None


def _lines(path: Path) -> list[dict[str, Any] | None]:
    """The lines of a file of JSON, None for each that is damaged."""
    try:
        return [_row(line) for line in path.read_bytes().splitlines(keepends=True)]
    except FileNotFoundError:
        return []


def _json(path: Path) -> dict[str, Any] | None:
    """What a JSON file holds, or None where it is lost or damaged."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _load(path: Path) -> dict[str, Any] | None:
    """A checkpoint, or None where it is damaged."""
    try:
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest().encode() != path.with_suffix(".sha256").read_bytes():
            return None
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except OSError:
        return None


def _remove(checkpoint: Path) -> None:
    checkpoint.unlink(missing_ok=True)
    checkpoint.with_suffix(".sha256").unlink(missing_ok=True)


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


def provenance() -> dict[str, Any]:
    """With what a run was made, by whom, and when."""
    return {
        **made_with(),
        "platform": platform.platform(),
        "command": " ".join(["catlog", *sys.argv[1:]]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def made_with() -> dict[str, Any]:
    """What the last bits of a run's numbers depend on."""
    from .. import __version__

    return {
        "catlog": __version__,
        "commit": _commit(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else platform.processor() or "CPU",
        "threads": torch.get_num_threads(),
    }


@cache
def _commit() -> str:
    """The commit of the source tree, where this is one."""
    source = Path(__file__).resolve().parents[3]
    if not (source / ".git").exists():
        return ""
    try:
        asked = ["git", "-C", str(source), "describe", "--always", "--dirty", "--abbrev=12"]
        return subprocess.run(
            asked, capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
