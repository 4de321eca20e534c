"""The benchmark of all estimators runs, and its fresh verdict on every estimator is what the class claims."""

from pathlib import Path

import pytest

from catlog import ESTIMATORS
from catlog.experiments import records
from catlog.testing.settings import OTHER_TARGETS
from catlog.testing.test_battery import LIMIT
from scripts import run


def test_verdicts_and_measurements(tmp_path: Path) -> None:
    run("benchmarks/estimators.py", "--quick", "--output", tmp_path / "out.csv")
    rows = records.read(tmp_path / "out.csv")
    for name, cls in ESTIMATORS.items():
        verdicts = {row["unbiased"] for row in rows if row["estimator"] == name} - {None}
        assert verdicts == {"yes" if cls().unbiased else "no"}
    measured = [row for row in rows if row["variance"] is not None]
    assert len({row["problem"] for row in measured}) == 2
    assert {row["estimator"] for row in measured} == set(ESTIMATORS)
    for row in measured:
        name = row["estimator"]
        assert row["ms"] > 0
        assert row["merit"] == pytest.approx(row["variance"] * row["evaluations"], rel=1e-2)
        assert name in ("Exact", "UnorderedSet") or 30 <= row["evaluations"] <= 44
        if ESTIMATORS[name]().unbiased and name not in {*OTHER_TARGETS, "Exact"}:
            assert row["z"] < LIMIT
