"""The benchmark of two processes runs, and counts its messages."""

import os
import subprocess
import sys
from pathlib import Path

from catlog.experiments import records

ROOT = Path(__file__).parent.parent.parent


def test_quick(tmp_path: Path) -> None:
    command = [
        sys.executable,
        ROOT / "benchmarks" / "scaling_processes.py",
        "--quick",
        "--output",
        tmp_path / "rows.csv",
    ]
    subprocess.run(
        command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL
    )
    rows = records.read(tmp_path / "rows.csv")
    assert {row["section"] for row in rows} == {"pool", "overhead", "estimate", "training", "sweep"}
    assert any(row["processes"] == "2, Ray" for row in rows)
    training = next(row for row in rows if row["section"] == "training" and row["messages"])
    parameters = (
        784 * 384
        + 384
        + 384 * 256
        + 256
        + 256 * 8
        + 8
        + 8 * 256
        + 256
        + 256 * 384
        + 384
        + 384 * 784
        + 784
    )
    assert training["messages"] == 1
    assert round(training["kib"]) == round(parameters * 4 / 1024)
    black_box = next(row for row in rows if row["section"] == "estimate" and row["messages"])
    assert black_box["messages"] == 4  # values and comparison, at the draws and at their neighbours
    assert abs(black_box["kib"] * 1024 - (42 * 2 * 4 + 2 * 2 * 24)) < 1
