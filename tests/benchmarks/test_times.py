"""The benchmarks of estimators' times and of a shared machine run at small sizes."""

from pathlib import Path

from benchmarks.estimator_times import SETTINGS
from benchmarks.shared_machine import WAITING

from catlog.experiments import records
from scripts import ROOT, run


def test_estimator_times_of_two_sources(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    options = ["--source", ROOT / "src", "--variables", 6, "--batch", 3, "--rounds", 2]
    run("benchmarks.estimator_times", *options, "--output", path)
    rows = records.read(path)
    assert [row["estimator"] for row in rows] == list(SETTINGS)
    assert all(row["ms"] > 0 and row["before_ms"] > 0 and row["speedup"] > 0 for row in rows)
    assert all((row["over_rloo"] is None) == row["estimator"].startswith("RLOO") for row in rows)


def test_shared_machine(tmp_path: Path) -> None:
    path = tmp_path / "shared.csv"
    options = ["--rounds", 2, "--batch", 2, "--variables", 5, "--output", path]
    run("benchmarks.shared_machine", *options)
    rows = records.read(path)
    assert {(row["waiting"], row["busy"]) for row in rows} == {
        (waiting, busy) for waiting in WAITING for busy in (0, 1)
    }
    assert all(row["ratio"] == 1 for row in rows if row["method"] == "literal formula")
