"""The picture of `make demo`: when IndeCateR beats RLOO, and when not.

    python experiments/reproduce/demo.py FOLDER

compares the two on eight problems, reads the runs of demo.sh, and writes FOLDER/demo.png.
"""

import sys
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

import catlog
from catlog import problems
from catlog_experiments import records
from catlog_experiments.report.figures import look
from catlog_experiments.report.runs import Evidence

MOST = 100.0  # the longest bar
PROBLEMS = {
    "additive": "every variable has its own effect",
    "max-coverage": "diminishing returns, local effects",
    "xor": "the effects add up",
    "random-network": "smooth in all variables",
    "ising": "weak interactions of all pairs",
    "knapsack": "a constraint couples all variables",
    "parity": "all variables act together",
    "digit-sum": "f is zero nearly everywhere",
}


def draw_gains(axes: Axes) -> None:
    """Draw how many times less variance than RLOO IndeCateR has, problem by problem."""
    for y, (name, why) in enumerate(PROBLEMS.items()):
        problem = problems.make(name)
        comparison = catlog.compare(
            problem.f, problem.distribution, ["RLOO", "IndeCateR"], problem.parameters,
            reference=problem.reference(), budget=200, repeats=400, rounds=1, progress=False,
        )  # fmt: skip
        variances = {row.name.split("(")[0]: row.variance for row in comparison.rows}
        rloo, indecater = variances["RLOO"], variances["IndeCateR"]
        gain = min(MOST, rloo / indecater) if indecater > 0 else MOST
        colour = look("IndeCateR" if gain > 1 else "RLOO")["color"]
        axes.barh(y, gain - 1, left=1, color=colour)
        text = "no noise" if gain == MOST else f"{gain:.2g}"
        axes.text(gain, y, f" {text} ", ha="left" if gain > 1 else "right", va="center")
        print(f"   {name:15s} {text:>9s}   {why}", flush=True)
    axes.axvline(1, color="0.3", linewidth=1)
    axes.set(xscale="log", xlim=(0.003, 1000), ylim=(len(PROBLEMS) - 0.5, -0.5))
    axes.set_yticks(range(len(PROBLEMS)), [f"{name}\n{why}" for name, why in PROBLEMS.items()])
    axes.tick_params(axis="y", labelsize=9)
    axes.set_xlabel("variance of RLOO divided by that of IndeCateR")
    axes.set_title("Equal evaluations of f: right of 1, IndeCateR wins", loc="left")


def draw_curves(
    axes: Axes, evidence: Evidence, experiment: str, metric: str, x: str, title: str
) -> None:
    """Draw the mean curve of every method."""
    methods = evidence.methods(experiment)
    for name, runs in methods.items():
        curve = runs.series(metric, x)
        every = max(1, len(curve) // 8)
        axes.plot(curve["x"], curve["mean"], label=name, markevery=every, **look(name, methods))
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.set_title(title, loc="left")
    axes.set_xlabel({"iteration": "iterations", "epoch": "epochs"}[x])
    axes.legend(frameon=False)


def main(folder: Path) -> None:
    evidence = Evidence.from_rows(records.read(folder / "runs"))
    figure = Figure((12, 7.2), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=(1.3, 1))
    print("   Variance of RLOO divided by that of IndeCateR:")
    draw_gains(figure.add_subplot(grid[:, 0]))
    above, below = figure.add_subplot(grid[0, 1]), figure.add_subplot(grid[1, 1])
    title = "200 bits with separate effects: expected value"
    draw_curves(above, evidence, "optimisation", "value", "iteration", title)
    title = "Digits learned from sums of four: test accuracy"
    draw_curves(below, evidence, "addition", "accuracy", "epoch", title)
    figure.suptitle(
        "IndeCateR beats RLOO where variables affect f (nearly) one by one.\n"
        "It loses where they act together, or where f is rarely above zero.",
        fontweight="bold",
    )
    figure.savefig(folder / "demo.png", dpi=120)
    print(f"\nPicture: {(folder / 'demo.png').resolve()}")
    print(f"Report: {(folder / 'report.html').resolve()}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
