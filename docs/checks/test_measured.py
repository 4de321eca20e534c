"""What the pages conclude from results/, and the computations behind their tables."""

import fnmatch
import re
from importlib.util import find_spec

import pytest
from measured import (
    ROOT,
    control_variates,
    estimators,
    idea,
    race,
    race_figures,
    read,
    suite,
)

from catlog.estimators import ESTIMATORS
from catlog.testing import z_limit
from catlog.testing.settings import VARIANTS, tape

# race.md


def test_reinmax_is_first_and_slopecater_is_first_of_the_unbiased() -> None:
    """The caption of the picture in README and index.md, by means over seeds."""
    methods = race.curves(read("speed/race_cuda"))
    times = {name: race.mean_to(methods[name]) for name in race_figures.HEADLINE}
    assert min(times, key=times.__getitem__).startswith("ReinMax")
    unbiased = {name: time for name, time in times.items() if not name.startswith(("Re", "Gumbel"))}
    assert min(unbiased, key=unbiased.__getitem__).startswith("SlopeCateR")


# idea.md


def test_two_bits_that_share_a_logit() -> None:
    xor = next(row for row in idea.shared() if row["logit"] == 0)
    assert xor["REINFORCE"] == 0
    assert xor["IndeCateR"] == 1 / 8
    assert idea.above("own logits") == 0
    assert idea.above("shared logit") > 0


# control_variates.md


def test_memorycater_is_clearly_first_on_eight_problems() -> None:
    rows = [row for row in read("quality/contest") if row["part"] == "contest"]
    assert {row["seed"] for row in rows} == {1, 2}
    first = control_variates.wins(rows, "MemoryCateR", clear=True)
    assert len(first) >= 8
    assert {"digit-sum", "max-coverage", "knapsack", "mixed", "ising", "vq", "dvae"} <= set(first)


# scaling.md


def test_two_workers_are_nearly_twice_as_fast() -> None:
    rows = [row for row in read("scaling/scaling") if row["section"] == "mapped"]
    assert max(row["speedup"] for row in rows if row["processes"] == 2) >= 1.8


# README.md


def test_numbers_of_estimators() -> None:
    rows = read("quality/estimators")
    biased = [name for name in ESTIMATORS if not estimators.unbiased(name, rows)]
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"has all {len(ESTIMATORS)}" in text
    assert f"{len(ESTIMATORS) - len(biased)} are unbiased" in text
    assert f"{len(biased)} are biased by design" in text


# estimators.md


def test_every_estimator_has_a_family_and_a_cost() -> None:
    listed = [name for names in estimators.families().values() for name in names]
    assert sorted(listed) == sorted(ESTIMATORS)
    assert all(1 <= len(estimators.cost(name)) < 90 for name in ESTIMATORS)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_claim_is_what_was_measured(name: str) -> None:
    """In every setting of the battery; a new setting needs a new run of the benchmark."""
    rows = estimators.judged(name, read("quality/estimators"))
    assert {row["unbiased"] for row in rows} == {"yes" if ESTIMATORS[name]().unbiased else "no"}
    settings = {
        ", ".join(f"{key}={value}" for key, value in options.items()) for options in VARIANTS[name]
    }
    assert settings <= {row["settings"] or "" for row in rows}
    problems = {row["problem"] for row in rows}
    assert "tests: bits" in problems
    assert "one-hot" not in estimators.distributions(name) or "tests: one-hot" in problems


def test_measurements_are_complete_and_agree_with_enumeration() -> None:
    problems = estimators.problems(read("quality/estimators"))
    assert len(problems) == 2
    for problem, rows in problems.items():
        bits_only = {name for name in ESTIMATORS if estimators.distributions(name) == "bits"}
        expected = set(ESTIMATORS) - (bits_only if "one-hot" in problem else set())
        assert {row["estimator"] for row in rows} == expected
        for row in rows:
            name = row["estimator"]
            assert row["ms"] > 0
            assert row["merit"] == pytest.approx(row["variance"] * row["evaluations"], rel=1e-2)
            assert name in ("Exact", "UnorderedSet") or 30 <= row["evaluations"] <= 44
            assert name == "Exact" or row["repeats"] >= 2000
            E = ESTIMATORS[name]()
            if E.unbiased and tape(E) and E.target == "expectation":
                assert row["z"] < z_limit(len(rows))


# results/README.md


def test_every_file_is_listed_with_a_command_that_exists() -> None:
    text = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    files = {path.name for path in (ROOT / "results").rglob("*.csv")}
    listed = {
        pattern: fnmatch.filter(files, pattern) for pattern in re.findall(r"`([\w*]+\.csv)`", text)
    }
    assert [pattern for pattern, names in listed.items() if not names] == []
    assert files == {name for names in listed.values() for name in names}
    for module in re.findall(r"python -m (benchmarks\.[a-z_]+)", text):
        assert find_spec(module) is not None, module


# suite.md


def suite_row(
    problem: str, estimator: str, variance: float, merit: float, unbiased: bool = True
) -> dict[str, object]:
    return {
        "problem": problem,
        "estimator": estimator,
        "variance": variance,
        "variance_low": variance / 1.2,
        "variance_high": 1.2 * variance,
        "seconds": merit / variance,
        "merit": merit,
        "merit_high": 1.2 * merit,
        "unbiased": unbiased,
        "norm": 1.0,
        "bias": 0.0 if unbiased else 0.5,
    }


def test_suite_compares_with_the_best_unbiased_estimator() -> None:
    rows = suite.prepared(
        [
            suite_row("ising", "RLOO", 1.0, 6.0),
            suite_row("ising", "IndeCateR", 0.5, 2.0),
            suite_row("ising", "StraightThrough", 0.25, 0.5, unbiased=False),
            suite_row("additive", "RLOO", 1.0, 3.0),
            suite_row("additive", "IndeCateR", 1e-30, 1e-30),
        ]
    )
    assert suite.ratios(rows) == {
        "ising": {"RLOO": 3.0, "IndeCateR": 1.0, "StraightThrough": 0.5},  # (0.25 + 0.5²) / 0.25
        "additive": {"RLOO": 1.0, "IndeCateR": 0.0},
    }
    assert suite.order(rows) == (["IndeCateR", "RLOO"], ["StraightThrough"])
    # log(1.2) * sqrt(2) either way
    assert "`IndeCateR` | `RLOO` | 3.00 (2.32 to 3.88) |" in suite.best(rows)
    assert "`IndeCateR`: exact" in suite.best(rows)
    assert suite.least(rows) == "- `IndeCateR` on 1: `ising`."
    assert "| `RLOO` | 2 | 1.7 | 3 | `ising` | 1 |" in suite.safe(rows)
