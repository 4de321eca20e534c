"""The page of the suite says what the numbers say."""

from catlog.experiments import records
from scripts import loaded

page = loaded("docs/make_suite.py")


def row(
    problem: str, estimator: str, variance: float, merit: float, unbiased: bool = True
) -> dict[str, object]:
    cells = {
        "problem": problem,
        "estimator": estimator,
        "variance": variance,
        "merit": merit,
        "merit_high": 1.2 * merit,
    }
    cells |= {"variance_low": variance / 1.2, "variance_high": 1.2 * variance}
    return cells | {"unbiased": unbiased, "norm": 1.0, "bias": 0.0 if unbiased else 0.5}


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
