"""The figures of a report. Curves are means over seeds, shaded by the standard error."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from .runs import TEXTS, Evidence, Methods, estimator_of, rank, setting
from .statistics import Series

LOOKS, DATA, METRICS = TEXTS["looks"], TEXTS["data"], TEXTS["metrics"]
STYLE = Path(__file__).with_name("report.mplstyle")
FURTHER = list(zip(
    ("#117733", "#999933", "#661100", "#6699cc", "#aa4499", "#000000", "#ddaa33"),
    "<>d8H12", strict=True,
))  # fmt: skip
BROKEN_LINES: list[Any] = ["-.", ":", (0, (1, 1)), (0, (6, 2)), (0, (3, 1, 1, 1, 1, 1))]
PUBLISHED: dict[str, Any] = {"linestyle": (0, (4, 2)), "linewidth": 1, "fillstyle": "none"}
AXES = {"iteration": "iterations", "seconds": "seconds", "epoch": "epochs"}
DOTS = ("cosine_distance", "cosine_variance", "relative_bias", "relative_variance")

ROUNDING = 1e-10  # a variance below this share of the largest in its panel is zero up to rounding
MOST_POINTS = 400  # of a curve
# Figures of more inches are shown 56rem wide on a phone, which shows 390 of these 896 pixels.
WIDE = 9.0
PHONE_SHARE = 0.4


@dataclass(frozen=True)
class Panel:
    """One panel of a figure.

    Attributes:
        methods: The methods.
        metric: The metric that is drawn.
        x: What is on the horizontal axis of curves; "": one dot per method.
        title: The size or the data set; "": as in the panel before.
    """

    methods: Methods
    metric: str
    x: str
    title: str

    @property
    def is_logarithmic(self) -> bool:
        return self.metric.startswith("gradient") or self.metric.endswith("variance")

    @property
    def reader(self) -> float | None:
        """The accuracy of a reader of digits with 99 %, a grey line; None without sums."""
        first = next(iter(self.methods.values()))[0]
        return 0.99 ** first["digits"] if first["experiment"] == "addition" else None


@dataclass(frozen=True)
class Picture:
    """A figure of a report.

    Attributes:
        name: The name of its file.
        caption: What it shows.
        panels: What it is made of.
        columns: The most panels in a line.
    """

    name: str
    caption: str
    panels: Sequence[Panel]
    columns: int = 4

    @mpl.rc_context(fname=STYLE)
    def draw(self) -> Figure:
        """Draw the panels, and one legend."""
        columns = min(len(self.panels), self.columns)
        lines = -(-len(self.panels) // columns)
        methods = sorted({name for panel in self.panels for name in panel.methods}, key=rank)
        has_dots = not self.panels[0].x
        width, height = (2.1, 0.5 + 0.23 * len(methods)) if has_dots else (3.5, 2.9)
        size = (max(5.0, width * columns), 0.6 + height * lines)
        figure = Figure(size, layout="constrained")
        grid = figure.subplots(lines, columns, squeeze=False, sharey=has_dots)
        for axes in grid.flat[len(self.panels) :]:
            axes.set_visible(False)
        draw = _draw_dots if has_dots else _draw_curves
        drawn = zip(grid.flat, self.panels, strict=False)
        has_published = [draw(axes, panel, methods) for axes, panel in drawn]
        if has_dots:
            grey: dict[str, Any] = {"color": "0.3", "linestyle": ""}
            handles = [
                Line2D(
                    [], [], marker="o", label="measured (± standard error over problems)", **grey
                ),
                Line2D([], [], marker="|", markersize=11, label="noise level of the bias", **grey),
            ]
            published = Line2D([], [], marker="D", fillstyle="none", label="published", **grey)
        else:
            handles = [Line2D([], [], label=name, **look(name, methods)) for name in methods]
            published = Line2D([], [], color="0.3", marker="o", label="published", **PUBLISHED)
        handles += [published] if any(has_published) else []
        if any(panel.reader for panel in self.panels):
            handles.append(Line2D([], [], color="0.55", linestyle="--", label="$0.99^N$"))
        _place_legend(figure, handles)
        return figure


def pictures(evidence: Evidence) -> list[Picture]:
    """Return the figures of all experiments that were run."""
    found = []
    for (function,) in (size.values() for size in evidence.sizes("gradients", "function")):
        sizes = evidence.sizes("gradients", "variables", "categories")[::-1]
        panels = []
        for metrics in (DOTS[:2], DOTS[2:]):
            for size in sizes:
                methods = evidence.methods("gradients", function=function, **size)
                title = f"D = {size['variables']}, K = {size['categories']}"
                panels += [
                    Panel(methods, metric, "", title * (metric == DOTS[0])) for metric in metrics
                ]
        caption = f"Synthetic gradients, {function} f: bias and variance of each estimator."
        found.append(Picture(f"gradients-{function}", caption, panels, 2 * len(sizes)))
    for spec in TEXTS["figures"]:
        part = evidence.section(spec["section"])
        experiment = part.runs[0]["experiment"] if part.runs else ""
        for split in part.sizes(experiment, *spec["split"]) if part.runs else []:
            panels = [
                Panel(part.methods(experiment, **split, **size), metric, x, _title(size) * (i == 0))
                for size in part.sizes(experiment, *spec["sizes"])
                for i, (metric, x) in enumerate(spec["panels"])
            ]
            defaults = {name: setting({"experiment": experiment}, name) for name in split}
            changed = {name: split[name] for name in split if split[name] != defaults[name]}
            name = "-".join([spec["name"], *map(str, changed.values())])
            details = [spec["caption"], *(f"{key}: {value}" for key, value in changed.items())]
            found.append(Picture(name, ", ".join(details) + ".", panels))
    return found


def _title(size: Mapping[str, Any]) -> str:
    parts = [DATA[value] if name == "data" else f"{value} {name}" for name, value in size.items()]
    return ", ".join(parts).replace(" program", "")


def _draw_dots(axes: Axes, panel: Panel, order: Sequence[str]) -> bool:
    """Draw one metric of every method as dots, with the published ones as diamonds.

    The measured bias of an unbiased estimator is not zero because the mean of its estimates is
    still noisy. A tick marks the level of that noise.
    """
    metric = panel.metric
    stats = {name: runs.stat(f"final {metric}") for name, runs in panel.methods.items()}
    stats = {name: stat for name, stat in stats.items() if stat.seeds}
    floor = _rounding_floor([stat.mean for stat in stats.values()], panel.is_logarithmic)
    has_published = False
    for method, stat in stats.items():
        y, runs, style = order.index(method), panel.methods[method], look(method, order)
        colour = style["color"]
        if stat.mean <= floor:
            beside_axis = axes.get_yaxis_transform()
            axes.text(0.03, y, "0 (rounding)", color=colour, transform=beside_axis, va="center")
            continue
        error = 0.0 if math.isnan(stat.error) else stat.error
        bars = [[min(error, 0.9 * stat.mean) if panel.is_logarithmic else error], [error]]
        axes.errorbar(
            stat.mean, y, xerr=bars, color=colour, fmt=style["marker"], capsize=2.5, markersize=7
        )
        if metric == "relative_bias":
            axes.plot(runs.stat("final noise").mean, y, "|", color=colour, markersize=14)
        known = runs.beside().stat(f"final {metric}")
        has_published |= known.seeds > 0
        axes.plot(known.mean, y, "D", fillstyle="none", color=colour, markersize=9)
    positive = [stat.mean for stat in stats.values() if stat.mean > floor]
    if panel.is_logarithmic and positive:  # at most four powers of ten as ticks
        low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
        step = max(1, math.ceil((high - low) / 3))
        axes.set_xscale("log")
        axes.set_xlim(10.0 ** (low - 0.3), 10.0 ** (high + 0.3))
        axes.set_xticks([10.0**power for power in range(low, high + 1, step)])
        axes.xaxis.set_minor_formatter(NullFormatter())
    elif not panel.is_logarithmic:
        axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
        axes.locator_params(axis="x", nbins=4)
    axes.set(xlabel=METRICS[metric], ylim=(len(order) - 0.5, -0.5), yticks=range(len(order)))
    axes.set_yticklabels(order)
    axes.set_title(panel.title, loc="left", fontweight="bold")
    return has_published


def _draw_curves(axes: Axes, panel: Panel, methods: Sequence[str]) -> bool:
    """Draw a panel of a figure with these methods; return whether it has published curves."""
    metric, x = panel.metric, panel.x
    all_curves = {name: runs.series(metric, x) for name, runs in panel.methods.items()}
    curves = {name: curve for name, curve in all_curves.items() if curve is not None}
    medians = {name: float(np.median(curve.mean)) for name, curve in curves.items()}
    floor = _rounding_floor(medians.values(), panel.is_logarithmic)
    zero = [name for name, median in medians.items() if median <= floor]
    ends = [float(curve.x[-1]) for curve in curves.values() if curve.x[-1] > 0]
    log_x = x == "epoch" or (bool(ends) and max(ends) > 8 * min(ends))
    shown = {
        name: thin
        for name, curve in curves.items()
        if name not in zero and (thin := _thinned(curve, panel.is_logarithmic, log_x)).x.size
    }
    for name, curve in shown.items():
        style = look(name, methods)
        axes.plot(curve.x, curve.mean, markevery=max(1, curve.x.size // 7), **style)
        least = 0.1 * curve.mean if panel.is_logarithmic else -np.inf
        shade = np.maximum(curve.mean - curve.error, least), curve.mean + curve.error
        axes.fill_between(curve.x, *shade, color=style["color"], alpha=0.2, linewidth=0)
    axes.set_title(panel.title, loc="left", fontweight="bold")
    if zero:
        axes.set_title(f"0 up to rounding: {', '.join(zero)}", loc="right", fontsize=9)
    elif not shown:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color="0.4")
    if panel.reader is not None:
        axes.axhline(panel.reader, color="0.55", linestyle="--", linewidth=1.2)
    axes.set(xlabel=AXES[x], ylabel=METRICS[metric])
    if not shown:
        return False
    _set_scales(axes, list(shown.values()), panel, log_x)
    known = {name: panel.methods[name].beside().series(metric, x) for name in shown}
    overlay = {name: curve for name, curve in known.items() if curve is not None}
    last = 1.05 * max(float(curve.x[-1]) for curve in shown.values())
    left, (low, high) = axes.get_xlim()[0], axes.get_ylim()
    for name, curve in overlay.items():  # it does not widen the range of x, but that of a bound
        axes.plot(curve.x, curve.mean, zorder=3, **look(name) | PUBLISHED)
        visible = curve.mean[curve.x <= last]
        low, high = min([low, *visible]), max([high, *visible])
    if overlay:
        axes.set_xlim(left, last)
        if metric in ("train", "test"):
            axes.set_ylim(low, high)
    return bool(overlay)


def _rounding_floor(values: Iterable[float], is_logarithmic: bool) -> float:
    return ROUNDING * max(values, default=0.0) if is_logarithmic else -math.inf


def _thinned(curve: Series, log_y: bool, log_x: bool) -> Series:
    """Keep the points that a panel can show: positive on logarithmic axes, and not too many."""
    index = np.flatnonzero(((curve.mean > 0) | (not log_y)) & ((curve.x > 0) | (not log_x)))
    if index.size > MOST_POINTS:
        index = index[np.unique(np.linspace(0, index.size - 1, MOST_POINTS).round().astype(int))]
    return Series(curve.x[index], curve.mean[index], curve.error[index])


def _set_scales(axes: Axes, curves: Sequence[Series], panel: Panel, log_x: bool) -> None:
    first = min(float(curve.x[0]) for curve in curves)
    last = max(float(curve.x[-1]) for curve in curves)
    if panel.is_logarithmic:
        axes.set_yscale("log")
        if axes.get_ylim()[1] > 10 * axes.get_ylim()[0]:
            axes.yaxis.set_minor_formatter(NullFormatter())
    if panel.metric == "value":
        axes.ticklabel_format(axis="y", useOffset=False)
    if log_x:
        axes.set_xscale("log")
        marks = (1,) if last > 20 * first else (1, 2, 5)
        ticks = [mark * 10.0**power for power in range(-4, 6) for mark in marks]
        axes.set_xticks([tick for tick in ticks if 0.95 * first <= tick <= 1.05 * last])
        axes.xaxis.set_minor_formatter(NullFormatter())
    unit, suffix = (1000, "K") if last >= 10_000 else (1, "")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / unit:g}{suffix}"))
    if panel.metric == "accuracy":
        axes.set_ylim(0, 1)
    if panel.metric in ("train", "test"):  # without the first tenth, in which they drop from 500
        tenths = [curve.x[0] + 0.1 * (curve.x[-1] - curve.x[0]) for curve in curves]
        low = min(float(curve.mean.min()) for curve in curves)
        starts = [float(np.interp(a, c.x, c.mean)) for a, c in zip(tenths, curves, strict=True)]
        high = max(*starts, low + 1.0)
        axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))


def look(method: str, methods: Iterable[str] = ()) -> dict[str, Any]:
    """Return how a method is drawn among ``methods``.

    An estimator that is not the paper's gets a further colour, by its rank among such estimators. A
    method with changed settings keeps its estimator's colour and gets a broken line.

    >>> look("RLOO-F"), look("RLOO-F samples=20")["linestyle"]
    ({'color': '#8c510a', 'marker': 'P', 'linestyle': '-'}, '-.')
    >>> look("Mine", methods=["IndeCateR", "Mine"])["color"]
    '#117733'
    """
    estimator, names = estimator_of(method), {*methods, method}
    further = sorted({estimator_of(name) for name in names} - set(LOOKS))
    variants = sorted(name for name in names if estimator_of(name) == estimator != name)
    colour, marker = LOOKS.get(estimator) or FURTHER[further.index(estimator) % len(FURTHER)]
    is_variant = method != estimator
    line = BROKEN_LINES[variants.index(method) % len(BROKEN_LINES)] if is_variant else "-"
    return {"color": colour, "marker": marker, "linestyle": line}


def _place_legend(figure: Figure, handles: Sequence[Line2D]) -> None:
    """Draw a legend above all panels, with as many columns as fit.

    A page scales a wide figure down, or scrolls it on a phone. So the legend of a wide figure has
    larger letters and stays within the left part, which the phone shows first.
    """
    width = figure.get_figwidth()
    is_wide = width > WIDE
    letters = max(10.0, width) if is_wide else 10.0  # points
    widest = max(len(str(handle.get_label())) for handle in handles)
    room = PHONE_SHARE * width if is_wide else width
    columns = max(1, min(len(handles), int(room / ((0.55 + 0.075 * widest) * letters / 10))))
    # The panels keep their height. A row takes 1.5 times the height of its letters.
    rows = math.ceil(len(handles) / columns)
    figure.set_figheight(figure.get_figheight() + (rows - 1) * 1.5 * letters / 72)
    place: Any = "outside upper left" if is_wide else "outside upper center"
    figure.legend(handles=handles, loc=place, ncols=columns, fontsize=letters, frameon=False)
