"""The tables of fast_functions.md: means that functions know."""

from statistics import mean

from . import Row, distinct, read, short, table


def times(rows: list[Row]) -> str:
    """Return the time of value and gradient by number of digits."""
    by_size = {row["digits"]: {} for row in rows}
    for row in rows:
        by_size[row["digits"]][row["method"]] = row
    return table(
        ("digits", "P(sum = s)", "Exact, ms", "error of its gradient", "IndeCateR(10), ms"),
        (
            (
                f"{digits:,}",
                short(sides["Exact"]["probability"]),
                short(sides["Exact"]["ms"]),
                short(sides["Exact"]["gradient_error"]),
                short(sides["IndeCateR(10)"]["ms"]),
            )
            for digits, sides in by_size.items()
        ),
    )


def parts(rows: list[Row]) -> str:
    """Return the variance with and without a known part."""
    return table(
        ("problem", "estimator", "variance", "with the part", "ratio"),
        (
            (
                row["problem"],
                row["estimator"],
                short(row["variance"]),
                short(row["variance_with_part"]),
                f"{row['ratio']:.2g} ± {row['ratio_error']:.1g}",
            )
            for row in rows
        ),
    )


def additions(rows: list[Row]) -> str:
    """Return the accuracy after the first, the second and the last epoch, over seeds."""
    names = distinct(rows, "estimator")
    lines = []
    for name in names:
        runs = [row for row in rows if row["estimator"] == name]
        last = [row for row in runs if row["epoch"] == row["epochs"]]
        cells = [
            f"{100 * mean(row['accuracy'] for row in runs if row['epoch'] == epoch):.1f}"
            for epoch in (1, 2)
        ]
        final = ", ".join(f"{100 * row['accuracy']:.0f}" for row in last)
        step = 1000 * mean(row["seconds"] / row["iteration"] for row in last)
        lines.append(
            (
                name,
                *cells,
                f"{100 * mean(row['accuracy'] for row in last):.1f} ({final})",
                f"{step:.0f}",
            )
        )
    epochs = {row["epochs"] for row in rows}
    return table(
        (
            "estimator",
            "epoch 1",
            "epoch 2",
            f"epoch {max(epochs, default='')} (seeds)",
            "ms per step",
        ),
        lines,
    )


def after_100_epochs(rows: list[Row]) -> str:
    """Return the accuracy of IndeCateR-D on 16 digits in the paper's experiment."""
    last = [
        row["accuracy"]
        for row in rows
        if row["estimator"] == "IndeCateR-D" and row["digits"] == 16 and row["epoch"] == 100
        if row.get("samples") is None
    ]
    return f"{100 * mean(last):.0f}"


def values() -> dict[str, object]:
    return {
        "times": times(read("speed/known_means")),
        "parts": parts(read("quality/known_part")),
        "paper_epochs": after_100_epochs(read("paper/addition")),
        "additions": additions(read("programs/exact_addition")),
    }
