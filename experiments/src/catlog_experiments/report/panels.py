"""Single panels of the figures: curves or dots of several methods, and the legend."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from .looks import AXES, METRICS, PUBLISHED, look
from .published import Bar, Curve
from .runs import Run, by_method
from .statistics import Series, Stat, final, series, statistic

# A variance below this share of the largest in its panel is zero up to rounding.
ROUNDING = 1e-10
# Figures of more inches are shown 56rem wide on a phone, which shows 390 of these 896 pixels.
WIDE = 9.0
PHONE_SHARE = 0.4


def draw_dots(
    axes: Axes,
    metric: str,
    runs: Mapping[str, list[Run]],
    methods: Sequence[str],
    bars: Mapping[str, Bar],
) -> None:
    """Draw one metric of every method as dots, with the published ones as diamonds."""
    logarithmic = metric.endswith("variance")
    stats = {method: final(runs[method], metric) for method in runs}
    floor = _rounding_floor((stat.mean for stat in stats.values()), logarithmic)
    for method, stat in stats.items():
        y = methods.index(method)
        shape = look(method, methods)
        colour = shape["color"]
        if not stat.seeds:
            continue
        if stat.mean <= floor:
            beside_axis = axes.get_yaxis_transform()
            axes.text(0.03, y, "0 (rounding)", color=colour, transform=beside_axis, va="center")
            continue
        error = 0.0 if math.isnan(stat.error) else stat.error
        below = min(error, 0.9 * stat.mean) if logarithmic else error
        style = {"fmt": shape["marker"], "color": colour, "capsize": 2.5, "markersize": 7}
        axes.errorbar(stat.mean, y, xerr=[[below], [error]], **style)
        if metric == "relative_bias":
            axes.plot(_noise(runs[method]).mean, y, "|", color=colour, markersize=14)
        if method in bars and hasattr(bars[method], metric):
            x = getattr(bars[method], metric)
            axes.plot(x, y, "D", fillstyle="none", color=colour, markersize=9)
    positive = [stat.mean for stat in stats.values() if stat.mean > floor]
    if logarithmic and positive:
        axes.set_xscale("log")
        _set_few_ticks(axes, positive)
    elif not logarithmic:
        axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
        axes.locator_params(axis="x", nbins=4)
    axes.set_xlabel(METRICS[metric])
    axes.set_ylim(len(methods) - 0.5, -0.5)


def _rounding_floor(values: Iterable[float], logarithmic: bool) -> float:
    return ROUNDING * max(values, default=0.0) if logarithmic else -math.inf


def _noise(runs: Sequence[Run]) -> Stat:
    """Return the relative bias that noise alone gives."""
    return statistic(
        math.sqrt(max(0.0, run.last("relative_variance")) / run.last("estimates")) for run in runs
    )


def _set_few_ticks(axes: Axes, values: Sequence[float]) -> None:
    """Set at most four powers of ten as ticks, however wide the range."""
    low = math.floor(math.log10(min(values)))
    high = math.ceil(math.log10(max(values)))
    step = max(1, math.ceil((high - low) / 3))
    axes.set_xlim(10.0 ** (low - 0.3), 10.0 ** (high + 0.3))
    axes.set_xticks([10.0**power for power in range(low, high + 1, step)])
    axes.xaxis.set_minor_formatter(NullFormatter())


def draw_curves(
    axes: Axes, runs: Sequence[Run], metric: str, x: str, overlay: Mapping[str, Curve] | None = None
) -> None:
    """Draw all methods against x, with the published curves as far as the panel reaches."""
    logarithmic = metric.startswith("gradient")
    methods = by_method(runs)
    measured = [
        curve for method in methods if (curve := series(methods[method], metric, x)) is not None
    ]
    floor = _rounding_floor((float(np.median(curve.mean)) for curve in measured), logarithmic)
    zero = [curve.method for curve in measured if np.median(curve.mean) <= floor]
    ends = [float(curve.x[-1]) for curve in measured if curve.x[-1] > 0]
    log_x = x == "epoch" or (bool(ends) and max(ends) > 8 * min(ends))
    curves = [_thinned(curve, logarithmic, log_x) for curve in measured if curve.method not in zero]
    curves = [curve for curve in curves if curve.x.size]
    for curve in curves:
        _draw_line(axes, curve, look(curve.method, methods), logarithmic)
    if zero:
        axes.set_title(f"0 up to rounding: {', '.join(zero)}", loc="right", fontsize=9)
    elif not curves:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color="0.4")
    _set_scales(axes, curves, metric, log_x)
    _draw_published(axes, overlay or {}, curves, metric)
    axes.set_xlabel(AXES[x])
    axes.set_ylabel(METRICS[metric])


def _thinned(curve: Series, log_y: bool, log_x: bool, most: int = 400) -> Series:
    """Keep the points that a panel can show: positive on logarithmic axes, and at most 400."""
    index = np.flatnonzero(((curve.mean > 0) | (not log_y)) & ((curve.x > 0) | (not log_x)))
    if index.size > most:
        index = index[np.unique(np.linspace(0, index.size - 1, most).round().astype(int))]
    return Series(curve.method, curve.x[index], curve.mean[index], curve.error[index], curve.seeds)


def _draw_line(axes: Axes, curve: Series, shape: Mapping[str, Any], logarithmic: bool) -> None:
    axes.plot(curve.x, curve.mean, markevery=max(1, curve.x.size // 7), **shape)
    if curve.seeds > 1:
        low = curve.mean - curve.error
        if logarithmic:
            low = np.maximum(low, 0.1 * curve.mean)
        high = curve.mean + curve.error
        axes.fill_between(curve.x, low, high, color=shape["color"], alpha=0.2, linewidth=0)


def _set_scales(axes: Axes, curves: Sequence[Series], metric: str, log_x: bool) -> None:
    if not curves:
        return
    first = min(float(curve.x[0]) for curve in curves)
    last = max(float(curve.x[-1]) for curve in curves)
    if metric.startswith("gradient"):
        axes.set_yscale("log")
        if axes.get_ylim()[1] > 10 * axes.get_ylim()[0]:
            axes.yaxis.set_minor_formatter(NullFormatter())
    if log_x:
        axes.set_xscale("log")
        marks = (1,) if last > 20 * first else (1, 2, 5)
        ticks = [mark * 10.0**power for power in range(-4, 6) for mark in marks]
        axes.set_xticks([tick for tick in ticks if 0.95 * first <= tick <= 1.05 * last])
        axes.xaxis.set_minor_formatter(NullFormatter())
    if last >= 10_000:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1000:g}K"))
    elif log_x:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if metric in ("train", "test"):
        low, high = _range_without_descent(curves)
        axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))


def _range_without_descent(curves: Sequence[Series]) -> tuple[float, float]:
    """Return the range of falling curves after the first tenth, in which they drop from 500."""
    starts = [
        float(np.interp(curve.x[0] + 0.1 * (curve.x[-1] - curve.x[0]), curve.x, curve.mean))
        for curve in curves
    ]
    low = min(float(curve.mean.min()) for curve in curves)
    return low, max(*starts, low + 1.0)


def _draw_published(
    axes: Axes, overlay: Mapping[str, Curve], curves: Sequence[Series], metric: str
) -> None:
    """Draw published curves thin and dashed, with hollow markers.

    They do not widen the range of x, but the range of y of a bound.
    """
    reach = 1.05 * max((float(curve.x[-1]) for curve in curves), default=0.0)
    x_low = axes.get_xlim()[0]
    low, high = axes.get_ylim()
    methods = {curve.method for curve in curves}
    for method, published in overlay.items():
        if method not in methods:
            continue
        x = np.array(published.x)
        y = np.array(published.y)
        axes.plot(x, y, zorder=3, **look(method) | PUBLISHED)
        visible = y[x <= reach]
        if visible.size:
            low = min(low, float(visible.min()))
            high = max(high, float(visible.max()))
    if overlay and curves:
        axes.set_xlim(x_low, reach)
        if metric in ("train", "test"):
            axes.set_ylim(low, high)


def draw_legend(
    figure: Figure, runs: Sequence[Run], overlaid: bool, further: Sequence[Line2D] = ()
) -> None:
    """Draw one legend of the methods for all panels."""
    methods = list(by_method(runs))
    handles = [Line2D([], [], label=method, **look(method, methods)) for method in methods]
    if overlaid:
        handles.append(Line2D([], [], color="0.3", marker="o", label="published", **PUBLISHED))
    place_legend(figure, [*handles, *further])


def place_legend(figure: Figure, handles: Sequence[Line2D]) -> None:
    """Draw a legend above all panels, with as many columns as fit.

    A page scales a wide figure down, or scrolls it on a phone. So the legend of a wide figure has
    larger letters and stays within the left part, which the phone shows first.
    """
    width = figure.get_figwidth()
    is_wide = width > WIDE
    letters = max(10.0, width) if is_wide else 10.0  # points
    widest = max(len(str(handle.get_label())) for handle in handles)
    room = PHONE_SHARE * width if is_wide else width
    fitting = int(room / ((0.55 + 0.075 * widest) * letters / 10))
    columns = max(1, min(len(handles), fitting))
    further_rows = math.ceil(len(handles) / columns) - 1
    # The panels keep their height. A row takes 1.5 times the height of its letters.
    figure.set_figheight(figure.get_figheight() + further_rows * 1.5 * letters / 72)
    figure.legend(
        handles=handles,
        loc="outside upper left" if is_wide else "outside upper center",
        ncols=columns,
        fontsize=letters,
        frameon=False,
    )
