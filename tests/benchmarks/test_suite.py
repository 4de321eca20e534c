"""The suite's benchmark goes on where it was cut, and its page says what the numbers say."""

import importlib.util
from pathlib import Path
from types import ModuleType

from catlog.experiments import records

ROOT = Path(__file__).parents[2]
SMALL = ["--size", "small", "--repeats", "20", "--rounds", "2", "--training", "5"]


def loaded(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


suite, page = loaded("benchmarks/suite.py"), loaded("docs/make_suite.py")


def test_suite_measures_each_pair_once(tmp_path):
    output = tmp_path / "suite.csv"
    run = ["--problems", "additive,digit-sum", "--output", str(output), *SMALL]
    assert suite.main([*run, "--estimators", "RLOO,IndeCateR"]) == 0
    first = output.read_text(encoding="utf-8")
    assert suite.main([*run, "--estimators", "RLOO,IndeCateR,MuProp"]) == 0
    assert output.read_text(encoding="utf-8").startswith(first)
    rows = {(row["problem"], row["estimator"]): row for row in records.read(output)}
    assert len(rows) == len(records.read(output)) == 6
    assert rows["digit-sum", "MuProp"]["skipped"] == "f has no derivative in x"
    assert rows["additive", "IndeCateR"]["variance"] < 1e-25 < rows["additive", "RLOO"]["variance"]
    assert rows["additive", "RLOO"]["evaluations"] == rows["additive", "RLOO"]["budget"] == 22
    assert rows["digit-sum", "RLOO"]["budget"] == 2 * (1 + 3 * 9)


def row(
    problem: str, estimator: str, variance: float, merit: float, unbiased: bool = True
) -> dict[str, object]:
    told = {
        "problem": problem,
        "estimator": estimator,
        "variance": variance,
        "merit": merit,
        "merit_high": 1.2 * merit,
    }
    told |= {"variance_low": variance / 1.2, "variance_high": 1.2 * variance}
    return told | {"unbiased": unbiased, "norm": 1.0, "bias": 0.0 if unbiased else 0.5}


def test_page_compares_with_the_best_unbiased_estimator(tmp_path):
    output = tmp_path / "suite.csv"
    rows = [
        row("ising", "RLOO", 1.0, 6.0),
        row("ising", "IndeCateR", 0.5, 2.0),
        row("ising", "StraightThrough", 0.1, 0.5, unbiased=False),
        row("additive", "RLOO", 1.0, 3.0),
        row("additive", "IndeCateR", 1e-30, 1e-30),
    ]
    records.write(rows, output)
    read = page.read(output)
    assert page.ratios(read) == {
        "ising": {"RLOO": 3.0, "IndeCateR": 1.0, "StraightThrough": 0.25},
        "additive": {"RLOO": 1.0, "IndeCateR": 0.0},
    }
    assert page.order(read) == (["IndeCateR", "RLOO"], ["StraightThrough"])
    text = page.page(read)
    assert "`IndeCateR` | `RLOO` | 3.00 (2.32 to 3.88) |" in text  # log(1.2) * sqrt(2) either way
    assert "`IndeCateR`: exact" in text
    assert "- `IndeCateR` on 1: `ising`.\n" in text
    assert "| `RLOO` | 2 | 1.7 | 3 | `ising` | 1 |" in text
    page.picture(read, tmp_path / "suite.png")
    assert (tmp_path / "suite.png").stat().st_size > 10_000
