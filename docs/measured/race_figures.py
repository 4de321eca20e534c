"""The pictures of race.md, and the README's picture."""

from math import inf
from pathlib import Path
from statistics import median

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from . import Row, distinct, read, selected
from .race import (
    MEASURES,
    TARGETS,
    TITLES,
    Curve,
    addition_runs,
    best_settings,
    class_of,
    curves,
    is_unbiased,
    mean_to,
    standings,
)

# The colour of every estimator, whatever its settings.
COLOURS = {
    "SlopeCateR": "#b91c1c",
    "ReinMax": "#f59e0b",
    "GumbelSoftmax": "#0f766e",
    "RLOO": "#6b7280",
    "IndeCateR": "#1d4ed8",
    "CritiCateR": "#7c3aed",
    "DARN": "#78350f",
}
OTHER_COLOUR = "#ec4899"
# The README's curves and their labels.
HEADLINE = {
    "IndeCateR(2, sampling='latin')": "IndeCateR, 2 Latin draws",
    "RLOO(14)": "RLOO, 14 draws",
    "GumbelSoftmax(8, hard=True, sampling='latin')": "Gumbel-Softmax, 8 Latin draws (biased)",
    "SlopeCateR(6, sampling='latin', every=4)": "SlopeCateR, 6 Latin draws",
    "ReinMax(4)": "ReinMax, 4 draws (biased)",
    "ReinMax(6, sampling='latin')": "ReinMax, 6 Latin draws (biased)",
}


def look(method: str) -> tuple[str, str]:
    """Return colour and line of a label; lines of biased estimators are dashed."""
    return COLOURS.get(class_of(method), OTHER_COLOUR), "-" if is_unbiased(method) else "--"


def plot_run(axes: Axes, name: str, curve: Curve, label: str | None, width: float) -> None:
    shown = [row for row in curve if row["seconds"] > 0]
    seconds, bounds = [row["seconds"] for row in shown], [row["train"] for row in shown]
    colour, line = look(name)
    axes.plot(seconds, bounds, line, color=colour, linewidth=width, label=label)


def clean(axes: Axes) -> None:
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def headline(path: Path) -> None:
    """Draw methods of the race, one seed each."""
    figure, axes = plt.subplots(figsize=(8.6, 4.2), layout="constrained")
    methods = curves(read("speed/race_cuda"))
    for name, label in HEADLINE.items():
        curve, target = next(iter(methods[name].values())), TARGETS[-1]
        result = f"{target:g} after {mean_to({0: curve}):.1f} s"
        plot_run(axes, name, curve, f"{label}:\n{result}", 2.4)
        if name.startswith("ReinMax") and "latin" not in name:
            axes.lines[-1].set_alpha(0.45)
    axes.axhline(TARGETS[-1], color="#9ca3af", linewidth=0.8, linestyle=":")
    axes.set(xlim=(0, 15), ylim=(96, 125), xlabel="seconds of training on one H200")
    axes.set_ylabel("negated ELBO of the training images")
    axes.set_title("A discrete autoencoder of MNIST with 200 bits: lower is better", fontsize=12)
    figure.legend(loc="outside right center", frameon=False, labelspacing=1.2)
    clean(axes)
    figure.savefig(path, dpi=110)


def shown_methods(methods: dict[str, dict[int, Curve]]) -> list[str]:
    """Return the best method of every estimator, the fastest first."""
    best: dict[str, str] = {}

    def rank(name: str) -> tuple[float, float]:
        runs = methods[name]
        return mean_to(runs), min(curve[-1]["train"] for curve in runs.values())

    for name in sorted(methods, key=rank):
        best.setdefault(class_of(name), name)
    return list(best.values())


def race(path: Path) -> None:
    figure, axes = plt.subplots(figsize=(7.4, 4.4), layout="constrained")
    methods = curves(read("speed/race_cuda"))
    for name in shown_methods(methods):
        for i, curve in enumerate(methods[name].values()):
            plot_run(axes, name, curve, name if i == 0 else None, 1.4)
    axes.axhline(TARGETS[-1], color="#9ca3af", linewidth=0.8, linestyle=":")
    axes.set(ylim=(96, 125), xlim=(0, 15), xlabel="seconds of training")
    axes.set_ylabel("negated train bound")
    figure.legend(ncols=2, loc="outside lower center", frameon=False)
    clean(axes)
    figure.savefig(path, dpi=130)


def plot_cpu_race(axes: Axes, race: str, runs: list[Row], points: list[Row]) -> None:
    """Draw the run of median length of every estimator at its best number of draws."""
    target = runs[0]["target"]
    values = []
    for entry in best_settings(standings(runs)[race]):
        seeds = sorted(
            (inf if row["seconds"] is None else row["seconds"], row["seed"])
            for row in runs
            if row["method"] == entry.method
        )
        seed = seeds[len(seeds) // 2][1]
        curve = selected(points, method=entry.method, seed=seed)
        colour, line = look(entry.method)
        seconds = [row["seconds"] for row in curve]
        values.append([row["value"] for row in curve])
        axes.plot(seconds, values[-1], line, color=colour, linewidth=1.8, label=entry.method)
    # From the value that half of the curves pass early on, so that the ends are distinct.
    early = median(line[min(2, len(line) - 1)] for line in values)
    beyond = target + 0.08 * (target - early)
    axes.set_ylim(*sorted((early, beyond)))
    axes.axhline(target, color="#9ca3af", linewidth=0.8, linestyle=":")
    axes.set_title(TITLES[race], fontsize=11)
    axes.set(xlim=(0, None), xlabel="CPU seconds of training", ylabel=MEASURES[race])
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
    clean(axes)


def cpu_races(path: Path) -> None:
    """Draw a panel per race, one below the other."""
    runs, points = read("speed/cpu_races"), read("speed/cpu_race_curves")
    races = distinct(runs, "race")
    size = (7.4, 3.2 * len(races))
    figure, panels = plt.subplots(len(races), figsize=size, layout="constrained", squeeze=False)
    for race, axes in zip(races, panels[:, 0], strict=True):
        plot_cpu_race(axes, race, selected(runs, race=race), selected(points, race=race))
    figure.get_layout_engine().set(h_pad=0.12)  # inches, between a label and the title below it
    figure.savefig(path, dpi=130)


def addition(path: Path) -> None:
    figure, axes = plt.subplots(figsize=(9, 3.8), layout="constrained")
    for run in addition_runs(read("paper/addition_64")):
        colour = "#b91c1c" if run[0]["samples"] == 200 else "#1d4ed8"
        for metric, line, name in (("digit_accuracy", "-", "digits"), ("accuracy", ":", "sums")):
            label = f"{name}, {run[0]['samples']} draws" if run[0]["seed"] == 0 else None
            thinned = run[::5]
            epochs, accuracies = [row["epoch"] for row in thinned], [row[metric] for row in thinned]
            axes.plot(epochs, accuracies, line, color=colour, linewidth=1.2, label=label)
    axes.set(xlabel="epoch", ylabel="test accuracy", ylim=(0, 1))
    figure.legend(ncols=4, loc="outside lower center", frameon=False)
    clean(axes)
    figure.savefig(path, dpi=130)


def figures() -> dict[str, object]:
    return {
        "headline.png": headline,  # of README.md
        "race.png": race,
        "cpu_races.png": cpu_races,
        "addition_64.png": addition,
    }
