"""The benchmark of two processes runs and counts its messages."""

from itertools import pairwise
from pathlib import Path

from catlog_experiments import records
from support.scripts import run


def test_the_quick_benchmark_counts_messages(tmp_path: Path) -> None:
    output = tmp_path / "rows.csv"
    run("benchmarks.scaling", "--quick", "--output", output)
    rows = records.read(output)
    assert {row["section"] for row in rows} == {"mapped", "estimate", "training", "sweep"}
    assert any(row["processes"] == "2, Ray" for row in rows)
    training = next(row for row in rows if row["section"] == "training" and row["messages"])
    widths = (784, 384, 256, 8, 256, 384, 784)
    parameters = sum(inputs * outputs + outputs for inputs, outputs in pairwise(widths))
    assert training["messages"] == 1
    assert round(training["kib"]) == round(parameters * 4 / 1024)
    black_box = next(row for row in rows if row["section"] == "estimate" and row["messages"])
    assert black_box["messages"] == 4  # values and comparison, at the draws and at their neighbours
    assert abs(black_box["kib"] * 1024 - (42 * 2 * 4 + 2 * 2 * 24)) < 1
