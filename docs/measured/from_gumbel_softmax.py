"""The tables of from_gumbel_softmax.md, and what its code prints."""

from collections.abc import Iterable
from itertools import product
from statistics import geometric_mean, mean

from . import Row, distinct, grouped, read, selected, table
from .compare import executed, fenced

EARLY, LATE = 100, 2000  # steps of training before the gradients were measured


def cell(rows: Iterable[Row], estimator: str, steps: int, column: str) -> str:
    """Return a number of the gradient's rows, in per cent for biases."""
    (row,) = selected(rows, estimator=estimator, steps=steps)
    if column == "variance":
        return f"{row['variance']:.2g}"
    text = f"{100 * row['bias']:.0f} ± {100 * row['bias_noise']:.0f} %"
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def bound(rows: Iterable[Row], estimator: str) -> str:
    """Return the mean bound over seeds, and those of the seeds."""
    bounds = [row["bound"] for row in selected(rows, estimator=estimator)]
    if not bounds:
        return ""
    return f"{mean(bounds):.1f} ({', '.join(f'{value:.1f}' for value in bounds)})"


def temperatures(rows: list[Row]) -> str:
    gradient, training = (selected(rows, section=name) for name in ("gradient", "training"))
    lines = []
    for name in distinct(gradient, "estimator"):
        columns = product((EARLY, LATE), ("bias", "variance"))
        cells = [cell(gradient, name, steps, column) for steps, column in columns]
        lines.append([f"`{name}`" if "(" in name else name, *cells, bound(training, name)])
    head = ["", f"bias, step {EARLY}", "variance", f"bias, step {LATE}", "variance"]
    return table([*head, "bound after training"], lines)


MODELS = ("codebook", "codebook, KL", "signals", "two levels", "quantiser", "attention", "router")


def race(rows: list[Row]) -> str:
    """Return a table of the estimators in the race of sampling layers, the safest first."""
    best = {
        key: min(row["quality"] for row in runs)
        for key, runs in grouped(rows, "model", "seed").items()
    }
    step = {
        (row["model"], row["seed"]): row["ms"]
        for row in selected(rows, estimator="StraightThrough(1)")
    }
    lines = []
    for name, runs in grouped(rows, "estimator").items():
        ratios = [row["quality"] / best[row["model"], row["seed"]] for row in runs]
        times = [row["ms"] / step[row["model"], row["seed"]] for row in runs]
        cells = [f"{mean(row['quality'] for row in runs if row['model'] == m):.3g}" for m in MODELS]
        codes = mean(row["codes"] for row in runs if row["model"] == "codebook")
        cells[0] += f" ({codes:.0f})"
        shown = f"`{name}`" if "(" in name else name
        ends = (
            f"{geometric_mean(ratios):.2f}",
            f"{max(ratios):.2f}",
            f"{geometric_mean(times):.2f}",
        )
        lines.append((geometric_mean(ratios), (shown, *cells, *ends)))
    head = ("", *MODELS, "typical", "worst", "time")
    return table(head, [line for _, line in sorted(lines)])


def overhead(rows: list[Row]) -> str:
    """Return the largest time of GumbelSoftmax relative to F.gumbel_softmax, in per cent more."""
    largest = max(row["ratio"] for row in rows if row["method"] == "GumbelSoftmax")
    return f"{100 * (largest - 1):.0f}"


def values() -> dict[str, object]:
    rows = read("quality/temperatures")
    return {
        "temperatures": temperatures(rows),
        "repeats": f"{rows[0]['repeats']:.0f}",
        "training_steps": f"{selected(rows, section='training')[0]['steps']:.0f}",
        "race": race(read("quality/sampling_layers")),
        "overhead": overhead(read("speed/sample_cpu")),
    }


def printed() -> dict[str, str]:
    return {"layers": next(fenced(text) for text in executed("from_gumbel_softmax")[0] if text)}
