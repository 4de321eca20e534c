"""The tables and the figure of programs.md, from results/programs/programs.csv."""

from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import mean

import matplotlib.pyplot as plt

from . import Row, grouped, read, selected, table

# Accuracy in per cent of whole sums, as published (docs/programs.md names the sources).
PUBLISHED_NUMBERS = {
    "exact inference: DeepProofLog": (94.0, 80.8, 37.8, 23.2),
    "exact inference: PLIA": (91.8, 79.0, None, None),
    "sampling: DeepProofLog with REINFORCE": (93.5, 76.9, 0.0, 0.0),
    "sampling: NeSyDM": (92.5, 77.3, None, None),
    "sampling: A-NeSI": (92.6, 76.8, None, None),
    "sampling: EXAL": (91.7, 73.3, None, None),
}
PUBLISHED_SUMS = {
    ("ISED", 10): (87.28, 85.72, 6.48),
    ("IndeCateR", 10): (5.36, 4.60, 1.24),
    ("IndeCateR per variable", 10): (10.20, 6.84, 4.24),
    ("REINFORCE", 10): (8.32, 7.52, 5.12),
    ("ISED", 100): (87.72, 86.72, 8.13),
    ("IndeCateR", 100): (89.60, 77.88, 5.16),
    ("IndeCateR per variable", 100): (88.60, 86.92, 83.52),
    ("REINFORCE", 100): (8.28, 8.20, 6.28),
}
# Best of all methods, and IndeCateR.
PUBLISHED_MNIST_R = {
    "sum-2": (96.66, 95.70),
    "sum-3": (95.10, 66.24),
    "sum-4": (94.10, 13.02),
    "mult-2": (96.62, 96.32),
    "mod-2": (96.89, 93.88),
    "add-mod-3": (95.42, 94.02),
    "add-sub": (95.32, 70.12),
    "less-than": (96.60, 78.20),
    "equal": (98.53, 83.10),
    "not-3-or-4": (99.28, 99.28),
    "count-3-4": (95.26, 2.26),
}
NUMBERS = (4, 15, 100, 200)
# Estimator, restarts, shifted images, one expectation of the whole sum.
METHODS = {
    "IndeCateR, per digit": ("IndeCateR", False, False, False),
    "IndeCateR, restarts": ("IndeCateR", True, False, False),
    "IndeCateR, restarts, shifted images": ("IndeCateR", True, True, False),
    "RLOO, per digit": ("RLOO", False, False, False),
    "RLOO, restarts, shifted images": ("RLOO", True, True, False),
    "RLOO, whole sum": ("RLOO", False, False, True),
}


def of_method(rows: list[Row], name: str, digits: int) -> list[Row]:
    """Return the rows of a method on numbers of so many digits."""
    return [
        row
        for row in selected(rows, program="numbers", estimator=METHODS[name][0], digits=digits)
        if tuple(bool(row[field]) for field in ("restart", "shift", "whole")) == METHODS[name][1:]
    ]


def last_rows(rows: Iterable[Row]) -> list[Row]:
    """Return the last row of every run that left its start."""
    runs: dict[tuple[object, ...], Row] = {}
    for row in rows:
        names = ("estimator", "samples", "seed", "program", "digits", "whole", "double_softmax")
        names += ("learning_rate", "value_samples", "network", "shift", "restart")
        runs[tuple(row.get(name) for name in names)] = row
    return [row for row in runs.values() if row["epoch"] > 0]


def per_cent(rows: list[Row]) -> str:
    """Return the mean accuracy in per cent and, of several runs, all of them."""
    if not rows:
        return "not run"
    cell = f"{100 * mean(row['accuracy'] for row in rows):.1f}"
    notes = ["one run"]
    if len(rows) > 1:
        notes = [", ".join(f"{100 * row['accuracy']:.0f}" for row in rows)]
    epochs = sorted({int(row["epoch"]) for row in rows})
    if epochs[0] < rows[0]["epochs"]:
        span = " to ".join(str(epoch) for epoch in dict.fromkeys((epochs[0], epochs[-1])))
        notes.append(f"after {span} of {rows[0]['epochs']} epochs")
    return f"{cell} ({'; '.join(notes)})"


def numbers(rows: list[Row]) -> str:
    lines = []
    for name in METHODS:
        cells, seconds = [], []
        for digits in NUMBERS:
            runs = of_method(rows, name, digits)
            cells.append(per_cent(runs) if runs else "")
            if runs:
                seconds.append(f"{mean(row['seconds'] for row in runs):.0f}")
        lines.append([f"**{name}**", *cells, ", ".join(seconds)])
    for name, values in PUBLISHED_NUMBERS.items():
        lines.append([name, *("" if value is None else f"{value:.1f}" for value in values), ""])
    reference = [f"{100 * 0.9907 ** (2 * digits):.1f}" for digits in NUMBERS]
    lines.append(["a reader with 99.07 % of digits right", *reference, ""])
    return table(["method", *(f"N = {digits}" for digits in NUMBERS), "seconds"], lines)


def sums(rows: list[Row]) -> str:
    lines = []
    for budget in (10, 100):
        for (name, published_budget), values in PUBLISHED_SUMS.items():
            if published_budget == budget:
                lines.append([f"{budget} M", name, *(f"{value:.1f}" for value in values)])
        for name, of_digits in (("IndeCateR-D", budget // 10), ("RLOO", None)):
            cells = []
            for digits in (8, 12, 16):
                samples = of_digits or budget * digits
                runs = selected(rows, estimator=name, digits=digits, samples=samples)
                cells.append(per_cent(runs))
            lines.append([f"{budget} M", f"**{name}**", *cells])
    return table(["evaluations", "method", "M = 8", "M = 12", "M = 16"], lines)


MNIST_R = {  # estimator, softmax twice
    "IndeCateR": ("IndeCateR", False),
    "per variable": ("IndeCateR-D", False),
    "RLOO": ("RLOO", False),
    "IndeCateR, softmax twice": ("IndeCateR", True),
}


def runs_of(rows: list[Row], program: str, estimator: str, twice: bool = False) -> list[Row]:
    """Return the runs of an estimator on a program, with the softmax taken once or twice."""
    runs = selected(rows, program=program, estimator=estimator)
    return [row for row in runs if bool(row["double_softmax"]) == twice]


def mnist_r(rows: list[Row]) -> str:
    lines = []
    for program, (best, published) in PUBLISHED_MNIST_R.items():
        cells = []
        for estimator, twice in MNIST_R.values():
            runs = runs_of(rows, program, estimator, twice)
            cells.append(per_cent(runs) if runs else "")
        lines.append([program, f"{best:.1f}", f"{published:.1f}", *cells])
    return table(["program", "best published", "IndeCateR, published", *MNIST_R], lines)


def wins(rows: list[Row], estimator: str) -> int:
    """Return on how many programs an estimator's best version is above the best published."""
    count = 0
    for program, (best, _) in PUBLISHED_MNIST_R.items():
        versions = [runs_of(rows, program, name) for name in (estimator, f"{estimator}-D")]
        means = [mean(row["accuracy"] for row in runs) for runs in versions if runs]
        count += 100 * max(means) > best
    return count


def values() -> dict[str, object]:
    rows = last_rows(read("programs/programs"))
    return {
        "numbers": numbers(rows),
        "sums": sums(selected(rows, program="sum")),
        "mnist_r": mnist_r(rows),
        "mnist_r_wins": wins(rows, "IndeCateR"),
        "mnist_r_wins_rloo": wins(rows, "RLOO"),
        "sum_64": per_cent(selected(rows, program="sum", digits=64)),
    }


def draw_curves(path: Path) -> None:
    """Draw the accuracy of whole sums by epoch, a panel per N."""
    rows = read("programs/programs")
    figure, panels = plt.subplots(2, 2, figsize=(6.5, 5.4), layout="constrained")
    for digits, axes in zip(NUMBERS, panels.flat, strict=True):
        for colour, name in enumerate(METHODS):
            runs = grouped(of_method(rows, name, digits), "seed", "learning_rate")
            for i, run in enumerate(runs.values()):
                epochs = [row["epoch"] for row in run]
                accuracies = [row["accuracy"] for row in run]
                label = name if i == 0 else None
                axes.plot(epochs, accuracies, color=f"C{colour}", linewidth=1, label=label)
        axes.set(title=f"N = {digits}", ylim=(0, None), xlim=(0, None))
    for axes in panels[1]:
        axes.set_xlabel("epoch")
    figure.supylabel("whole sums read right (test)", fontsize=10)
    lines = {
        line.get_label(): line
        for axes in panels.flat
        for line in axes.get_legend_handles_labels()[0]
    }
    figure.legend(
        lines.values(), lines, fontsize=8, ncols=2, loc="outside lower center", frameon=False
    )
    figure.savefig(path, dpi=150)


def figures() -> dict[str, Callable[[Path], None]]:
    return {"programs.png": draw_curves}
