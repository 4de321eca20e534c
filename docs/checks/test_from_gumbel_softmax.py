"""What from_gumbel_softmax.md says of its numbers."""

from measured import read
from measured.from_gumbel_softmax import EARLY, LATE, overhead


def numbers(column: str, steps: int) -> dict[str, float]:
    """Return a column of the gradient's rows, by estimator."""
    rows = [row for row in read("quality/temperatures") if row["section"] == "gradient"]
    return {row["estimator"]: row[column] for row in rows if row["steps"] == steps}


def gumbel_softmax(column: str, steps: int) -> list[float]:
    """Return the numbers of F.gumbel_softmax, in the order of temperatures."""
    named = numbers(column, steps)
    return [number for name, number in named.items() if name.startswith("F.gumbel_softmax")]


def test_a_temperature_is_a_compromise() -> None:
    for steps in (EARLY, LATE):
        assert gumbel_softmax("bias", steps) == sorted(gumbel_softmax("bias", steps))
        variances = gumbel_softmax("variance", steps)
        assert variances == sorted(variances, reverse=True)


def test_bias_grows_as_the_model_trains() -> None:
    early, late = (gumbel_softmax("bias", steps)[1:] for steps in (EARLY, LATE))
    assert all(after > 1.5 * before for before, after in zip(early, late, strict=True))


def test_reinmax_has_the_bias_of_low_temperatures_only() -> None:
    for steps in (EARLY, LATE):
        bias, variance = numbers("bias", steps), numbers("variance", steps)
        assert all(bias["ReinMax(1)"] < other / 2 for other in gumbel_softmax("bias", steps)[1:])
        assert variance["ReinMax(1)"] < gumbel_softmax("variance", steps)[0] / 4


def test_minimum_variance_has_less_variance_than_reinmax() -> None:
    for steps in (EARLY, LATE):
        bias, noise = numbers("bias", steps), numbers("bias_noise", steps)
        variance = numbers("variance", steps)
        ours = "MinimumVarianceStraightThrough(1)"
        assert abs(bias[ours] - bias["ReinMax(1)"]) < noise[ours] + noise["ReinMax(1)"]
        assert variance[ours] < 0.95 * variance["ReinMax(1)"]


def test_bounds_after_training() -> None:
    rows = [row for row in read("quality/temperatures") if row["section"] == "training"]
    best = ("ReinMax(1)", "MinimumVarianceStraightThrough(1)")
    ours = [row["bound"] for row in rows if row["estimator"] in best]
    others = [row["bound"] for row in rows if row["estimator"] not in best]
    assert len(ours) == 4
    assert max(ours) < min(others)
    hot = [row for row in rows if row["estimator"].endswith(("tau = 1.0", "tau = 1.5"))]
    assert all(row["bound"] > 215 for row in hot)  # 219.9 without any information in the codes


def test_overhead() -> None:
    assert float(overhead(read("speed/sample_cpu"))) <= 15


# control_variates.md


def test_only_the_minimum_variance_estimator_predicts_better_than_reinmax() -> None:
    """Less noise, and a residual of at most 2 % more; the others leave a larger residual."""
    rows = read("quality/slope_predictions")
    for steps in {row["steps"] for row in rows}:
        by_name = {row["estimator"]: row for row in rows if row["steps"] == steps}
        reinmax = by_name["ReinMax(1)"]
        best = by_name["MinimumVarianceStraightThrough(1)"]
        assert best["residual"] <= 1.02 * reinmax["residual"]
        assert best["noise"] < 0.9 * reinmax["noise"]
        for name, row in by_name.items():
            exact = "MinimumVariance" in name and "bias_weight=1)" not in name
            assert exact or name == "ReinMax(1)" or row["residual"] > 5 * reinmax["residual"]
