"""Files that survive crashes: atomic writes, JSON lines, tensors with checksums; CSV tables."""

import contextlib
import csv
import errno
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import BadZipFile, ZipFile

import torch

FORMULA = re.compile(r"'*[=+\-@\t\r]")  # the beginning of a cell that a spreadsheet would calculate
DAMAGES = (OSError, RuntimeError, EOFError, ValueError, KeyError, UnpicklingError, BadZipFile)


def write_atomically(path: Path | str, content: bytes | str) -> None:
    """Replace the file at ``path`` by ``content`` (text as UTF-8) in one step, flushed to the disk.

    A reader, also after a crash, sees the old content or the new one. A killed process leaves a
    ``.part`` behind.
    """
    path, data = Path(path), content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file():  # a device or a pipe such as /dev/stdout
        path.write_bytes(data)
        return
    path = path.resolve()  # a link stays a link
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with explained_when_full(path), part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


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
            f"The disk is full: {path} could not be written. Earlier files are intact. "
            "Free some space and run the same command again (`catlog run` with --resume).",
        ) from error


def append_line(path: Path, row: Mapping[str, Any]) -> None:
    """Append a line of JSON, flushed to the disk, apart from a line that was cut."""
    with explained_when_full(path), path.open("a+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        separator = b"\n" if size and file.read(1) != b"\n" else b""
        file.write(separator + json.dumps(row).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path, last: int | None = None) -> list[dict[str, Any] | None]:
    """Return the lines of JSON of the file, or of its ``last`` bytes; None for a damaged line."""
    if not path.is_file():  # missing, or a pipe, which would be waited for
        return []
    with path.open("rb") as file:
        file.seek(-min(last or 0, file.seek(0, os.SEEK_END)), os.SEEK_END if last else os.SEEK_SET)
        return [_row(line) for line in file.read().splitlines(keepends=True)]


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if line.endswith(b"\n") and isinstance(row, dict) else None


def pack(content: Any) -> bytes:
    """Return tensors and numbers as the content of a file."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def unpack(path: Path) -> Any:
    """Return what :func:`pack` made of the file's content, None if it is missing or damaged."""
    if not path.is_file():
        return None
    try:
        content = io.BytesIO(path.read_bytes())
        with ZipFile(content) as archive:
            if archive.testzip() is not None:  # torch writes checksums, but does not read them
                return None
        content.seek(0)
        return torch.load(content, map_location="cpu", weights_only=True)
    except DAMAGES:
        return None


def guarded(text: str) -> str:
    """Return ``text`` behind an apostrophe if a spreadsheet would calculate it, else unchanged.

    >>> guarded("=1+1"), guarded("RLOO"), unguarded("'=1+1")
    ("'=1+1", 'RLOO', '=1+1')
    """
    return f"'{text}" if FORMULA.match(text) else text


def unguarded(cell: str) -> str:
    """Invert :func:`guarded`."""
    return cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell


def write_csv(path: Path | str, lines: Iterable[Sequence[str]]) -> None:
    """Write lines of cells to a CSV file."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(lines)
    write_atomically(path, file.getvalue())
