"""The scripts in reproduce/, run with a stand-in for `catlog`: paths with spaces, valid flags."""

import shutil
import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest

from catlog_experiments.cli import main

SCRIPTS = Path(__file__).parents[1] / "reproduce"
STAND_IN = """#!/bin/sh
{ printf '%s\\n' "$@"; echo --; } >> "$(dirname "$0")/log"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("script", sorted(path.name for path in SCRIPTS.glob("*.sh")))
def test_paths_with_spaces_and_flags(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert any(argument in call for call in calls)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("catlog_experiments.sweeps.execute", Mock())  # all settings are checked
    for call in calls:
        assert "sweep" not in call or main(call[call.index("sweep") :]) == 0
