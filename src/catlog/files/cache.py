"""Tensors that took a while, kept in the user's cache folder."""

import io
import pickle
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from .atomic import write_atomically


def remembered(path: Path, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """What ``path`` holds; where that is lost or damaged, what ``make`` gives, written there for the next time."""
    if (kept := _whole(path)) is not None:
        return kept
    made = make()
    content = io.BytesIO()
    torch.save(made, content)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content.getvalue())
    except OSError as error:
        warnings.warn(
            f"{path} could not be written ({error}), so that it is computed each time. Name a folder that can be written to in "
            "the environment variable CATLOG_CACHE.",
            stacklevel=2,
        )
    return made


def _whole(path: Path) -> dict[str, Tensor] | None:
    """The tensors in a file, or None where it is not there or not whole: torch writes checksums, but does not read them."""
    try:
        content = io.BytesIO(path.read_bytes())
        with zipfile.ZipFile(content) as archive:
            if archive.testzip() is not None:
                return None
        content.seek(0)
        kept = torch.load(content, weights_only=True)
    except (
        OSError,
        RuntimeError,
        EOFError,
        ValueError,
        KeyError,
        pickle.UnpicklingError,
        zipfile.BadZipFile,
    ):
        return None
    tensors = isinstance(kept, dict) and all(isinstance(each, Tensor) for each in kept.values())
    return kept if tensors else None
