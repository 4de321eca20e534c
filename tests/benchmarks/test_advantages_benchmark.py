"""The benchmark of advantages runs in its quick mode and agrees with what is known."""

from pathlib import Path

import pytest

from catlog.experiments import records
from scripts import run


def test_bias_of_advantages(tmp_path: Path) -> None:
    output = tmp_path / "advantages.csv"
    run("benchmarks.advantages", "--quick", "--output", output)
    rows = {
        (row["reward"], row["estimator"], row["size"], row["prompt"]): row
        for row in records.read(output)
    }
    assert len(rows) == 2 * 6 * 2 * 4
    for (_, estimator, size, _), row in rows.items():
        if estimator in ("reinforce", "rloo"):
            assert row["bias"] < 1e-12
        if estimator == "dr_grpo":
            assert row["scale"] == pytest.approx(1 - 1 / size)
    # Two rewards of 0 and 1 have the deviation 1 / sqrt(2), or none: A is +-1 / sqrt(2), not +-1.
    for prompt in ("easy", "harder", "hardest"):
        row = rows["right or wrong", "grpo", 2, prompt]
        assert row["scale"] == pytest.approx(0.5**0.5, rel=1e-3)
