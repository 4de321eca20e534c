"""The benchmark of subsets runs in its quick mode, and float32 is as precise as it says."""

from pathlib import Path

from catlog.experiments import records
from scripts import run


def test_subset(tmp_path: Path) -> None:
    run("benchmarks.subset", "--quick", "--output", tmp_path)
    rows = records.read(tmp_path / "speed_cpu.csv")
    assert {row["how"] for row in rows} == {"Subset", "plain loop", "Gumbel top-k"}
    assert all(row["ms"] >= 0 for row in rows)
    errors = records.read(tmp_path / "stability.csv")
    for row in errors:
        if row["how"] == "Subset":
            assert max(row["marginals"], row["gradient"], row["log_prob_per_item"]) < 1e-5
