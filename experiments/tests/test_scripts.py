"""The scripts in reproduce/, run with a stand-in for `catlog`, pass on paths with spaces."""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "reproduce"
STAND_IN = """#!/bin/sh
{ printf '%s\\n' "$@"; echo --; } >> "$(dirname "$0")/log"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("script", sorted(path.name for path in SCRIPTS.glob("*.sh")))
def test_paths_with_spaces(script: str, tmp_path: Path) -> None:
    clone = tmp_path / "a path with spaces"
    copied = clone / "experiments" / "reproduce" / script
    copied.parent.mkdir(parents=True)
    shutil.copy(SCRIPTS / script, copied)
    command = clone / "the command"
    command.write_text(STAND_IN, encoding="utf-8")
    command.chmod(0o755)
    argument = "a folder" if script == "demo.sh" else "--root=a folder"
    environment = {"CATLOG": str(command), "PYTHON": str(command), "PATH": "/usr/bin:/bin"}
    subprocess.run(["bash", str(copied), argument], env=environment, cwd=clone, check=True)
    lines = (clone / "log").read_text(encoding="utf-8").removesuffix("\n--\n").split("\n--\n")
    calls = [call.split("\n") for call in lines]
    sweeps = [call for call in calls if "sweep" in call or "benchmarks.protocol" in call]
    assert sweeps
    root = "a folder/runs" if script == "demo.sh" else argument
    assert all(root in call for call in sweeps)
    if script == "demo.sh":
        assert ["report", "a folder/runs", "--output", "a folder/report.html"] in calls
        assert calls[-1] == ["experiments/reproduce/demo.py", "a folder"]
