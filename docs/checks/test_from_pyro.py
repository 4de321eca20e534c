"""The sentences of from_pyro.md, from the file that it cites."""

import pytest
from measured import ROOT, read
from render import render

PAGE = (ROOT / "docs" / "from_pyro.md").read_text(encoding="utf-8")
BASELINE = "TraceGraph_ELBO, decaying average"


def ratios(problem: str, steps: int) -> dict[str, float]:
    """Return the variance over that of TraceGraph_ELBO, by method."""
    return {
        row["method"].removeprefix("catlog.pyro.ELBO"): float(row["ratio"])
        for row in read("quality/pyro_variance")
        if (row["problem"], row["steps"]) == (problem, steps)
    }


def lowest(variances: dict[str, float]) -> str:
    return min(variances, key=lambda method: variances[method])


def test_who_has_the_lowest_variance() -> None:
    assert ratios("mixture", 100)["(IndeCateR(1))"] < 1e-10
    assert lowest(ratios("autoencoder", 5)) == "(IndeCateR(1))"
    late = ratios("autoencoder", 100)
    assert late["(RLOO(31))"] < late["(IndeCateR(1))"]
    assert late[BASELINE] == pytest.approx(late["(RLOO(31))"], rel=0.05)
    assert lowest(ratios("chain", 100)) == "(SCateR(1))"


def test_the_page_renders() -> None:
    text = render("from_pyro", PAGE)
    assert "0 (exact)" in text
    assert "{{" not in text
