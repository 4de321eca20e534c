"""The benchmark of two processes runs and counts its messages."""

from pathlib import Path

from benchmarks.measuring import Table

from support.scripts import run


def test_the_quick_benchmark_counts_messages(tmp_path: Path) -> None:
    run("benchmarks.scaling", "--quick", "--output", tmp_path)
    rows = Table(tmp_path / "scaling" / "scaling.csv", ()).rows
    assert {row["section"] for row in rows} == {"mapped", "estimate"}
    black_box = next(row for row in rows if row["section"] == "estimate" and row["messages"])
    assert black_box["messages"] == 4  # values and comparison, at the draws and at their neighbours
    assert abs(black_box["kib"] * 1024 - (42 * 2 * 4 + 2 * 2 * 24)) < 1
