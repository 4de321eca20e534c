"""The user's cache folder, and tensors kept in it."""

import io
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError
from zipfile import BadZipFile, ZipFile

import torch
from torch import Tensor

from .atomic import write_atomically

DAMAGES = (OSError, RuntimeError, EOFError, ValueError, KeyError, UnpicklingError, BadZipFile)


def cache_folder() -> Path:
    """Return CATLOG_CACHE, else ``catlog`` in XDG_CACHE_HOME, else ~/.cache/catlog."""
    chosen = os.environ.get("CATLOG_CACHE")
    default = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "catlog"
    return Path(chosen or default).expanduser()


def load_or_make(path: Path, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the tensors in ``path``; if it is missing or damaged, call ``make`` and save them."""
    if (tensors := _load(path)) is not None:
        return tensors
    tensors = make()
    try:
        content = io.BytesIO()
        torch.save(tensors, content)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content.getvalue())
    except OSError as error:
        warnings.warn(
            f"{path} could not be written ({error}), so its content is computed every time. Set "
            "the environment variable CATLOG_CACHE to a folder that can be written to.",
            stacklevel=2,
        )
    return tensors


def _load(path: Path) -> dict[str, Tensor] | None:
    """Return the tensors in a file, or None if it is missing or damaged."""
    try:
        content = io.BytesIO(path.read_bytes())
        with ZipFile(content) as archive:
            if archive.testzip() is not None:  # torch writes checksums, but does not read them
                return None
        content.seek(0)
        tensors = torch.load(content, weights_only=True)
    except DAMAGES:
        return None
    if isinstance(tensors, dict) and all(isinstance(value, Tensor) for value in tensors.values()):
        return tensors
    return None
