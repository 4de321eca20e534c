"""The benchmark of a small language model that adds runs in its quick mode."""

import warnings
from pathlib import Path

import pytest

from catlog.experiments import records
from scripts import run


def test_arithmetic(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own imports
        pytest.importorskip("transformers")
    output = tmp_path / "arithmetic.csv"
    run("benchmarks.arithmetic", "--quick", "--output", output)
    rows = records.read(output)
    assert {row["method"] for row in rows} == {"rloo", "criticater", "vineppo", "grpo"}
    ends = [row for row in rows if row["step"] > 0]
    assert all(1500 <= row["tokens"] < 1500 + 2 * 16 * 8 * 3 for row in ends)
    assert all(0 < row["reward"] < 1 for row in ends)
