"""The tables of fast_functions.md: means that functions know."""

from statistics import mean

from . import Row, grouped, read, selected, short, table


def times(rows: list[Row]) -> str:
    """Return the time of value and gradient by number of digits."""
    lines = []
    for digits, sides in grouped(rows, "digits").items():
        (exact,), (sampled,) = (selected(sides, method=name) for name in ("Exact", "IndeCateR(10)"))
        numbers = (exact["probability"], exact["ms"], exact["gradient_error"], sampled["ms"])
        lines.append([f"{digits:,}", *map(short, numbers)])
    head = ("digits", "P(sum = s)", "Exact, ms", "error of its gradient", "IndeCateR(10), ms")
    return table(head, lines)


def parts(rows: list[Row]) -> str:
    """Return the variance with and without a known part."""
    lines = []
    for row in rows:
        variances = short(row["variance"]), short(row["variance_with_part"])
        ratio = f"{row['ratio']:.2g} ± {row['ratio_error']:.1g}"
        lines.append([row["problem"], row["estimator"], *variances, ratio])
    return table(("problem", "estimator", "variance", "with the part", "ratio"), lines)


def additions(rows: list[Row]) -> str:
    """Return the accuracy after the first, the second and the last epoch, over seeds."""

    def accuracy(rows: list[Row]) -> str:
        return f"{100 * mean(row['accuracy'] for row in rows):.1f}"

    lines = []
    for name, runs in grouped(rows, "estimator").items():
        last = [row for row in runs if row["epoch"] == row["epochs"]]
        cells = [accuracy(selected(runs, epoch=epoch)) for epoch in (1, 2)]
        final = ", ".join(f"{100 * row['accuracy']:.0f}" for row in last)
        step = 1000 * mean(row["seconds"] / row["iteration"] for row in last)
        lines.append([name, *cells, f"{accuracy(last)} ({final})", f"{step:.0f}"])
    last_epoch = max((row["epochs"] for row in rows), default="")
    head = ("estimator", "epoch 1", "epoch 2", f"epoch {last_epoch} (seeds)", "ms per step")
    return table(head, lines)


def after_100_epochs(rows: list[Row]) -> str:
    """Return the accuracy of IndeCateR-D on 16 digits in the paper's experiment."""
    last = selected(rows, estimator="IndeCateR-D", digits=16, epoch=100, samples=None)
    return f"{100 * mean(row['accuracy'] for row in last):.0f}"


def values() -> dict[str, object]:
    return {
        "times": times(read("speed/known_means")),
        "parts": parts(read("quality/known_part")),
        "paper_epochs": after_100_epochs(read("paper/addition")),
        "additions": additions(read("programs/exact_addition")),
    }
