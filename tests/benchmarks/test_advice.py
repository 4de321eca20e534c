"""The benchmark of `catlog.advise` runs, and resumes."""

from pathlib import Path

from catlog.experiments import records
from scripts import run


def test_advice(tmp_path: Path) -> None:
    path = tmp_path / "advise.csv"
    options = ["--problems", "xor", "--sizes", "small", "--repeats", 8, "--rounds", 1]
    options += ["--candidates-only", "--output", path]
    printed = run("benchmarks.advice", *options)
    rows = records.read(path)
    assert [row["pilot"] for row in rows] == [0, 1, 2] * 2  # without and with f's table
    assert all(row["ratio"] >= 1 and row["pilot_steps"] > 1 for row in rows)
    # The text "inf", where the choice has noise and an exact estimator has none.
    assert all(float(row["variance_ratio"]) >= 1 for row in rows)
    assert "2 problems, 6 pilots" in printed
    text = path.read_text(encoding="utf-8")
    run("benchmarks.advice", *options)
    assert path.read_text(encoding="utf-8") == text
