"""The skeleton for estimators of one's own passes the battery, and a bug in it does not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import loaded

ROOT = Path(__file__).parents[2]
SKELETON = ROOT / "examples" / "own_estimator.py"


def battery(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        str(ROOT / "tests" / "test_battery.py"),
        *arguments,
    ]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def test_the_battery_accepts_the_skeleton() -> None:
    done = battery("--estimator", f"{SKELETON}:TwoHalves", "-k", "TwoHalves")
    assert done.returncode == 0, done.stdout
    passed = int(done.stdout.rsplit(" passed", 1)[0].split()[-1])
    assert passed >= 20, "it was not really judged"


def test_the_battery_rejects_a_bug(tmp_path: Path) -> None:
    """A baseline that has seen its own draws."""
    text = SKELETON.read_text(encoding="utf-8")
    assert ".flip(0)" in text
    (tmp_path / "wrong.py").write_text(text.replace(".flip(0)", ""), encoding="utf-8")
    done = battery(
        "--estimator", f"{tmp_path / 'wrong.py'}:TwoHalves", "-k", "test_unbiased and TwoHalves"
    )
    assert done.returncode == 1, done.stdout
    assert "test_unbiased" in done.stdout


def test_what_is_no_estimator_is_named() -> None:
    named = loaded("tests/conftest.py").named
    with pytest.raises(
        pytest.UsageError,
        match=r"FILE\.py:CLASS is wanted, but 'nowhere\.py:Nothing' names no file",
    ):
        named("nowhere.py:Nothing")
    with pytest.raises(pytest.UsageError, match=r"own_estimator\.py has no 'Nothing'"):
        named(f"{SKELETON}:Nothing")


def test_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    loaded("examples/own_estimator.py").main()
    ours, exact = (
        [float(each) for each in line.split()[1:]] for line in capsys.readouterr().out.splitlines()
    )
    assert all(abs(a - b) < 0.02 for a, b in zip(ours, exact, strict=True))
