"""The benchmark of known means runs in a quick mode, and its numbers agree with each other."""

from pathlib import Path

from catlog.experiments import records
from scripts import run


def test_known_means(tmp_path: Path) -> None:
    options = ["--sizes", "6", "60", "--timings", "2", "--repeats", "100"]
    run("benchmarks.known_means", *options, "--root", tmp_path)
    times = records.read(tmp_path / "speed" / "known_means.csv")
    errors = [row["gradient_error"] for row in times if row["method"] == "Exact"]
    assert len(errors) == 2
    assert max(errors) < 1e-12
    noise = records.read(tmp_path / "quality" / "known_part.csv")
    assert len(noise) == 6
    assert all(row["ratio"] < 0.5 for row in noise)
