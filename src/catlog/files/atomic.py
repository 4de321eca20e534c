"""Files that are replaced whole: a reader, and the next process after a crash, sees the old content or the new one."""

import contextlib
import os
import secrets
import time
from pathlib import Path

ABANDONED = 3600.0  # seconds after which an unfinished file has no writer any more


def write_atomically(path: Path | str, content: bytes | str) -> None:
    """Write ``content`` (text as UTF-8) to ``path``, whole or not at all, and onto the disk.

    What is written first lies beside ``path``, under a name of its own that ends in ``.part``, so that several processes may
    write at once: the last one counts. A process that is killed in between leaves that file; a later write removes it.
    """
    path, data = Path(path), content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file():  # a device or a pipe such as /dev/stdout
        path.write_bytes(data)
        return
    path = path.resolve()  # a link stays one
    _remove_abandoned(path)
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _flush_folder(path.parent)


def unfinished(folder: Path) -> list[Path]:
    """What killed processes left half-written in a folder."""
    return list(folder.glob("*.part"))


def _remove_abandoned(path: Path) -> None:
    for part in unfinished(path.parent):
        with contextlib.suppress(OSError):
            if (
                part.name.startswith(f"{path.name}.")
                and part.stat().st_mtime < time.time() - ABANDONED
            ):
                part.unlink()


def _flush_folder(folder: Path) -> None:
    """Have the new name survive a loss of power, too; some systems cannot."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
