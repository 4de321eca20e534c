"""Atomic writes: a reader, also after a crash, sees the old content of a file or the new one."""

import contextlib
import os
import secrets
import time
from pathlib import Path

ABANDONED = 3600.0  # seconds; no write takes that long, so the writer of an older part is dead


def write_atomically(path: Path | str, content: bytes | str) -> None:
    """Replace the file at ``path`` by ``content`` (text as UTF-8) in one step, flushed to the disk.

    The content is first written beside ``path``, to a file with a unique name that ends in
    ``.part``. So several processes may write at once, and the last one wins. A killed process
    leaves its part behind, and a later write removes it.
    """
    path, data = Path(path), content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file():  # a device or a pipe such as /dev/stdout
        path.write_bytes(data)
        return
    path = path.resolve()  # a link stays a link
    _remove_abandoned(path)
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)  # a full disk names no file, any other error the part
        raise
    _flush_folder(path.parent)


def unfinished(folder: Path) -> list[Path]:
    """Return the half-written files in a folder."""
    return list(folder.glob("*.part"))


def _remove_abandoned(path: Path) -> None:
    for part in unfinished(path.parent):
        with contextlib.suppress(OSError):
            is_old = part.stat().st_mtime < time.time() - ABANDONED
            if is_old and part.name.startswith(f"{path.name}."):
                part.unlink()


def _flush_folder(folder: Path) -> None:
    """Make the new name survive a power failure. Some systems cannot open folders."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
