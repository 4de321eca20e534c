"""The page on control variates and the results agree."""

from pathlib import Path
from runpy import run_path

from catlog.experiments import records

ROOT = Path(__file__).parents[2]
MODULE = run_path(str(ROOT / "docs" / "make_control_variates.py"))


def test_the_page_is_current() -> None:
    """Run docs/make_control_variates.py after a result has changed."""
    rows = records.read(ROOT / "results" / "quality" / "control_variates.csv")
    contest = records.read(ROOT / "results" / "quality" / "contest.csv")
    text = (ROOT / "docs" / "control_variates.md").read_text(encoding="utf-8")
    assert text == MODULE["page"](rows, contest)


def test_slopecater_has_half_the_error_of_gumbel_softmax() -> None:
    rows = records.read(ROOT / "results" / "quality" / "control_variates.csv")
    trained = [row for row in rows if row["problem"] == "40 epochs"]
    (ours,) = (row for row in trained if row["method"] == "SlopeCateR n=240, m=160")
    (biased,) = (row for row in trained if row["method"].startswith("GumbelSoftmax"))
    assert ours["mse"] + ours["mse_95"] < 0.5 * (biased["mse"] - biased["mse_95"])


def test_memorycater_wins_the_contest() -> None:
    """The least variance of all unbiased estimators on eight problems, with both seeds, and intervals apart."""
    contest = records.read(ROOT / "results" / "quality" / "contest.csv")
    rows = [row for row in contest if row["part"] == "contest"]
    assert {row["seed"] for row in rows} == {1, 2}
    won = MODULE["wins"](rows, "MemoryCateR", clear=True)
    assert len(won) >= 8
    assert {"digit-sum", "max-coverage", "knapsack", "mixed", "ising", "vq", "dvae"} <= set(won)
