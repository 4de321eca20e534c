"""The table of choose.md: bias of logarithms, from results/quality/log_expectation.csv."""

from . import Row, read, short, table

SHOWN = [("RLOO", 4), ("RLOO", 16), ("IndeCateR", 4), ("IndeCateR", 16)]


def logarithms(rows: list[Row]) -> str:
    """Return zeros and biases of the rare and of the common sum, with and without correction."""
    cells = {(row["problem"], row["estimator"], row["draws"], row["repeats"]): row for row in rows}
    lines = []
    for name, draws in SHOWN:
        for repeats in (1, 2):
            same = [cells[problem, name, draws, repeats] for problem in ("rare", "common")]
            numbers = [
                short(float(row[column]))
                for row in same
                for column in ("zero", "value_bias", "gradient_bias")
            ]
            lines.append(
                [f"`{name}({draws // repeats})`", repeats, same[0]["evaluations"], *numbers]
            )
    probabilities = {row["problem"]: row["probability"] for row in rows}
    head = ["E", "repeats", "evaluations"]
    for problem in ("rare", "common"):
        p = f"p = {probabilities[problem]:g}"
        head += [f"{p}: all zero", "value", "gradient"]
    return table(head, lines)


def values() -> dict[str, object]:
    return {"logarithms": logarithms(read("quality/log_expectation"))}
