"""The figure of a comparison."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from .comparison import Comparison

UNBIASED, BIASED = "#0173b2", "#d55e00"


def plot_comparison(comparison: Comparison, path: Path) -> None:
    """Draw variance x time with intervals (left) and variance against time (right)."""
    rows = [row for row in comparison.rows if row.merit > 0]
    exact = [row.name for row in comparison.rows if row.merit == 0]
    figure = Figure(figsize=(11, 1.6 + 0.22 * max(10, len(rows))), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    colours = [UNBIASED if row.unbiased else BIASED for row in rows]
    for i, (row, colour) in enumerate(zip(rows, colours, strict=True)):
        left.plot([row.merit_low, row.merit_high], [i, i], color=colour, linewidth=2, alpha=0.6)
        left.plot(row.merit, i, "o", color=colour, markersize=5)
        place = (row.seconds * 1000, row.variance)
        right.plot(*place, "o", color=colour, markersize=5)
        right.annotate(str(i + 1), place, (4, 3), textcoords="offset points", fontsize=8)
    names = [f"{row.name}  {i + 1}" for i, row in enumerate(rows)]
    left.set_yticks(range(len(rows)), names, fontsize=8)
    left.invert_yaxis()
    left.set_xlabel("variance x seconds, 95 % interval")
    right.set_xlabel("milliseconds per step")
    right.set_ylabel("variance over draws")
    if rows:
        _use_log_scales(left, right)
        _equal_products([(row.seconds * 1000, row.variance) for row in rows], right)
    if any(not row.unbiased for row in rows):
        left.plot([], [], "o", color=UNBIASED, label="unbiased")
        left.plot([], [], "o", color=BIASED, label="biased")
        left.legend(loc="upper right", fontsize=8)
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    title = f"No variance at all: {', '.join(exact)}" if exact else ""
    figure.suptitle(title, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _use_log_scales(left: Axes, right: Axes) -> None:
    """Set logarithmic axes with plain numbers."""
    left.set_xscale("log")
    right.set_xscale("log")
    right.set_yscale("log")
    dense = (1.0, 2.0, 5.0)
    for axis, subs in ((left.xaxis, (1.0,)), (right.xaxis, dense), (right.yaxis, dense)):
        axis.set_major_locator(LogLocator(subs=subs, numticks=8))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def _equal_products(points: list[tuple[float, float]], axes: Axes) -> None:
    """Draw faint lines of equal variance x time: through the best, the worst, and two between."""
    products = sorted(x * y for x, y in points)
    (low, high), limits = axes.get_xlim(), axes.get_ylim()
    steps = 4
    for step in range(steps):
        product = products[0] * (products[-1] / products[0]) ** (step / (steps - 1))
        axes.plot(
            [low, high], [product / low, product / high], color="#999999", linewidth=0.7, zorder=0
        )
    axes.set_xlim(low, high)
    axes.set_ylim(limits)
