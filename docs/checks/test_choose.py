"""The sentences of choose.md, from the files that it cites."""

import pytest
from measured import Row, keyed, read

import catlog

BITS, CATEGORIES = "20 bits", "8 one-hot variables of 5"


def measured(problem: str) -> list[Row]:
    """Return the rows of unbiased estimators on a problem, the lowest variance first."""
    skipped = {name for name, cls in catlog.estimators.ESTIMATORS.items() if not cls().unbiased}
    skipped |= {"VIMCO", "Exact"}
    rows = [row for row in read("quality/estimators") if row["problem"] == problem]
    rows = [row for row in rows if row["variance"] and row["estimator"] not in skipped]
    return sorted(rows, key=lambda row: row["variance"])


def best(problem: str, name: str, settings: str | None = None) -> Row:
    """Return the row of an estimator (with these settings) with the lowest variance."""
    rows = [row for row in measured(problem) if row["estimator"] == name]
    return next(row for row in rows if settings in (None, row["settings"]))


def test_20_bits() -> None:
    ranking = [row["estimator"] for row in measured(BITS)]
    latin = best(BITS, "IndeCateR", "samples=2, sampling=latin")
    critic, rloo = best(BITS, "CritiCateR"), best(BITS, "RLOO")
    assert ranking[:3] == ["SlopeCateR", "MemoryCateR", "DoubleCV"]
    assert ranking[-1] == "Reinforce"
    assert latin["variance"] == pytest.approx(critic["variance"], rel=0.05)
    assert latin["variance"] / rloo["variance"] == pytest.approx(1 / 3, rel=0.05)
    assert critic["ms"] > 10 * latin["ms"]
    assert latin["variance"] < best(BITS, "IndeCateR", "samples=2")["variance"]
    black_boxes = [
        name
        for name in dict.fromkeys(ranking)
        if not catlog.estimators.ESTIMATORS[name]().differentiates_f
    ]
    assert black_boxes[0] == "MemoryCateR"
    assert set(black_boxes[1:3]) == {"IndeCateR", "CritiCateR"}


def test_categories() -> None:
    ranking = [row["estimator"] for row in measured(CATEGORIES)]
    plain = best(CATEGORIES, "IndeCateR", "samples=1")["variance"]
    assert ranking[:3] == ["MemoryCateR", "DoubleCV", "SlopeCateR"]
    assert ranking[-1] == "Reinforce"
    assert 0.8 * plain < best(CATEGORIES, "RLOO")["variance"] < plain


@pytest.mark.parametrize("problem", [BITS, CATEGORIES])
def test_reinmax_has_the_least_bias_of_the_relaxations(problem: str) -> None:
    family = {"StraightThrough", "GumbelSoftmax", "GumbelRao", "ReinMax", "DARN"}
    bias: dict[str, float] = {}
    for row in read("quality/estimators"):
        if row["problem"] == problem and row["bias"] and row["estimator"] in family:
            name = row["estimator"]
            bias[name] = min(row["bias"], bias.get(name, row["bias"]))
    least = pytest.approx(min(bias.values()), rel=0.02)
    assert bias["ReinMax"] == least
    assert "DARN" not in bias or bias["DARN"] == least


@pytest.mark.parametrize(("epochs", "plain_is_noisier"), [(8, True), (20, True), (40, False)])
def test_trained_autoencoder(epochs: int, plain_is_noisier: bool) -> None:
    rows = [row for row in read("quality/variance_dvae") if row["epochs"] == epochs]
    variance = {row["method"]: row["variance"] for row in rows}
    rloo, plain = variance["RLOO n=402"], variance["IndeCateR n=2"]
    taylor = variance["IndeCateR n=20, m=20, Taylor, Latin"]
    assert (plain > rloo) == plain_is_noisier
    assert variance["IndeCateR n=2, Latin"] < min(rloo, plain)
    assert taylor == min(row["variance"] for row in rows if row["unbiased"] == "yes")
    assert 2.9 < variance["RLOO n=420"] / taylor < 20
    softmax = next(row for row in rows if row["method"].startswith("Gumbel"))
    assert softmax["variance"] < taylor / 10
    assert 0.305 < softmax["relative_bias"] < 0.435


@pytest.mark.parametrize("stage", ["8 epochs", "20 epochs", "40 epochs"])
def test_slopes_have_a_lower_error_than_gumbel_softmax(stage: str) -> None:
    rows = [row for row in read("quality/control_variates") if row["part"] == "dvae"]
    error = {row["method"]: row["mse"] for row in rows if row["problem"] == stage}
    softmax = error["GumbelSoftmax n=400, hard, temperature 1"]
    assert 8 < softmax / error["SlopeCateR n=240, m=160"] < 13
    margin = {row["method"]: row["mse_95"] for row in rows if row["problem"] == stage}
    assert all(margin[name] < 0.5 * error[name] for name in error if "160" in name or "400" in name)


def test_structured() -> None:
    rows = read("quality/structured_variance")
    assert len({row["problem"] for row in rows}) == 5
    for row in rows:
        if row["method"] == "SCateR":
            assert row["low_95"] > 1
        if row["method"] == "CritiCateR" and "interactions" in row["problem"]:
            assert row["low_95"] < 1 < row["high_95"]
        elif row["method"] == "CritiCateR":
            assert row["high_95"] < 1


def test_logarithms() -> None:
    rows = keyed(read("quality/log_expectation"), "problem", "estimator", "draws", "repeats")
    p, n = rows["rare", "RLOO", 16, 1]["probability"], 16
    factor = n / (n - 1) * (1 - (1 - p) ** (n - 1))
    assert rows["rare", "RLOO", 16, 1]["gradient_bias"] == pytest.approx(1 - factor, rel=1e-3)
    zeros = rows["rare", "RLOO", 16, 1]["zero"] / rows["rare", "IndeCateR", 4, 1]["zero"]
    assert zeros == pytest.approx(3, abs=0.5)
    few = [rows["common", "RLOO", 4, repeats]["gradient_bias"] for repeats in (1, 2)]
    assert few[0] < few[1]
    for problem, gain in (("rare", 7), ("common", 67)):
        plain, corrected = (rows[problem, "IndeCateR", 16, repeats] for repeats in (1, 2))
        assert plain["evaluations"] == corrected["evaluations"]
        assert plain["gradient_bias"] / corrected["gradient_bias"] == pytest.approx(gain, abs=0.5)
        assert corrected["gradient_rmse"] < 1.03 * plain["gradient_rmse"]
        for column in ("value_bias", "gradient_bias"):  # of more repeats of fewer draws
            assert rows[problem, "IndeCateR", 16, 4][column] == corrected[column]
        for draws in (4, 8, 16):  # half the relative variance, where zeros do not count
            row = rows["common", "IndeCateR", draws, 1]
            assert row["value_bias"] == pytest.approx(row["predicted"], rel=0.05)
