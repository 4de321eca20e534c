"""``pytest --pyargs catlog.testing`` accepts the skeleton, and rejects it with a bug."""

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from catlog import Estimator
from catlog.testing import CASES
from catlog.testing.settings import continuous, load_estimator
from catlog.testing.test_battery import test_unbiased as check_unbiased
from catlog.testing.test_battery import test_unbiased_by_z_test as check_by_z_test
from support.laws import bits
from support.scripts import ROOT

SKELETON = ROOT / "examples" / "own_estimator.py"


def changed(folder: Path, line: str, wrong: str) -> Estimator[Any]:
    """Return the estimator of the skeleton with another line."""
    text = SKELETON.read_text(encoding="utf-8")
    assert line in text
    (folder / "wrong.py").write_text(text.replace(line, wrong), encoding="utf-8")
    return load_estimator(f"{folder / 'wrong.py'}:TwoHalves")()


def battery(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the battery as a user does, in a folder without a clone."""
    command = [sys.executable, "-m", "pytest", "-q", "--pyargs", "catlog.testing", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=folder, env=environment
    )


def test_the_battery_accepts_the_skeleton(tmp_path: Path) -> None:
    done = battery(tmp_path, "--catlog-estimator", f"{SKELETON}:TwoHalves", "-k", "TwoHalves")
    assert done.returncode == 0, done.stdout + done.stderr
    passed = int(done.stdout.rsplit(" passed", 1)[0].split()[-1])
    assert passed >= 20, "too few tests judged it"


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        (".flip(0)", ""),
        ("(2 * self.samples)", '(2 * self.samples, "antithetic")'),  # of the other half's draws
        ("(2 * self.samples)", '(2 * self.samples, "latin")'),
    ],
)
def test_the_battery_rejects_a_baseline_that_depends_on_the_draw(
    line: str, wrong: str, tmp_path: Path
) -> None:
    E = changed(tmp_path, line, wrong)
    with pytest.raises(AssertionError):
        check_unbiased(E, CASES["bits"])


def test_points_of_two_calls_are_judged_by_a_z_test(tmp_path: Path) -> None:
    """One ``x`` cannot hold them: as a half and its baseline, they would be equal."""
    line, halves = "draw.points(2 * self.samples)", "draw.points(self.samples)"
    E = changed(tmp_path, line, f"torch.cat([{halves}, {halves}])")
    assert continuous(E)
    check_by_z_test(E, CASES["bits"])


def test_evaluations_are_counted_without_a_random_number() -> None:
    """Of an estimator that says nothing of them."""
    E, state = load_estimator(f"{SKELETON}:TwoHalves")(samples=3), torch.get_rng_state()
    assert E.evaluations(bits(torch.zeros(5, 3))) == 6
    assert torch.equal(state, torch.get_rng_state())


def test_a_wrong_estimator_option_is_named(tmp_path: Path) -> None:
    done = battery(tmp_path, "--catlog-estimator", "nowhere.py:Nothing")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    message = (
        "--catlog-estimator: it must be FILE.py:CLASS, but 'nowhere.py:Nothing' names no file."
    )
    assert message in done.stderr


def test_the_skeleton_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with torch.random.fork_rng():
        runpy.run_path(str(SKELETON), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    ours, exact = ([float(number) for number in line.split()[1:]] for line in lines)
    assert all(abs(a - b) < 0.02 for a, b in zip(ours, exact, strict=True))
