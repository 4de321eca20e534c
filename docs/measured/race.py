"""The numbers and the picture of race.md, and the README's picture."""

from itertools import pairwise
from math import exp
from pathlib import Path
from statistics import mean

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from . import Row, read, table

Curve = list[Row]
TARGET = 100.0
# Colour and line of every method, in the order of the table. Unbiased methods have solid lines.
LOOKS = {
    "SlopeCateR-8": ("#b91c1c", "-"),
    "SlopeCateR-4": ("#f59e0b", "-"),
    "SlopeCateR-8, sizes": ("#ec4899", "-"),
    "GS-S": ("#0f766e", "--"),
    "IndeCateR-Latin": ("#60a5fa", "-"),
    "IndeCateR": ("#1d4ed8", "-"),
    "IndeCateR-Taylor": ("#7c3aed", "-"),
    "RLOO-S": ("#6b7280", "-"),
    "RLOO-F": ("#111827", "-"),
    "GS-F": ("#65a30d", "--"),
}
# The README's curves and their labels.
HEADLINE = {
    "RLOO-F": "RLOO, 800 draws",
    "RLOO-S": "RLOO, 2 draws",
    "IndeCateR": "IndeCateR, 2 draws",
    "GS-S": "Gumbel-Softmax, 2 draws (biased)",
    "SlopeCateR-8": "SlopeCateR, 8 draws",
}


def curves(rows: list[Row]) -> dict[str, dict[int, Curve]]:
    """Return the runs by method, in the order of LOOKS, and by seed."""
    runs: dict[str, dict[int, Curve]] = {}
    for row in rows:
        runs.setdefault(row["method"], {}).setdefault(row["seed"], []).append(row)
    return {name: runs[name] for name in LOOKS if name in runs}


def reached(curve: Curve, target: float = TARGET) -> float | None:
    """Return the seconds until the bound was reached, by linear interpolation."""
    for before, after in pairwise(curve):
        if after["train"] <= target < before["train"]:
            share = (before["train"] - target) / (before["train"] - after["train"])
            return float(before["seconds"] + share * (after["seconds"] - before["seconds"]))
    return None


def bound_after(curve: Curve, seconds: float) -> float:
    """Return the bound at a time, by linear interpolation."""
    for before, after in pairwise(curve):
        if after["seconds"] >= seconds:
            share = (seconds - before["seconds"]) / (after["seconds"] - before["seconds"])
            return float(before["train"] + share * (after["train"] - before["train"]))
    return float("nan")


def mean_time(runs: dict[int, Curve]) -> float:
    return mean(time for curve in runs.values() if (time := reached(curve)) is not None)


def common_time(methods: dict[str, dict[int, Curve]]) -> float:
    """Return the whole seconds that all runs have reached."""
    ends = [curve[-1]["seconds"] for runs in methods.values() for curve in runs.values()]
    return float(int(min(ends)))


def ranking(methods: dict[str, dict[int, Curve]]) -> str:
    seconds = common_time(methods)
    head = (
        "method",
        "seconds to 100, by seed",
        "mean",
        "steps",
        "ms per step",
        f"bound after {seconds:.0f} s",
    )
    lines = []
    for name, runs in methods.items():
        times = [reached(curve) for curve in runs.values()]
        last = [curve[-1] for curve in runs.values()]
        average = f"not in {min(row['seconds'] for row in last):.0f}"
        if None not in times:
            average = f"**{mean_time(runs):.2f}**"
        step_ms = mean(1000 * row["seconds"] / row["step"] for row in last)
        bound = mean(bound_after(curve, seconds) for curve in runs.values())
        lines.append(
            (
                name + (" (biased)" if name.startswith("GS") else ""),
                ", ".join("-" if time is None else f"{time:.2f}" for time in times),
                average,
                f"{mean(row['step'] for row in last):,.0f}",
                f"{step_ms:.3f}",
                f"{bound:.2f}",
            )
        )
    return table(head, lines)


def addition_runs(rows: list[Row]) -> list[Curve]:
    runs: dict[tuple[int, int], Curve] = {}
    for row in rows:
        runs.setdefault((row["samples"], row["seed"]), []).append(row)
    return list(runs.values())


def values() -> dict[str, object]:
    rows, addition = read("speed/race_cuda"), read("paper/addition_64")
    methods, runs = curves(rows), addition_runs(addition)
    last = [run[-1] for run in runs]
    losses = [mean(row["train"] for row in run[-10:]) for run in runs]  # an epoch has 93 steps
    accuracies = [row["accuracy"] for row in last]
    digits = [row["digit_accuracy"] for row in last]
    best = mean_time(methods["SlopeCateR-8"])
    return {
        "device": rows[0]["device"].replace("NVIDIA ", ""),
        "ranking": ranking(methods),
        "softmax_slower": f"{mean_time(methods['GS-S']) / best:.2f}",
        "indecater_slower": f"{mean_time(methods['IndeCateR']) / best:.2f}",
        "accuracy": f"{min(accuracies):.0%} to {max(accuracies):.0%}",
        "best_accuracy": f"{max(row['accuracy'] for row in addition):.0%}",
        "digit_accuracy": f"{min(digits):.0%} to {max(digits):.0%}",
        "loss": f"{min(losses):.2f} to {max(losses):.2f}",
        "probability": f"{exp(-max(losses)):.0%}",
    }


def plot_run(axes: Axes, name: str, curve: Curve, label: str | None, width: float) -> None:
    shown = [row for row in curve if row["seconds"] > 0]
    seconds, bounds = [row["seconds"] for row in shown], [row["train"] for row in shown]
    colour, line = LOOKS[name]
    axes.plot(seconds, bounds, line, color=colour, linewidth=width, label=label)


def clean(axes: Axes) -> None:
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def headline(path: Path) -> None:
    """Draw five methods of the race, one seed each."""
    figure, axes = plt.subplots(figsize=(8.6, 4.2), layout="constrained")
    methods = curves(read("speed/race_cuda"))
    for name, label in HEADLINE.items():
        seconds = reached(methods[name][0])
        result = "not reached" if seconds is None else f"after {seconds:.1f} s"
        plot_run(axes, name, methods[name][0], f"{label}:\n100 {result}", 2.4)
    axes.axhline(TARGET, color="#9ca3af", linewidth=0.8, linestyle=":")
    axes.set(xlim=(0, 18), ylim=(99, 130), xlabel="seconds of training on one H200")
    axes.set_ylabel("negated ELBO of the training images")
    axes.set_title("A discrete autoencoder of MNIST with 200 bits: lower is better", fontsize=12)
    figure.legend(loc="outside right center", frameon=False, labelspacing=1.2)
    clean(axes)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def race(path: Path) -> None:
    figure, axes = plt.subplots(figsize=(9, 4.6), layout="constrained")
    for name, runs in curves(read("speed/race_cuda")).items():
        for i, curve in enumerate(runs.values()):
            plot_run(axes, name, curve, name if i == 0 else None, 1.2)
    axes.axhline(TARGET, color="#9ca3af", linewidth=0.8, linestyle=":")
    axes.set(ylim=(99, 130), xlim=(0, 18), xlabel="seconds of training")
    axes.set_ylabel("negated train bound")
    figure.legend(ncols=5, loc="outside lower center", frameon=False)
    clean(axes)
    figure.savefig(path, dpi=130)
    plt.close(figure)


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
    plt.close(figure)


def figures() -> dict[str, object]:
    return {"race.png": race, "addition_64.png": addition}
