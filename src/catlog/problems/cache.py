"""Tensors that took a while, kept in the user's cache folder."""

import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor


def remembered(path: Path, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """What ``path`` holds; where there is no such file, what ``make`` gives, written there for the next time."""
    if path.exists():
        return torch.load(path, weights_only=True)
    made = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    torch.save(made, unfinished)
    unfinished.replace(path)  # at once, so that no other process reads half a file
    return made
