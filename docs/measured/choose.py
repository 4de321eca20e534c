"""The tables of choose.md: dependent draws, and bias of logarithms."""

from . import Row, distinct, keyed, read, short, table

SHOWN = [("RLOO", 4), ("RLOO", 16), ("IndeCateR", 4), ("IndeCateR", 16)]


MODELS = {"bits": "200 bits", "one-hot": "20 x 10 categories"}
SCHEMES = ((2, "antithetic"), (4, "latin"), (8, "latin"))


def dependent_draws(rows: list[Row]) -> str:
    """Return how many times less variance estimators have than with independent draws."""
    cells = keyed(rows, "estimator", "model", "samples", "draws")
    lines = []
    for name in distinct(rows, "estimator"):
        chosen = [cells[name, model, *scheme] for model in MODELS for scheme in SCHEMES]
        gains = [f"{row['gain']:.1f}, {row['decoder_gain']:.1f}" for row in chosen]
        lines.append([f"`{name}`", *gains])
    head = [f"{title}: {n} {draws}" for title in MODELS.values() for n, draws in SCHEMES]
    return table(["estimator", *head], lines)


def logarithms(rows: list[Row]) -> str:
    """Return zeros and biases of the rare and of the common sum, with and without correction."""
    cells = keyed(rows, "problem", "estimator", "draws", "repeats")
    lines = []
    for name, draws in SHOWN:
        for repeats in (1, 2):
            same = [cells[problem, name, draws, repeats] for problem in ("rare", "common")]
            columns = ("zero", "value_bias", "gradient_bias")
            numbers = [short(float(row[column])) for row in same for column in columns]
            E = f"`{name}({draws // repeats})`"
            lines.append([E, repeats, same[0]["evaluations"], *numbers])
    probabilities = {row["problem"]: row["probability"] for row in rows}
    head = ["E", "repeats", "evaluations"]
    for problem in ("rare", "common"):
        p = f"p = {probabilities[problem]:g}"
        head += [f"{p}: all zero", "value", "gradient"]
    return table(head, lines)


def values() -> dict[str, object]:
    return {
        "draws": dependent_draws(read("quality/dependent_draws")),
        "logarithms": logarithms(read("quality/log_expectation")),
    }
