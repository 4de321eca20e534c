"""The table of choose.md: bias of logarithms."""

from . import keyed, read, short, table


def values() -> dict[str, object]:
    cells = keyed(read("quality/log_expectation"), "problem", "estimator", "draws", "repeats")
    lines = []
    runs = (("RLOO", 16, 1), ("IndeCateR", 4, 1), ("IndeCateR", 16, 1), ("IndeCateR", 16, 2))
    for name, draws, repeats in runs:
        row = cells["rare", name, draws, repeats]
        numbers = [short(float(row[c])) for c in ("zero", "value_bias", "gradient_bias")]
        lines.append([f"`{name}({draws // repeats})`", repeats, row["evaluations"], *numbers])
    head = ["E", "repeats", "evaluations", "all zero", "bias of the value", "of the gradient"]
    return {"logarithms": table(head, lines)}
