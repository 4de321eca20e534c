"""Every estimator on every problem of the suite, from results/quality/suite.csv."""

from math import exp, log
from pathlib import Path
from statistics import fmean

import matplotlib.pyplot as plt
import numpy as np

from . import Row, grouped, read, table

EXACT = 1e-20  # a variance relative to the squared norm below this is rounding
CLOSE = 2.0  # "close to the best" is below this ratio
SHOWN = ("SlopeCateR", "IndeCateR-Latin", "RLOO", "CritiCateR", "Reinforce")


def load() -> list[Row]:
    """Return what was measured."""
    return prepared([row for row in read("quality/suite") if row.get("variance") is not None])


def prepared(rows: list[Row]) -> list[Row]:
    """Add `cost`, mean squared error x time, and `exact`, which marks estimates without error."""
    for row in rows:
        squared_bias = 0.0 if row["unbiased"] else (row["bias"] or 0.0) ** 2
        row["exact"] = row["variance"] + squared_bias <= EXACT * row["norm"] ** 2
        row["cost"] = (row["variance"] + squared_bias) * row["seconds"]
    return rows


def ratios(rows: list[Row]) -> dict[str, dict[str, float]]:
    """Return cost relative to the best unbiased estimator that is not exact; exact ones have 0."""
    relative = {}
    for problem, group in grouped(rows, "problem").items():
        costs = [row["cost"] for row in group if row["unbiased"] and not row["exact"]]
        best = min(costs, default=1.0)
        relative[problem] = {
            row["estimator"]: 0.0 if row["exact"] else row["cost"] / best for row in group
        }
    return relative


def order(rows: list[Row]) -> tuple[list[str], list[str]]:
    """Return the unbiased and the biased estimators, the lowest mean ratio first (exact counts as
    1).
    """
    relative = ratios(rows)
    biased = {row["estimator"] for row in rows if not row["unbiased"]}
    mean = {
        name: fmean(log(max(1.0, ratio[name])) for ratio in relative.values() if name in ratio)
        for name in {row["estimator"] for row in rows}
    }
    ranked = sorted(mean, key=lambda name: (mean[name], name))
    return [name for name in ranked if name not in biased], [n for n in ranked if n in biased]


def number(value: float) -> str:
    if value == 0:
        return "0"
    if value < 10:
        return f"{value:.2g}"
    return f"{value:.0f}" if value < 1000 else f"1e{log(value, 10):.0f}"


def safe(rows: list[Row]) -> str:
    """Return a table of unbiased estimators over all problems on which they can be used."""
    relative = ratios(rows)
    lines = []
    for name in order(rows)[0]:
        ratio = [max(1.0, values[name]) for values in relative.values() if name in values]
        if name in SHOWN:
            mean = number(exp(fmean(map(log, ratio))))
            close = sum(value < CLOSE for value in ratio)
            lines.append([f"`{name}`", len(ratio), mean, number(max(ratio)), close])
    return table(("", "problems", "mean ratio", "worst ratio", f"below {CLOSE:g}"), lines)


def picture(path: Path) -> None:
    """Draw the heat map: problems across, estimators down, unbiased ones first."""
    rows = load()
    relative = ratios(rows)
    unbiased, biased = order(rows)
    names = unbiased + biased
    cells = np.full((len(names), len(relative)), np.nan)
    figure, axes = plt.subplots(
        figsize=(2.4 + 0.52 * len(relative), 2.2 + 0.29 * len(names)), layout="constrained"
    )
    for j, ratio in enumerate(relative.values()):
        for i, name in enumerate(names):
            if name in ratio:
                cells[i, j] = np.log10(max(1.0, ratio[name]))
                ink = "white" if cells[i, j] > 1.3 else "black"
                axes.text(
                    j, i, number(ratio[name]), ha="center", va="center", fontsize=9.5, color=ink
                )
    colours = plt.get_cmap("viridis_r").with_extremes(bad="#f4f4f4")
    image = axes.imshow(np.ma.masked_invalid(cells), cmap=colours, vmin=0, vmax=3, aspect="auto")
    axes.axhline(len(unbiased) - 0.5, color="black", linewidth=1.5)
    axes.set_xticks(range(len(relative)), list(relative), rotation=50, ha="left", fontsize=10.5)
    labels = [name if name in unbiased else f"{name} (biased)" for name in names]
    axes.set_yticks(range(len(names)), labels, fontsize=10.5)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(
        image, ax=axes, location="bottom", shrink=0.6, pad=0.02, aspect=40, extend="max"
    )
    bar.set_ticks([0, 1, 2, 3], labels=["best", "10 x", "100 x", "1000 x"], fontsize=10)
    bar.set_label("mean squared error x time, relative to the best unbiased estimator", fontsize=11)
    figure.savefig(path, dpi=150)
