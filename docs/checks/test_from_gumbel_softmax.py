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


def test_overhead() -> None:
    assert float(overhead(read("speed/sample_cpu"))) <= 15
