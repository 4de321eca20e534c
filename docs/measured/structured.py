"""The step times and the picture of structured.md."""

from math import log
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.colors import LogNorm

from . import distinct, keyed, read

LIMIT = 10  # the ends of the colour scale are 1 / LIMIT and LIMIT


def picture(path: Path) -> None:
    rows = read("quality/structured_variance")
    columns = list(
        dict.fromkeys((row["problem"], row["budget"], row["evaluations"]) for row in rows)
    )
    names = [name for name in distinct(rows, "method") if name != "RLOO"]
    cells = keyed(rows, "method", "problem", "budget")
    ratios = [
        [cells[name, problem, budget]["relative_to_rloo"] for problem, budget, _ in columns]
        for name in names
    ]
    figure, axes = plt.subplots(figsize=(10, 4), layout="constrained")
    axes.imshow(ratios, cmap="RdBu_r", norm=LogNorm(1 / LIMIT, LIMIT), aspect="auto")
    for i, line in enumerate(ratios):
        for j, ratio in enumerate(line):
            ink = "white" if abs(log(ratio)) > 0.6 * log(LIMIT) else "black"
            text = f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2f}"
            axes.text(j, i, text, ha="center", va="center", color=ink)
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
    figure.savefig(path, dpi=130)


def values() -> dict[str, object]:
    """Return how many times as long as code by hand a step takes, by kind of distribution."""
    return {row["q"]: f"{row['ratio']:.2f}" for row in read("speed/structured_steps")}


def figures() -> dict[str, object]:
    return {"structured_variance.png": picture}
