"""The benchmark of counts runs in a quick mode."""

from pathlib import Path

from catlog.experiments import records
from scripts import run


def test_counts(tmp_path: Path) -> None:
    run("benchmarks.counts", "--repeats", "20", "--output", tmp_path / "counts.csv")
    rows = {
        (row["function"], row["estimator"]): row for row in records.read(tmp_path / "counts.csv")
    }
    assert len(rows) == 12
    assert rows["linear", "CountDifferences(1)"]["variance"] < 1e-9
    assert rows["linear", "RLOO(17), truncated"]["variance"] > 1
