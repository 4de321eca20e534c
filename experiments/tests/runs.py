"""What several tests of runs share."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from catlog_experiments.run_folder import Folder, Row

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


class CutError(Exception):
    """A crash."""


def cut_at(iteration: int) -> Any:
    """Return a watcher that raises a CutError at this iteration."""

    def watch(done: int, total: int, row: object) -> None:
        if done >= iteration:
            raise CutError

    return watch


def untimed(path: Path) -> list[Row]:
    """Return what a run has logged, without the clock."""
    return [
        {key: value for key, value in row.items() if key != "seconds"}
        for row in Folder(path).rows()
    ]


def starts(path: Path) -> list[int]:
    """Return the first iteration of every session."""
    return [session["iteration"] for session in Folder(path).sessions()]


def started(*arguments: str) -> "subprocess.Popen[bytes]":
    """Start ``catlog`` in a process and a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "catlog_experiments", *arguments],
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
