"""The tables of programs.md, from results/programs/programs.csv and published numbers."""

from collections.abc import Iterable
from statistics import mean

from . import Row, read, selected, table

NUMBERS = (4, 15, 100, 200)
# Accuracy in per cent of whole sums, as published (docs/programs.md names the sources).
PUBLISHED_NUMBERS = {
    "exact inference: DeepProofLog": (94.0, 80.8, 37.8, 23.2),
    "sampling: DeepProofLog with REINFORCE": (93.5, 76.9, 0.0, 0.0),
    "sampling: NeSyDM": (92.5, 77.3, None, None),
}
# The best of all published methods on MNIST-R.
PUBLISHED_MNIST_R = {
    "sum-2": 96.66, "sum-3": 95.10, "sum-4": 94.10, "mult-2": 96.62, "mod-2": 96.89,
    "add-mod-3": 95.42, "add-sub": 95.32, "less-than": 96.60, "equal": 98.53,
    "not-3-or-4": 99.28, "count-3-4": 95.26,
}  # fmt: skip
# The epochs before a restart (0: none), the shift of images, one expectation of the whole sum.
SETTINGS = ("restart", "shift", "whole")
METHODS = {
    "IndeCateR, per digit": ("IndeCateR", "conv", 0, 0, 0),
    "IndeCateR, shifted images": ("IndeCateR", "conv", 20, 2, 0),
    "IndeCateR, deeper network": ("IndeCateR", "deep", 5, 0, 0),
    "IndeCateR, deeper, later restarts": ("IndeCateR", "deep", 20, 0, 0),
    "IndeCateR, deeper, shifted images": ("IndeCateR", "deep", 20, 2, 0),
    "RLOO, per digit": ("RLOO", "conv", 0, 0, 0),
    "RLOO, shifted images": ("RLOO", "conv", 20, 2, 0),
    "RLOO, whole sum": ("RLOO", "conv", 0, 0, 1),
}


def last_rows(rows: Iterable[Row]) -> list[Row]:
    """Return the last row of every run that left its start."""
    runs: dict[tuple[object, ...], Row] = {}
    names = ("estimator", "samples", "seed", "program", "digits", "whole", "double_softmax",
             "learning_rate", "value_samples", "network", "shift", "restart")  # fmt: skip
    for row in rows:
        runs[tuple(row.get(name) for name in names)] = row
    return [row for row in runs.values() if row["epoch"] > 0]


def numbers(rows: list[Row]) -> str:
    lines = []
    for name, (estimator, network, *settings) in METHODS.items():
        cells = []
        for digits in NUMBERS:
            runs = selected(
                rows, program="numbers", estimator=estimator, digits=digits, network=network
            )
            same = [row for row in runs if [int(row[x] or 0) for x in SETTINGS] == settings]
            cells.append(f"{100 * mean(row['accuracy'] for row in same):.1f}" if same else "")
        lines.append([f"**{name}**", *cells])
    for name, values in PUBLISHED_NUMBERS.items():
        lines.append([name, *("" if value is None else f"{value:.1f}" for value in values)])
    return table(["method", *(f"N = {digits}" for digits in NUMBERS)], lines)


def runs_of(rows: list[Row], program: str, estimator: str, twice: bool = False) -> list[Row]:
    """Return the runs of an estimator on a program, with the softmax taken once or twice."""
    runs = selected(rows, program=program, estimator=estimator)
    return [row for row in runs if bool(row["double_softmax"]) == twice]


def lost(rows: list[Row], estimator: str) -> list[str]:
    """Return the programs on which no version of an estimator is above the best published."""
    names = []
    for program, best in PUBLISHED_MNIST_R.items():
        versions = [runs_of(rows, program, name) for name in (estimator, f"{estimator}-D")]
        means = [mean(row["accuracy"] for row in runs) for runs in versions if runs]
        names += [program] if 100 * max(means) <= best else []
    return names


def values() -> dict[str, object]:
    rows = last_rows(read("programs/programs"))
    return {
        "numbers": numbers(rows),
        "mnist_r_wins": len(PUBLISHED_MNIST_R) - len(lost(rows, "IndeCateR")),
        "mnist_r_wins_rloo": len(PUBLISHED_MNIST_R) - len(lost(rows, "RLOO")),
    }
