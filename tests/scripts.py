"""Run or import the scripts of the repository."""

import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]


def run(script: str, *arguments: object) -> str:
    """Return what a script prints; it must exit with 0.

    ``script`` is a file, or a module of the repository such as "benchmarks.bias". One thread is
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


def loaded(path: str) -> ModuleType:
    """Import a script as a module."""
    spec = spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
