"""Tensors kept in the user's cache folder, for what takes long to compute."""

import io
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor

DAMAGES = (OSError, RuntimeError, EOFError, ValueError, UnpicklingError)


def cache_folder() -> Path:
    """Return CATLOG_CACHE, else ``catlog`` in XDG_CACHE_HOME, else ~/.cache/catlog."""
    chosen = os.environ.get("CATLOG_CACHE")
    default = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "catlog"
    return Path(chosen or default).expanduser()


def load_or_make(path: Path, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the tensors in ``path``; if it is missing or damaged, call ``make`` and save them."""
    try:
        return torch.load(path, weights_only=True)
    except DAMAGES:
        tensors = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = io.BytesIO()
        torch.save(tensors, content)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        part.write_bytes(content.getvalue())
        os.replace(part, path)  # in one step: a reader sees the whole file or none
    except OSError as error:
        warnings.warn(
            f"{path} could not be written ({error}), so its content is computed every time. Set "
            "the environment variable CATLOG_CACHE to a folder that can be written to.",
            stacklevel=2,
        )
    return tensors
