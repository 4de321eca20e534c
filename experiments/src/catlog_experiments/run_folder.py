"""A run on disk: a folder that survives crashes, full disks and Ctrl-C.

run.lock              locked by the process that runs it; never written to, never replaced
config.json           the experiment and all its fields
provenance.json       versions, device, git commit, command and time of the first start
sessions.jsonl        one line per start or resumption: time, host, versions
metrics.jsonl         one line per logged point
checkpoint-<i>.pt     the state after i iterations, with its .sha256; the last two are kept
summary.json          the last metrics, written when the run is complete
"""

import contextlib
import errno
import hashlib
import io
import json
import math
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from .environment import environment, provenance
from .files.atomic import unfinished, write_atomically

KEPT = 2  # checkpoints, so that one is left if the newest is damaged
LOCK = "run.lock"
FILES = re.compile(
    r"run\.lock|(config|provenance|summary)\.json|(sessions|metrics)\.jsonl"
    r"|checkpoint-\d+\.(pt|sha256)"
)

Notify = Callable[[str], None]


def ignore_note(note: str) -> None:
    """Do nothing."""


class Folder:
    """The files of one run.

    Files are written atomically or appended to, so a reader recognises half-written ones.

    ``length`` is the setting that says how long the run is. A run can be extended: a larger value
    continues it, and any other change makes another run.
    """

    def __init__(self, path: Path | str, length: str = "") -> None:
        self.path = Path(path)
        self.config_path = self.path / "config.json"
        self.metrics_path = self.path / "metrics.jsonl"
        self.summary_path = self.path / "summary.json"
        self.length = length
        self._intact: list[Path] | None = None  # checkpoints known to be undamaged, newest last

    @contextlib.contextmanager
    def locked(self, patience: float = 5.0) -> Iterator[None]:
        """Create the folder and lock it; raise if it stays locked for ``patience`` seconds.

        The operating system releases the lock when its process ends, for whatever reason.
        """
        with explained_when_full(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / LOCK)
            try:
                lock.acquire(timeout=patience, poll_interval=0.05)
            except Timeout as error:
                raise ValueError(
                    f"{self.path} is in use by another process. Wait for it, or stop it."
                ) from error
        try:
            for part in unfinished(self.path):  # left by killed processes: no other one writes now
                part.unlink(missing_ok=True)
            yield
        finally:
            lock.release()

    def check_config(self, config: Mapping[str, Any], *, resume: bool) -> None:
        """Raise if the folder holds another run, or holds this run and ``resume`` is False.

        With ``resume``, a shorter run of the same settings passes: it will be extended.
        """
        if not self.has_progress():
            return
        recorded = self.recorded_config()
        if recorded is None:
            raise ValueError(
                f"{self.path} holds a run, but its config.json is lost or damaged, so it is "
                "unknown which run. Pass another --folder, or remove this one."
            )
        if not self._is_same_run(recorded, config):
            keys = {key for key in {*recorded, *config} if recorded.get(key) != config.get(key)}
            raise ValueError(
                f"{self.path} holds another run (its {', '.join(sorted(keys))} differ). "
                "Pass another --folder."
            )
        if recorded != config and recorded[self.length] > config[self.length]:
            raise ValueError(
                f"{self.path} holds this run with --{self.length} {recorded[self.length]}, which "
                f"cannot be shortened to {config[self.length]}. Pass another --folder."
            )
        if not resume:
            raise ValueError(
                f"{self.path} holds this run already. "
                "Pass --resume to continue it, or another --folder."
            )

    def _is_same_run(self, config: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        """Return whether two configurations are equal but for the length."""
        return {**config, self.length: None} == {**other, self.length: None}

    def shorter_length(self, config: Mapping[str, Any]) -> int | None:
        """Return the length of this run in the folder, if it has progress and is shorter."""
        recorded = self.recorded_config() if self.has_progress() else None
        if recorded is None or not self._is_same_run(recorded, config):
            return None
        length: int = recorded[self.length]
        return length if length < config[self.length] else None

    def extend(self, config: Mapping[str, Any], source: "Folder") -> str:
        """Turn the shorter run in ``source``, which may be this folder, into one of ``config``.

        Another folder is copied and stays as it is. Return a note on what was extended.
        """
        recorded = source.recorded_config() or {}
        note = (
            f"Extends {source.path} from --{self.length} {recorded.get(self.length)} to "
            f"{config[self.length]}."
        )
        if source.path == self.path:
            self.summary_path.unlink(missing_ok=True)  # first: else the run would seem complete
            self.write_config(config)
            return note
        with source.locked():
            self._write_json("config.json", config)
            names = ["provenance.json", "sessions.jsonl", "metrics.jsonl"]
            for checkpoint in source._checkpoints():
                names += [checkpoint.name, checkpoint.with_suffix(".sha256").name]
            for name in names:  # in an order in which a cut copy is an earlier state of the run
                if (source.path / name).exists():
                    self._write(name, (source.path / name).read_bytes())
        return note

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write config.json and provenance.json, unless this configuration is there already."""
        if read_json(self.config_path) == config:
            return
        if not self.has_progress() or read_json(self.path / "provenance.json") is None:
            self._write_json("provenance.json", provenance())
        self._write_json("config.json", config)

    def has_progress(self) -> bool:
        """Return True if there is a checkpoint, a summary, or a metric after iteration 0."""
        return (
            any(self._checkpoints())
            or self.summary_path.exists()
            or any(row.get("iteration") for row in self.metrics())
        )

    def recorded_config(self) -> dict[str, Any] | None:
        """Return the configuration in config.json, else of the last session or a checkpoint."""
        if (config := read_json(self.config_path)) is not None:
            return config
        for session in reversed(self.sessions()):
            if "config" in session:
                return session["config"]
        for path in self._checkpoints():
            saved = _load(path)
            if saved is not None and saved.get("config") is not None:
                return saved["config"]
        return None

    def _write(self, name: str, content: bytes | str) -> None:
        with explained_when_full(self.path):
            write_atomically(self.path / name, content)

    def _write_json(self, name: str, content: Mapping[str, Any]) -> None:
        self._write(name, json.dumps(content, indent=1) + "\n")

    def begin_session(
        self, iteration: int, iterations: int, ranks: int, notify: Notify = ignore_note
    ) -> None:
        """Append a session that starts at ``iteration``; notify if its environment has changed."""
        current = environment()
        if iteration > 0 and (changes := self._changes(current)):
            notify(
                f"{self.path} resumes from iteration {iteration} with {', '.join(changes)}. "
                "From here on its numbers may differ from those of an uninterrupted run. "
                "The change is recorded in sessions.jsonl."
            )
        session = {
            "began": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "iteration": iteration,
            "iterations": iterations,
            "host": socket.gethostname(),
            "process": os.getpid(),
            "ranks": ranks,
            **current,
            "config": read_json(self.config_path),
        }
        self._append("sessions.jsonl", session)

    def _changes(self, current: Mapping[str, Any]) -> list[str]:
        """Describe what has changed since the last session, or since the first start."""
        before = {
            **(read_json(self.path / "provenance.json") or {}),
            **(self.sessions() or [{}])[-1],
        }
        return [
            f"{name} {value or 'unknown'} (before: {before[name] or 'unknown'})"
            for name, value in current.items()
            if name in before and before[name] != value
        ]

    def sessions(self) -> list[dict[str, Any]]:
        """Return the undamaged lines of sessions.jsonl."""
        return [
            row
            for row in _lines(self.path / "sessions.jsonl")
            if row is not None and {"began", "iteration"} <= row.keys()
        ]

    def log(self, row: Mapping[str, float]) -> None:
        """Append one line to the metrics; numbers that are not finite become null."""
        self._append("metrics.jsonl", _finite(row))

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        with explained_when_full(self.path), (self.path / name).open("a+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            if size and file.read(1) != b"\n":
                file.write(b"\n")  # the last line was cut: keep this one apart from it
            file.write(json.dumps(row).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl before the first damaged one."""
        rows: list[dict[str, Any]] = []
        for row in _lines(self.metrics_path):
            if row is None:
                break
            rows.append(row)
        return rows

    def last_metrics(self) -> dict[str, Any] | None:
        """Return the last metrics, read from the end of the file."""
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
        """Return the paths of all checkpoints, also damaged ones, newest first."""
        return sorted(self.path.glob("checkpoint-*.pt"), reverse=True)

    def checkpoint(self, iteration: int, state: Mapping[str, Any]) -> None:
        """Save the state after ``iteration`` iterations, with the number of metrics so far.

        The last undamaged one of the older checkpoints is kept, all others are removed.
        """
        if self._intact is None:
            paths = reversed(self._checkpoints())
            self._intact = [path for path in paths if _load(path) is not None]
        saved = {
            "iteration": iteration,
            "lines": len(self.metrics()),
            "config": read_json(self.config_path),
            "state": state,
        }
        buffer = io.BytesIO()
        torch.save(saved, buffer)
        content = buffer.getvalue()
        path = self.path / f"checkpoint-{iteration:09d}.pt"
        self._write(path.name, content)
        self._write(path.with_suffix(".sha256").name, hashlib.sha256(content).hexdigest())
        self._intact = [*(old for old in self._intact if old != path), path][-KEPT:]
        for old in self._checkpoints():
            if old not in self._intact:
                _remove(old)

    def restore(self, notify: Notify = ignore_note) -> tuple[int, dict[str, Any] | None]:
        """Return the newest usable iteration and state, and cut the metrics back to it.

        A checkpoint is usable if it is undamaged, of this run, and its metrics are there. Without
        one the result is (0, None). ``notify`` gets the checkpoints that were skipped.
        """
        rows, config, skipped = self.metrics(), read_json(self.config_path), list[str]()
        iteration, state, lines, self._intact = 0, None, 0, []
        for path in self._checkpoints():
            saved = _load(path)
            if saved is None:
                skipped.append(f"{path.name} is damaged")
            elif config and saved.get("config") and not self._is_same_run(config, saved["config"]):
                skipped.append(f"{path.name} is of another run")
            elif saved["lines"] > len(rows):
                skipped.append(f"the metrics of {path.name} are lost")
                _remove(path)  # else it would seem to fit once the new run has as many metrics
            else:
                iteration, state, lines = saved["iteration"], saved["state"], saved["lines"]
                self._intact = [path]
                break
        if self.metrics_path.exists() or rows[:lines]:
            content = "".join(json.dumps(row) + "\n" for row in rows[:lines])
            self._write(self.metrics_path.name, content)
        if skipped:
            what = f"resumes from iteration {iteration}" if iteration else "starts from scratch"
            notify(f"{self.path} {what}: {', '.join(skipped)}.")
        return iteration, state

    def finish(self, row: Mapping[str, float]) -> None:
        """Write the summary."""
        self._write_json("summary.json", _finite(row))

    def summary(self) -> dict[str, Any] | None:
        """Return the last metrics of a complete run, or None if it is incomplete or damaged."""
        summary, last = read_json(self.summary_path), self.last_metrics()
        if summary is None or last is None:
            return None
        return summary if summary.get("iteration") == last.get("iteration") else None

    def completed(self, config: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the last metrics if the run is complete with this configuration, else None."""
        return self.summary() if self.recorded_config() == config else None

    def finished(self) -> bool:
        """Return True if the run is complete."""
        return self.summary() is not None


def refuse_run_file(path: Path | str) -> None:
    """Raise if writing to ``path`` would overwrite a file of a run."""
    path = Path(path).resolve()
    markers = (LOCK, "config.json", "metrics.jsonl")
    if FILES.fullmatch(path.name) and any((path.parent / name).exists() for name in markers):
        raise ValueError(
            f"{path} is a file of the run in {path.parent}, which would be lost. "
            "Pass another file to write to."
        )


def _finite(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value if value is not None and math.isfinite(value) else None
        for key, value in row.items()
    }


def _row(line: bytes) -> dict[str, Any] | None:
    """Parse a line of JSON; return None if it is damaged."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if line.endswith(b"\n") and isinstance(row, dict) else None


def _lines(path: Path) -> list[dict[str, Any] | None]:
    """Parse the lines of a JSONL file, None for each damaged line."""
    try:
        return [_row(line) for line in path.read_bytes().splitlines(keepends=True)]
    except FileNotFoundError:
        return []


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the content of a JSON file, or None if it is missing or damaged."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _load(path: Path) -> dict[str, Any] | None:
    """Return the content of a checkpoint, or None if it is damaged."""
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
def explained_when_full(path: Path) -> Iterator[None]:
    """Explain the error of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(
            error.errno,
            f"The disk is full: {path} could not be written to. Earlier files are intact. "
            "Free some space and run the same command again (`catlog run` with --resume).",
        ) from error
