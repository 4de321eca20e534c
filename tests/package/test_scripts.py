"""The paper's scripts, with a stand-in for the command: words with spaces stay one word."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from shlex import quote

import pytest

PAPER = Path(__file__).parents[2] / "paper"
FAKE = """#!/bin/sh
exec {python} {program} "$@"
"""
PROGRAM = """
import json, sys
with open({log!r}, "a", encoding="utf-8") as log:
    print(json.dumps(sys.argv[1:]), file=log)
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("script", sorted(path.name for path in PAPER.glob("*.sh")))
def test_paths_with_spaces(script: str, tmp_path: Path) -> None:
    place = tmp_path / "a path with spaces"
    (place / "paper").mkdir(parents=True)
    shutil.copy(PAPER / script, place / "paper")
    command, log = place / "the command", place / "log"
    program = place / "the program.py"
    program.write_text(PROGRAM.format(log=str(log)), encoding="utf-8")
    words = {"python": quote(sys.executable), "program": quote(str(program))}
    command.write_text(FAKE.format(**words), encoding="utf-8")
    command.chmod(0o755)
    given = "a folder" if script == "demo.sh" else "--root=a folder"
    environment = {"CATLOG": str(command), "PYTHON": str(command), "PATH": "/usr/bin:/bin"}
    subprocess.run(
        ["bash", str(place / "paper" / script), given], env=environment, cwd=place, check=True
    )
    calls = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    sweeps = [call for call in calls if "sweep" in call]
    assert sweeps
    wanted = "a folder/runs" if script == "demo.sh" else given
    assert all(wanted in call for call in sweeps)
    if script == "demo.sh":
        assert calls[-1] == ["report", "a folder/runs", "--output", "a folder/report.html"]
