"""The benchmarks of quality run in their quick modes, and their tables are sound."""

from pathlib import Path

import pytest
from benchmarks.tables import keyed

from catlog.estimators import ESTIMATORS
from catlog.testing.settings import supports
from catlog.testing.test_battery import LIMIT
from catlog_experiments import records
from support.scripts import run

# The evaluations of SCateR(1) on the problems with dependent variables.
STRUCTURED = {"chain": 16, "chain, interactions": 16, "dag": 19, "transformer": 85, "mdp": 25}
METHODS = {"Reinforce", "RLOO", "LEG", "RAM", "SCateR", "SCateR, common", "CritiCateR"}
LEARNERS = {"NVIL", "REBAR", "RELAX", "DoubleCV", "RODEO", "SlopeCateR", "MemoryCateR", "MAPO"}


def quality(section: str, *arguments: object) -> str:
    return run("benchmarks.quality", section, *arguments)


def test_suite_measures_each_pair_once(tmp_path: Path) -> None:
    output = tmp_path / "suite.csv"
    small = ["--size", "small", "--repeats", "20", "--rounds", "2", "--training", "5"]
    options = ["--problems", "additive", "digit-sum", "--output", output, *small, "--estimators"]
    quality("suite", *options, "RLOO", "IndeCateR")
    first = records.read(output)
    quality("suite", *options, "RLOO", "IndeCateR", "MuProp")
    second = records.read(output)
    assert [row["seconds"] for row in second[:4]] == [row["seconds"] for row in first]
    rows = keyed(second, "problem", "estimator")
    assert len(rows) == len(second) == 6
    assert rows["digit-sum", "MuProp"]["skipped"] == "f has no derivative in x"
    assert rows["additive", "IndeCateR"]["variance"] < 1e-25 < rows["additive", "RLOO"]["variance"]
    assert rows["additive", "RLOO"]["evaluations"] == rows["additive", "RLOO"]["budget"] == 22
    assert rows["digit-sum", "RLOO"]["budget"] == 2 * (1 + 3 * 9)


def test_contest_resumes(tmp_path: Path) -> None:
    for _ in range(2):
        printed = quality("contest", "--quick", "--output", tmp_path / "contest.csv")
        rows = records.read(tmp_path / "contest.csv")
        assert f"{len(rows)} rows" in printed
    names = {row["method"].split("(")[0] for row in rows}
    assert {"MemoryCateR", "SlopeCateR", "RLOO", "IndeCateR"} <= names
    assert sum(row["part"] == "ways" for row in rows) == 2
    others = [row for row in rows if not row["method"].startswith("UnorderedSet")]
    assert all(36 <= row["evaluations"] <= 44 for row in others)


def test_decoder(tmp_path: Path) -> None:
    quality("decoder", "--quick", "--output", tmp_path)
    rows = records.read(tmp_path / "variance_dvae.csv")
    variance = {row["method"]: row["variance"] for row in rows}
    taylor = variance["IndeCateR n=20, m=20, Taylor, Latin"]
    assert taylor < variance["IndeCateR n=2, Latin"] < variance["IndeCateR n=2"]
    assert taylor < variance["RLOO n=420"]
    rows = records.read(tmp_path / "control_variates.csv")
    assert sum(row["part"] == "residuals" for row in rows) == 16
    error = {row["method"]: row["mse"] for row in rows if row["part"] == "dvae"}
    assert error["SlopeCateR n=240, m=160"] < error["GumbelSoftmax n=400, hard, temperature 1"]


@pytest.fixture(scope="module")
def structured(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], records.Row]:
    folder = tmp_path_factory.mktemp("structured")
    quality("structured", "--quick", "--output", folder)
    rows = records.read(folder / "structured_variance.csv")
    return keyed(rows, "problem", "method")


def test_structured_table_is_complete(structured: dict[tuple[str, str], records.Row]) -> None:
    rows = structured
    assert set(rows) == {(problem, method) for problem in STRUCTURED for method in METHODS}
    for (problem, method), row in rows.items():
        assert row["evaluations"] == STRUCTURED[problem]
        assert row["variance"] > 0
        assert row["low_95"] <= row["relative_to_rloo"] <= row["high_95"]
        assert row["largest_z"] < 8  # the tails of few repeats are heavier than a normal variable's
        if method == "RLOO":  # every conditional is computed for the draw and for the gradient
            assert row["relative_to_rloo"] == 1
            assert row["conditional_rows"] == 2 * row["variables"] * row["evaluations"]
    # A sweep of a chain: the base draw and every intervention on an earlier variable, then the base
    # draw again, differentiably.
    assert rows["chain", "SCateR"]["conditional_rows"] == sum(1 + 3 * i for i in range(5)) + 5


def test_structured_variance(structured: dict[tuple[str, str], records.Row]) -> None:
    rows = structured
    for problem in ("transformer", "mdp"):  # by a wide margin, so that few repeats show it
        assert rows[problem, "CritiCateR"]["high_95"] < 1
    assert all(rows[problem, "SCateR"]["low_95"] > 1 for problem in STRUCTURED)
    additive = rows["chain", "RLOO"]["main_effects"]
    assert additive > 0.3 > rows["chain, interactions", "RLOO"]["main_effects"]


def test_bias_and_networks(tmp_path: Path) -> None:
    """Both benchmarks write to one file; every estimator gets a new verdict on bits."""
    output = tmp_path / "estimators.csv"
    run("benchmarks.bias", "--quick", "--output", output)
    quality("networks", "--quick", "--output", output)
    rows = records.read(output)
    verdicts = {row["estimator"]: row["unbiased"] for row in rows if row["unbiased"]}
    assert verdicts == {name: "yes" if cls().unbiased else "no" for name, cls in ESTIMATORS.items()}
    for kind, problem in (("bits", "4 bits"), ("one-hot", "2 one-hot variables of 3")):
        same = [row for row in rows if row["problem"] == problem]
        expected = {name for name, cls in ESTIMATORS.items() if supports(cls(), kind)}
        assert {row["estimator"] for row in same} == expected
        for row in same:
            name = row["estimator"]
            assert row["ms"] > 0
            assert row["merit"] == pytest.approx(row["variance"] * row["evaluations"], rel=1e-2)
            assert name in ("Exact", "UnorderedSet") or 30 <= row["evaluations"] <= 44
            if ESTIMATORS[name]().unbiased and row["z"] is not None:
                assert row["z"] < LIMIT
            learns = name in LEARNERS or "moving" in (row["settings"] or "")
            assert (row["trained"] > 0) == learns
