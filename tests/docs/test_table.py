"""The tables of estimators are what the registry and the measurements say, and the measurements are complete."""

from pathlib import Path
from typing import Any

import pytest

from catlog import ESTIMATORS
from catlog.experiments import records
from catlog.testing.settings import VARIANTS
from catlog.testing.test_battery import LIMIT
from scripts import ROOT, loaded

ROWS = records.read(ROOT / "results" / "quality" / "estimators.csv")


make = loaded("docs/make_estimators.py")


def test_the_tables_are_up_to_date() -> None:
    """`python docs/make_estimators.py` writes them."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert make.readme(text, ROWS) == text
    assert make.page(ROWS) == (ROOT / "docs" / "estimators.md").read_text(encoding="utf-8")


def test_every_estimator_has_a_family_and_a_cost() -> None:
    assert sorted(name for names in make.FAMILIES.values() for name in names) == sorted(ESTIMATORS)
    for name in ESTIMATORS:
        assert 1 <= len(make.cost(name)) < 90, "shorten the first part of the docstring's Cost"
        assert make.unbiased(name, ROWS) in (True, False)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_claim_is_what_was_measured(name: str) -> None:
    """Of every setting of the battery, on bits and on categories where it takes them."""
    rows = make.judged(name, ROWS)
    assert {row["unbiased"] for row in rows} == {"yes" if ESTIMATORS[name]().unbiased else "no"}
    # The settings of the battery, all of them: whoever adds one runs the benchmark again.
    settings = {
        ", ".join(f"{key}={value}" for key, value in options.items()) for options in VARIANTS[name]
    }
    assert settings <= {row["settings"] or "" for row in rows}
    wanted = {"tests: bits"} | (
        {"tests: one-hot"} if "one-hot" in ESTIMATORS[name].supports else set()
    )
    assert wanted <= {row["problem"] for row in rows}


def check_networks(rows: list[dict[str, Any]]) -> None:
    """Both problems have every estimator that takes their law, near the budget; those without bias agree with enumeration."""
    problems = make.measured(rows)
    assert len(problems) == 2
    for problem, found in problems.items():
        kind = "one-hot" if "one-hot" in problem else "bits"
        assert {row["estimator"] for row in found} == {
            name for name, cls in ESTIMATORS.items() if kind in cls.supports
        }
        for row in found:
            name = row["estimator"]
            assert row["ms"] > 0
            assert row["merit"] == pytest.approx(row["variance"] * row["evaluations"], rel=1e-2)
            if name not in ("Exact", "UnorderedSet"):
                assert 30 <= row["evaluations"] <= 44
            E = ESTIMATORS[name]()
            if E.unbiased and E.target == "expectation" and E.randomness:
                assert row["z"] < LIMIT
            learns = name in (
                "NVIL",
                "REBAR",
                "RELAX",
                "DoubleCV",
                "RODEO",
                "SlopeCateR",
                "MemoryCateR",
                "MAPO",
            ) or "moving" in (row["settings"] or "")
            assert (row["trained"] > 0) == learns


def test_the_networks() -> None:
    check_networks(ROWS)
    assert all(
        row["repeats"] >= 2000
        for row in ROWS
        if row["variance"] is not None and row["estimator"] != "Exact"
    )


def test_the_picture(tmp_path: Path) -> None:
    some = [
        row for row in ROWS if row["estimator"] in ("RLOO", "IndeCateR", "DARN", "VIMCO", "Exact")
    ]
    make.picture(some, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"
