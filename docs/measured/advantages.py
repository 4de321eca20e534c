"""The tables and the figure of advantages.md, from results/quality/advantages.csv and
arithmetic.csv.
"""

from pathlib import Path
from statistics import mean

import matplotlib.pyplot as plt

from . import Row, grouped, keyed, read, selected, short, table

SIZES = (2, 4, 8, 16)
PROMPTS = ("easy", "harder", "hardest", "all")


def load() -> dict[tuple[str, str, int, str], Row]:
    return keyed(read("quality/advantages"), "reward", "estimator", "size", "prompt")


def bias(rows: dict[tuple[str, str, int, str], Row]) -> str:
    """Return scales and biases of the normalised advantages."""
    head = ["reward", "estimator", "size", "scale: easy", "harder", "hardest", "all", "cosine"]
    lines = []
    for reward in ("right or wrong", "graded"):
        for estimator in ("rloo", "dr_grpo", "grpo"):
            for size in SIZES[1:] if estimator == "grpo" else SIZES[-1:]:
                cells = [rows[reward, estimator, size, prompt] for prompt in PROMPTS]
                scales = [f"{row['scale']:.2f}" for row in cells]
                last = cells[-1]
                angle = [
                    f"{last['cosine']:.4f}",
                    f"{0.0 if last['bias'] < 1e-12 else last['bias']:.2f}",
                ]
                lines.append([reward, f"`{estimator}`", size, *scales, *angle])
    return table([*head, "bias"], lines)


def variance(rows: dict[tuple[str, str, int, str], Row]) -> str:
    """Return variances and tokens of the unbiased advantages."""
    lines = []
    for reward in ("right or wrong", "graded"):
        for estimator in ("reinforce", "rloo", "criticater", "vineppo"):
            cells = [rows[reward, estimator, size, "all"] for size in SIZES]
            texts = [f"{short(row['variance'])} ({row['tokens']})" for row in cells]
            lines.append([reward, f"`{estimator}`", *texts])
    return table(["reward", "estimator", *(f"size {size}" for size in SIZES)], lines)


METHODS = ("rloo", "criticater", "vineppo", "grpo")


def runs() -> dict[str, list[list[Row]]]:
    """Return the curves of every method of the arithmetic task, one per seed."""
    rows = sorted(read("quality/arithmetic"), key=lambda row: row["seed"])
    return {
        method: list(grouped(selected(rows, method=method), "seed").values()) for method in METHODS
    }


def arithmetic() -> str:
    """Return where the runs of every method end."""
    lines = []
    for method, curves in runs().items():
        ends = [curve[-1] for curve in curves]
        right = ", ".join(f"{end['right']:.2f}" for end in ends)
        cells = [f"{mean(end[name] for end in ends):.3f}" for name in ("reward", "right")]
        steps, seconds = (mean(end[name] for end in ends) for name in ("step", "seconds"))
        lines.append([f"`{method}`", *cells, right, f"{steps:.0f}", f"{seconds:.1f}"])
    head = ["estimator", "reward", "right", "right, by seed", "steps", "seconds"]
    return table(head, lines)


def picture(path: Path) -> None:
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained", sharex=True)
    for number, (method, curves) in enumerate(runs().items()):
        for axes, name in zip(panels, ("reward", "right"), strict=True):
            for seed, curve in enumerate(curves):
                points = [row for row in curve if row[name] is not None]
                x, y = zip(*((row["tokens"] / 1000, row[name]) for row in points), strict=True)
                label = method if seed == 0 and axes is panels[0] else None
                axes.plot(x, y, color=f"C{number}", linewidth=1, label=label)
            axes.set(xlabel="thousand tokens generated", ylabel=name)
    figure.legend(loc="outside right center", frameon=False)
    figure.savefig(path, dpi=130)


def figures() -> dict[str, object]:
    return {"arithmetic.png": picture}


def values() -> dict[str, object]:
    rows = load()
    scale = {prompt: rows["right or wrong", "grpo", 16, prompt]["scale"] for prompt in PROMPTS}
    critic, rloo = (rows["graded", name, 16, "all"]["variance"] for name in ("criticater", "rloo"))
    return {
        "bias": bias(rows),
        "variance": variance(rows),
        "arithmetic": arithmetic(),
        "easy": f"{scale['easy']:.1f}",
        "hardest": f"{scale['hardest']:.1f}",
        "gain": f"{critic / rloo:.2f}",
    }
