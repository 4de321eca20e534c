"""The picture of structured.md: variance relative to RLOO's, from
results/quality/structured_variance.csv; and its table of counts.
"""

from math import log
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.colors import LogNorm

from . import Row, read, short, table

LIMIT = 10  # the ends of the colour scale are 1 / LIMIT and LIMIT


def picture(path: Path) -> None:
    rows = read("quality/structured_variance")
    columns = list(
        dict.fromkeys((row["problem"], row["budget"], row["evaluations"]) for row in rows)
    )
    names = [name for name in dict.fromkeys(row["method"] for row in rows) if name != "RLOO"]
    cells = {(row["method"], row["problem"], row["budget"]): row for row in rows}
    ratios = [
        [cells[name, problem, budget]["relative_to_rloo"] for problem, budget, _ in columns]
        for name in names
    ]
    figure, axes = plt.subplots(figsize=(10, 4.6), layout="constrained")
    image = axes.imshow(ratios, cmap="RdBu_r", norm=LogNorm(1 / LIMIT, LIMIT), aspect="auto")
    for i, name in enumerate(names):
        for j, (problem, budget, _) in enumerate(columns):
            row = cells[name, problem, budget]
            ratio, digits = row["relative_to_rloo"], 0 if row["high_95"] >= 10 else 2
            ink = "white" if abs(log(ratio)) > 0.6 * log(LIMIT) else "black"
            interval = f"{row['low_95']:.{digits}f} to {row['high_95']:.{digits}f}"
            text = f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2f}"
            style = {"ha": "center", "va": "center", "color": ink}
            axes.text(j, i - 0.12, text, weight="bold", **style)
            axes.text(j, i + 0.25, interval, size=8, **style)
    axes.set_xticks(range(len(columns)), [str(evaluations) for *_, evaluations in columns])
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("evaluations of f per estimate")
    problems = list(dict.fromkeys(problem for problem, *_ in columns))
    width = len(columns) // len(problems)
    top = axes.secondary_xaxis("top")
    top.set_xticks([width * i + (width - 1) / 2 for i in range(len(problems))], problems)
    for scale in (axes, top):
        scale.tick_params(length=0)
        scale.spines[:].set_visible(False)
    for i in range(1, len(problems)):
        axes.axvline(width * i - 0.5, color="white", linewidth=6)
    for i in range(1, len(names)):
        axes.axhline(i - 0.5, color="white", linewidth=1)
    bar = figure.colorbar(image, ax=axes, pad=0.01, extend="max")
    ticks = [0.1, 0.2, 0.5, 1, 2, 5, 10]
    bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    bar.ax.minorticks_off()
    bar.outline.set_visible(False)
    bar.set_label("variance / RLOO's (blue: less)")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def figures() -> dict[str, object]:
    return {"structured_variance.png": picture}


def counts(rows: list[Row]) -> str:
    """Return the variance of gradients for counts, by function and estimator."""
    names = list(dict.fromkeys(row["function"] for row in rows))
    methods = list(dict.fromkeys(row["estimator"] for row in rows))
    cells = {(row["function"], row["estimator"]): row for row in rows}
    return table(
        ("estimator", "evaluations", *names),
        (
            (
                method,
                cells[names[0], method]["evaluations"],
                *(short(cells[name, method]["variance"]) for name in names),
            )
            for method in methods
        ),
    )


def values() -> dict[str, object]:
    return {"counts": counts(read("quality/counts"))}
