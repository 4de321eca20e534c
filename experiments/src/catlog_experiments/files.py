"""Files that survive crashes: atomic writes, JSON lines, tensors with checksums."""

import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch


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
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def append_line(path: Path, row: Mapping[str, Any]) -> None:
    """Append a line of JSON, flushed to the disk, apart from a line that was cut."""
    with path.open("a+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        separator = b"\n" if size and file.read(1) != b"\n" else b""
        file.write(separator + json.dumps(row).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path) -> list[dict[str, Any] | None]:
    """Return the lines of JSON of the file; None for a damaged line."""
    rows: list[dict[str, Any] | None] = []
    # A pipe in place of a file is not read, because it would be waited for.
    for line in path.read_bytes().splitlines(keepends=True) if path.is_file() else ():
        try:
            row = json.loads(line) if line.endswith(b"\n") else None
        except (ValueError, RecursionError):
            row = None
        rows.append(row if isinstance(row, dict) else None)
    return rows


def pack(content: Any) -> bytes:
    """Return tensors and numbers as the content of a file."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def unpack(path: Path) -> Any:
    """Return what :func:`pack` made of the file's content, None if it is missing or damaged."""
    try:
        content = io.BytesIO(path.read_bytes() if path.is_file() else b"")
        with ZipFile(content) as archive:
            if archive.testzip() is not None:  # torch writes checksums, but does not read them
                return None
        content.seek(0)
        return torch.load(content, map_location="cpu", weights_only=True)
    except Exception:  # zipfile and torch raise a dozen types
        return None
