"""The scripts in reproduce/, run with a stand-in for `catlog`, pass on paths with spaces."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from shlex import quote

import pytest

SCRIPTS = Path(__file__).parents[1] / "reproduce"
STAND_IN = """#!/bin/sh
exec {python} {program} "$@"
"""
PROGRAM = """
import json, sys
with open({log!r}, "a", encoding="utf-8") as log:
    print(json.dumps(sys.argv[1:]), file=log)
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("script", sorted(path.name for path in SCRIPTS.glob("*.sh")))
def test_paths_with_spaces(script: str, tmp_path: Path) -> None:
    clone = tmp_path / "a path with spaces"
    (clone / "experiments" / "reproduce").mkdir(parents=True)
    shutil.copy(SCRIPTS / script, clone / "experiments" / "reproduce")
    command, log = clone / "the command", clone / "log"
    program = clone / "the program.py"
    program.write_text(PROGRAM.format(log=str(log)), encoding="utf-8")
    words = {"python": quote(sys.executable), "program": quote(str(program))}
    command.write_text(STAND_IN.format(**words), encoding="utf-8")
    command.chmod(0o755)
    argument = "a folder" if script == "demo.sh" else "--root=a folder"
    environment = {"CATLOG": str(command), "PYTHON": str(command), "PATH": "/usr/bin:/bin"}
    subprocess.run(
        ["bash", str(clone / "experiments" / "reproduce" / script), argument],
        env=environment,
        cwd=clone,
        check=True,
    )
    calls = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    sweeps = [call for call in calls if "sweep" in call or "benchmarks.protocol" in call]
    assert sweeps
    root = "a folder/runs" if script == "demo.sh" else argument
    assert all(root in call for call in sweeps)
    if script == "demo.sh":
        assert ["report", "a folder/runs", "--output", "a folder/report.html"] in calls
        assert calls[-1] == ["experiments/reproduce/demo.py", "a folder"]
