"""Run the scripts of the repository."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(script: str, *arguments: object) -> str:
    """Return what a script prints; it must exit with 0.

    ``script`` is a file, or a module of the repository such as "benchmarks.scaling". One thread is
    enough, and tests run in parallel.
    """
    target = [str(ROOT / script)] if script.endswith(".py") else ["-m", script]
    command = [sys.executable, *target, *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=environment, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
