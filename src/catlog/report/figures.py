"""The paper's figures, drawn from logged rows: mean over seeds, shaded by the standard error, one colour per method."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from ..experiments.records import Row
from . import published
from .runs import (
    Array,
    Run,
    Series,
    Stat,
    by_method,
    collect,
    estimator,
    final,
    pick,
    series,
    setting,
    statistic,
    values,
)

P = ParamSpec("P")

# Colour and marker of each method; the hues are the paper's where it uses them, all apart for colour-blind readers.
LOOKS: dict[str, tuple[str, str]] = {
    "IndeCateR": ("#0173b2", "o"),
    "IndeCateR-D": ("#029e73", "s"),
    "IndeCateR-Latin": ("#56b4e9", "^"),
    "IndeCateR-D-Latin": ("#44aa99", "v"),
    "IndeCateR-Taylor": ("#332288", "D"),
    "REINFORCE": ("#7f7f7f", "X"),
    "RLOO": ("#8c510a", "P"),
    "RLOO-F": ("#8c510a", "P"),
    "RLOO-S": ("#e69f00", "h"),
    "GS": ("#cc78bc", "*"),
    "GS-F": ("#cc78bc", "*"),
    "GS-S": ("#d55e00", "p"),
}
FURTHER = ("#117733", "#999933", "#661100", "#6699cc", "#aa4499", "#000000", "#ddaa33")

DATA = {
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "omniglot": "Omniglot",
    "mnist-5000": "MNIST, 5,000 images",
}
METRICS = {
    "value": "expected value",
    "train": "negated train ELBO",
    "test": "negated test ELBO",
    "gradient_variance": "gradient variance over draws",
    "gradient_spread": "the paper's “variance”",
    "accuracy": "test accuracy",
    "cosine_distance": "mean (1 - cosine)",
    "cosine_variance": "variance of the cosine",
    "relative_bias": "relative bias",
    "relative_variance": "relative variance",
}
AXES = {"iteration": "iterations", "seconds": "seconds", "epoch": "epochs"}
STYLE: dict[str, Any] = {
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.labelsize": 10,
    "legend.fontsize": 10,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
}
BROKEN = ["-.", ":", (0, (1, 1)), (0, (6, 2)), (0, (3, 1, 1, 1, 1, 1))]
ROUNDING = (
    1e-10  # a variance below this share of the panel's largest is what rounding leaves of zero
)


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw with :data:`STYLE`, and leave matplotlib's settings as they were."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with mpl.rc_context(STYLE):  # type: ignore[arg-type]
            return draw(*args, **kwargs)

    return drawn


def look(method: str, among: Iterable[str] = ()) -> dict[str, Any]:
    """How a method is drawn.

    An estimator that is not the paper's gets a further colour by its place ``among`` such ones; one with changed settings keeps
    its colour and gets a broken line, by its place among those.

    >>> look("RLOO-F"), look("RLOO-F samples=20")["linestyle"], look("Mine", among=["IndeCateR", "Mine"])["color"]
    ({'color': '#8c510a', 'marker': 'P', 'linestyle': '-'}, '-.', '#117733')
    """
    base = estimator(method)
    others = sorted({estimator(each) for each in among} - set(LOOKS))
    i = others.index(base) if base in others else 0
    colour, marker = LOOKS.get(base, (FURTHER[i % len(FURTHER)], "<>d8H12"[i % 7]))
    changed = sorted(each for each in {*among, method} if estimator(each) == base and each != base)
    line = "-" if base == method else BROKEN[changed.index(method) % len(BROKEN)]
    return {"color": colour, "marker": marker, "linestyle": line}


@styled
def gradients_figure(rows: Iterable[Row], function: str = "additive") -> Figure:
    """Synthetic gradients: a column of panels per (D, K). Above, the paper's metrics; below, the true bias and variance.

    The bias of an unbiased estimator is not zero but what is left of its noise after so many estimates: a tick marks that level.
    """
    runs = pick(collect(rows), "gradients", function=function)
    sizes = sorted(values(runs, "variables", "categories"), reverse=True)
    if not sizes:
        return nothing("gradients")
    methods = by_method(runs)
    figure = Figure(
        figsize=(max(6.0, 4.2 * len(sizes)), 1.6 + 0.46 * len(methods)), layout="constrained"
    )
    grid = figure.subplots(2, 2 * len(sizes), sharey=True, squeeze=False)
    pairs = (("cosine_distance", "cosine_variance"), ("relative_bias", "relative_variance"))
    for j, (d, k) in enumerate(sizes):
        here = by_method(pick(runs, "gradients", function=function, variables=d, categories=k))
        bars = published.GRADIENTS.get((d, k), {}) if function == "additive" else {}
        for axes, metric in (
            (grid[i, 2 * j + m], pair[m]) for i, pair in enumerate(pairs) for m in range(2)
        ):
            _dots(axes, metric, here, list(methods), bars)
        grid[0, 2 * j].set_title(f"D = {d}, K = {k}", loc="left", fontweight="bold")
    for i in range(2):
        grid[i, 0].set_yticks(range(len(methods)), list(methods))
        grid[i, 0].set_ylabel(("the paper's metrics", "true metrics")[i])
    handles = [
        Line2D(
            [],
            [],
            color="0.3",
            marker="o",
            linestyle="",
            label="measured (± standard error over problems)",
        )
    ]
    handles.append(
        Line2D(
            [],
            [],
            color="0.3",
            marker="|",
            markersize=11,
            linestyle="",
            label="noise level of the bias",
        )
    )
    if any(size in published.GRADIENTS for size in sizes) and function == "additive":
        handles.append(
            Line2D(
                [], [], color="0.3", marker="D", fillstyle="none", linestyle="", label="published"
            )
        )
    figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False)
    return figure


def _dots(
    axes: Axes,
    metric: str,
    here: Mapping[str, list[Run]],
    methods: list[str],
    bars: Mapping[str, published.Bar],
) -> None:
    """One metric of every method as dots."""
    logarithmic = metric.endswith("variance")
    drawn = [final(runs, metric) for runs in here.values()]
    floor = ROUNDING * max((stat.mean for stat in drawn), default=0.0) if logarithmic else -math.inf
    for method, stat in zip(here, drawn, strict=True):
        y, shape = methods.index(method), look(method, methods)
        if not stat.seeds:
            continue
        if stat.mean <= floor:
            axes.text(
                0.03,
                y,
                "0 (rounding)",
                color=shape["color"],
                transform=axes.get_yaxis_transform(),
                va="center",
            )
            continue
        error = 0.0 if math.isnan(stat.error) else stat.error
        left = min(error, 0.9 * stat.mean) if logarithmic else error
        axes.errorbar(
            stat.mean,
            y,
            xerr=[[left], [error]],
            fmt=shape["marker"],
            color=shape["color"],
            capsize=2.5,
            markersize=7,
        )
        if metric == "relative_bias":
            axes.plot(_noise(here[method]).mean, y, "|", color=shape["color"], markersize=14)
        if method in bars and hasattr(bars[method], metric):
            axes.plot(
                getattr(bars[method], metric),
                y,
                "D",
                fillstyle="none",
                color=shape["color"],
                markersize=9,
            )
    if logarithmic and any(stat.mean > floor for stat in drawn):
        axes.set_xscale("log")
        _few_ticks(axes, [stat.mean for stat in drawn if stat.mean > floor])
    elif not logarithmic:
        axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
        axes.locator_params(axis="x", nbins=4)
    axes.set_xlabel(METRICS[metric])
    axes.set_ylim(len(methods) - 0.5, -0.5)


def _noise(runs: Sequence[Run]) -> Stat:
    """The relative bias that noise alone gives."""
    return statistic(
        math.sqrt(
            max(0.0, run.points[-1].get("relative_variance", math.nan))
            / run.points[-1].get("estimates", math.nan)
        )
        for run in runs
    )


def _few_ticks(axes: Axes, drawn: list[float]) -> None:
    """At most four powers of ten, however wide the range."""
    low, high = math.floor(math.log10(min(drawn))), math.ceil(math.log10(max(drawn)))
    step = max(1, math.ceil((high - low) / 3))
    axes.set_xlim(10.0 ** (low - 0.3), 10.0 ** (high + 0.3))
    axes.set_xticks([10.0**power for power in range(low, high + 1, step)])
    axes.xaxis.set_minor_formatter(NullFormatter())


@styled
def optimisation_figure(
    rows: Iterable[Row], step_times: Mapping[str, float] | None = None, update: str = "own"
) -> Figure:
    """Synthetic optimisation: the expected value against iterations and time, the gradient's variance against iterations.

    Both the variance over draws and what the published code calls variance (mostly the signal) are shown.
    """
    runs = pick(collect(rows), "optimisation", update=update)
    if not runs:
        return nothing("optimisation")
    figure = Figure(figsize=(10, 6.2), layout="constrained")
    panels = (
        ("value", "iteration"),
        ("value", "seconds"),
        ("gradient_variance", "iteration"),
        ("gradient_spread", "iteration"),
    )
    for axes, (metric, x) in zip(figure.subplots(2, 2).flat, panels, strict=True):
        theirs = published.OPTIMISATION.get((update, metric), {}) if x == "iteration" else {}
        _curves(axes, runs, metric, x, step_times, theirs)
        axes.ticklabel_format(axis="y", useOffset=False) if metric == "value" else None
    _legend(figure, runs, any(update == key[0] for key in published.OPTIMISATION))
    return figure


@styled
def dvae_figure(
    rows: Iterable[Row],
    x: str = "iteration",
    step_times: Mapping[str, float] | None = None,
    categories: int | None = 2,
) -> Figure:
    """Discrete autoencoder: a row per data set; negated train and test bound, and both variances, against ``x``.

    Args:
        rows: of any experiments.
        x: ``"iteration"`` or ``"seconds"``.
        step_times: milliseconds per step of each method; methods that have none are then left out where x is seconds.
        categories: of the latent variables; None: all runs with more than two.
    """
    runs = [
        run
        for run in pick(collect(rows), "dvae")
        if _wanted(setting(run.config, "categories"), categories)
    ]
    sizes = sorted(
        values(runs, "data", "variables", "categories"),
        key=lambda size: (list(DATA).index(size[0]), *size[1:]),
    )
    if not sizes:
        return nothing("dvae")
    figure = Figure(figsize=(14, 0.6 + 2.9 * len(sizes)), layout="constrained")
    overlaid = False
    for row, (data, d, k) in zip(figure.subplots(len(sizes), 4, squeeze=False), sizes, strict=True):
        here = pick(runs, "dvae", data=data, variables=d, categories=k)
        for axes, metric in zip(
            row, ("train", "test", "gradient_variance", "gradient_spread"), strict=True
        ):
            overlay = published.DVAE.get((data, k, metric), {}) if d == 200 else {}
            _curves(axes, here, metric, x, step_times, overlay if x == "iteration" else {})
            overlaid |= bool(overlay) and x == "iteration"
        row[0].set_title(
            f"{DATA[data]}: {d} variables, {k} categories", loc="left", fontweight="bold"
        )
    _legend(figure, runs, overlaid)
    return figure


def _wanted(categories: int, asked: int | None) -> bool:
    return categories > 2 if asked is None else categories == asked


@styled
def addition_figure(rows: Iterable[Row]) -> Figure:
    """MNIST addition: a panel per number of digits, test accuracy against epochs; grey, what digits read to 99 % would give."""
    runs = pick(collect(rows), "addition")
    sizes = values(runs, "data", "digits")
    if not sizes:
        return nothing("addition")
    columns = min(len(sizes), 4)
    lines = -(-len(sizes) // columns)
    figure = Figure(figsize=(max(5.0, 3.5 * columns), 0.6 + 2.9 * lines), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False, sharey=True)
    overlaid = False
    for axes, (data, digits) in zip(grid.flat, sizes, strict=False):
        overlay = published.ADDITION.get(digits, {}) if data == "mnist" else {}
        overlaid |= bool(overlay)
        axes.axhline(0.99**digits, color="0.55", linestyle="--", linewidth=1.2)
        _curves(
            axes,
            pick(runs, "addition", data=data, digits=digits),
            "accuracy",
            "epoch",
            None,
            overlay,
        )
        axes.set_ylim(0, 1)
        axes.set_title(
            f"{digits} digits" + ("" if data == "mnist" else f" ({DATA[data]})"),
            loc="left",
            fontweight="bold",
        )
        axes.set_ylabel(METRICS["accuracy"] if axes in grid[:, 0] else "")
    for axes in grid.flat[len(sizes) :]:
        axes.set_visible(False)
    _legend(
        figure, runs, overlaid, [Line2D([], [], color="0.55", linestyle="--", label="$0.99^N$")]
    )
    return figure


def _curves(
    axes: Axes,
    runs: list[Run],
    metric: str,
    x: str,
    step_times: Mapping[str, float] | None,
    overlay: Mapping[str, published.Curve],
) -> None:
    """All methods of one panel, with the published curves as far as the panel reaches."""
    logarithmic = metric.startswith("gradient")
    methods = by_method(runs)
    found = [
        each for its in methods.values() if (each := series(its, metric, x, step_times)) is not None
    ]
    floor = (
        ROUNDING * max((float(np.median(each.mean)) for each in found), default=0.0)
        if logarithmic
        else -math.inf
    )
    zero = [each.method for each in found if np.median(each.mean) <= floor]
    ends = [float(each.x[-1]) for each in found if each.x[-1] > 0]
    log_x = x == "epoch" or (x == "seconds" and bool(ends) and max(ends) > 8 * min(ends))
    drawn = [_shown(each, logarithmic, log_x) for each in found if each.method not in zero]
    drawn = [each for each in drawn if each.x.size]
    for curve in drawn:
        _line(axes, curve, look(curve.method, methods), logarithmic)
    if zero:
        axes.set_title(f"0 up to rounding: {', '.join(zero)}", loc="right", fontsize=9)
    elif not drawn:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color="0.4")
    _scales(axes, drawn, metric, log_x)
    _overlay(axes, overlay, drawn, metric)
    axes.set_xlabel(AXES[x])
    axes.set_ylabel(METRICS[metric])


def _shown(curve: Series, log_y: bool, log_x: bool, most: int = 400) -> Series:
    """The points that a panel can show: above zero on logarithmic axes, and not more than the eye can tell apart."""
    index = np.flatnonzero(((curve.mean > 0) | (not log_y)) & ((curve.x > 0) | (not log_x)))
    if index.size > most:
        index = index[np.unique(np.linspace(0, index.size - 1, most).round().astype(int))]
    return Series(curve.method, curve.x[index], curve.mean[index], curve.error[index], curve.seeds)


def _line(axes: Axes, curve: Series, shape: Mapping[str, Any], logarithmic: bool) -> None:
    every = max(1, curve.x.size // 7)
    axes.plot(curve.x, curve.mean, markevery=every, **shape)
    if curve.seeds > 1:
        low = curve.mean - curve.error
        if logarithmic:
            low = np.maximum(low, 0.1 * curve.mean)
        axes.fill_between(
            curve.x, low, curve.mean + curve.error, color=shape["color"], alpha=0.2, linewidth=0
        )


def _scales(axes: Axes, drawn: list[Series], metric: str, log_x: bool) -> None:
    if not drawn:
        return
    first, last = (
        min(float(curve.x[0]) for curve in drawn),
        max(float(curve.x[-1]) for curve in drawn),
    )
    if metric.startswith("gradient"):
        axes.set_yscale("log")
        if axes.get_ylim()[1] > 10 * axes.get_ylim()[0]:
            axes.yaxis.set_minor_formatter(NullFormatter())
    if log_x:
        axes.set_xscale("log")
        marks = (1,) if last > 20 * first else (1, 2, 5)
        ticks = [mark * 10.0**power for power in range(-4, 6) for mark in marks]
        axes.set_xticks([tick for tick in ticks if 0.95 * first <= tick <= 1.05 * last])
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    elif last >= 10_000:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1000:g}K"))
    if metric in ("train", "test"):
        low, high = _range(drawn)
        axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))


def _range(drawn: list[Series]) -> tuple[float, float]:
    """Of a falling curve what is worth seeing: not the first tenth of the iterations, in which it drops from 500."""
    starts = [
        float(np.interp(curve.x[0] + 0.1 * (curve.x[-1] - curve.x[0]), curve.x, curve.mean))
        for curve in drawn
    ]
    low = min(float(curve.mean.min()) for curve in drawn)
    return low, max(*starts, low + 1.0)


def _overlay(
    axes: Axes, overlay: Mapping[str, published.Curve], drawn: list[Series], metric: str
) -> None:
    """Published curves: thin, dashed, hollow marks; within the range of x and grown into that of y."""
    methods = {curve.method for curve in drawn}
    reach = max((float(curve.x[-1]) for curve in drawn), default=0.0)
    (left, _), (low, high) = axes.get_xlim(), axes.get_ylim()
    for method, curve in overlay.items():
        if method not in methods:
            continue
        x, y = np.array(curve.x), np.array(curve.y)
        shape = look(method)
        axes.plot(
            x,
            y,
            linestyle=(0, (4, 2)),
            linewidth=1,
            color=shape["color"],
            marker=shape["marker"],
            fillstyle="none",
            zorder=3,
        )
        seen: Array = y[x <= reach * 1.05]
        if seen.size and metric in ("train", "test"):
            low, high = min(low, float(seen.min())), max(high, float(seen.max()))
    if overlay and drawn:
        axes.set_xlim(left, reach * 1.05)
        if metric in ("train", "test"):
            axes.set_ylim(low, high)


def _legend(
    figure: Figure, runs: list[Run], overlaid: bool, further: Sequence[Line2D] = ()
) -> None:
    """One legend for all panels."""
    methods = list(by_method(runs))
    handles = [Line2D([], [], label=method, **look(method, methods)) for method in methods]
    if overlaid:
        shape: dict[str, Any] = {
            "linestyle": (0, (4, 2)),
            "linewidth": 1,
            "marker": "o",
            "fillstyle": "none",
        }
        handles.append(Line2D([], [], color="0.3", label="published", **shape))
    handles += further
    widest = max(len(str(handle.get_label())) for handle in handles)
    fitting = int(figure.get_figwidth() / (0.55 + 0.075 * widest))
    figure.legend(
        handles=handles,
        loc="outside upper center",
        ncols=max(1, min(len(handles), fitting)),
        frameon=False,
    )


def nothing(what: str) -> Figure:
    """An empty figure that says so."""
    figure = Figure(figsize=(5, 1))
    figure.text(0.5, 0.5, f"No run of {what} in these rows.", ha="center", va="center")
    return figure


def figures(
    rows: Iterable[Row], step_times: Mapping[str, float] | None = None
) -> dict[str, Figure]:
    """All figures that the rows allow, by the name of their file."""
    rows = list(rows)
    runs = collect(rows)
    found: dict[str, Figure] = {}
    for (function,) in values(pick(runs, "gradients"), "function"):
        found[f"gradients-{function}"] = gradients_figure(rows, function)
    for (update,) in values(pick(runs, "optimisation"), "update"):
        found["optimisation" + ("" if update == "own" else f"-{update}")] = optimisation_figure(
            rows, step_times, update
        )
    kinds = {(setting(run.config, "categories") > 2) for run in pick(runs, "dvae")}
    for name, categories in (("dvae", 2), ("dvae-categorical", None)):
        if (categories is None) in kinds:
            found[f"{name}-iterations"] = dvae_figure(rows, "iteration", None, categories)
            found[f"{name}-time"] = dvae_figure(rows, "seconds", step_times, categories)
    if pick(runs, "addition"):
        found["addition"] = addition_figure(rows)
    return found


def save_all(
    rows: Iterable[Row], folder: Path | str, step_times: Mapping[str, float] | None = None
) -> list[Path]:
    """Write all figures as PNG files and return where they are."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in figures(rows, step_times).items():
        paths.append(folder / f"{name}.png")
        figure.savefig(paths[-1], dpi=150)
    return paths
