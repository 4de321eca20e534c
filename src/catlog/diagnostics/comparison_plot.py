"""The figure of a comparison."""

from pathlib import Path

from matplotlib.figure import Figure

from .comparison import Comparison

UNBIASED, BIASED = "#0173b2", "#d55e00"


def plot_comparison(comparison: Comparison, path: Path) -> None:
    """Draw variance x time with intervals (left) and variance against time (right)."""
    rows = [row for row in comparison.rows if row.merit > 0]
    exact = [row.name for row in comparison.rows if row.merit == 0]
    figure = Figure(figsize=(11, 1.6 + 0.22 * max(10, len(rows))), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for i, row in enumerate(rows):
        colour = UNBIASED if row.unbiased else BIASED
        left.plot([row.merit_low, row.merit_high], [i, i], color=colour, linewidth=2, alpha=0.6)
        left.plot(row.merit, i, "o", color=colour, markersize=5)
        place = (row.seconds * 1000, row.variance)
        right.plot(*place, "o", color=colour, markersize=5)
        right.annotate(str(i + 1), place, (4, 3), textcoords="offset points", fontsize=8)
    left.set_yticks(range(len(rows)), [f"{row.name}  {i + 1}" for i, row in enumerate(rows)])
    left.invert_yaxis()
    left.set_xlabel("variance x seconds, 95 % interval; orange: biased")
    right.set_xlabel("milliseconds per step")
    right.set_ylabel("variance over draws")
    for axes in (left, right) if rows else ():
        axes.set_xscale("log")
        axes.grid(alpha=0.25)
    if rows:
        right.set_yscale("log")
    figure.suptitle(f"No variance at all: {', '.join(exact)}" if exact else "", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
