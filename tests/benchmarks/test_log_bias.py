"""The benchmark of logarithms runs in its quick mode and agrees with what is known."""

from pathlib import Path

import pytest

from catlog.experiments import records
from scripts import run


def test_bias_of_logarithms(tmp_path: Path) -> None:
    output = tmp_path / "log_expectation.csv"
    run("benchmarks.log_expectation", "--quick", "--output", output)
    rows = {
        (row["problem"], row["estimator"], row["draws"], row["repeats"]): row
        for row in records.read(output)
    }
    assert len(rows) == 2 * (1 + 3 + 5)
    exact = rows["rare", "Exact", 1, 1]
    assert exact["probability"] == pytest.approx(0.05)
    assert abs(exact["value_bias"]) < 1e-6  # of the floor
    assert rows["rare", "RLOO", 4, 1]["zero"] == pytest.approx(0.95**4, rel=1e-3)
    assert rows["rare", "RLOO", 4, 1]["gradient_bias"] == pytest.approx(
        1 - 4 / 3 * (1 - 0.95**3), rel=1e-3
    )
