"""The paper's figures, drawn from runs.

Curves are means over seeds, shaded by the standard error. Each method has one colour.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .. import Programs
from . import published
from .looks import DATA, STYLE
from .panels import draw_curves, draw_dots, draw_legend, place_legend
from .runs import Evidence, Run, by_method, pick, require_runs, section_of, values


@dataclass(frozen=True)
class Picture:
    """A figure of a report.

    Attributes:
        name: The name of its file.
        caption: What it shows.
        figure: The figure.
    """

    name: str
    caption: str
    figure: Figure


@mpl.rc_context(STYLE)
def gradients_figure(evidence: Evidence, function: str = "additive") -> Figure:
    """Draw the synthetic gradients: a column of panels per (D, K).

    The upper row has the paper's metrics, the lower row the true bias and variance. The measured
    bias of an unbiased estimator is not zero because the mean of its estimates is still noisy. A
    tick marks the level of that noise.
    """
    runs = pick(evidence.runs, "gradients", function=function)
    sizes = sorted(values(runs, "variables", "categories"), reverse=True)
    methods = list(by_method(runs))
    size = (max(6.0, 4.2 * len(sizes)), 1.6 + 0.46 * len(methods))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(2, 2 * len(sizes), sharey=True, squeeze=False)
    metrics = (("cosine_distance", "cosine_variance"), ("relative_bias", "relative_variance"))
    overlaid = False
    for j, (d, k) in enumerate(sizes):
        runs_here = by_method(pick(runs, "gradients", variables=d, categories=k))
        bars = published.GRADIENTS.get((d, k), {}) if function == "additive" else {}
        overlaid |= bool(bars)
        for i in range(2):
            for m in range(2):
                draw_dots(grid[i, 2 * j + m], metrics[i][m], runs_here, methods, bars)
        grid[0, 2 * j].set_title(f"D = {d}, K = {k}", loc="left", fontweight="bold")
    for row, name in zip(grid, ("the paper's metrics", "true metrics"), strict=True):
        row[0].set_yticks(range(len(methods)), methods)
        row[0].set_ylabel(name)
    markers: dict[str, dict[str, Any]] = {
        "measured (± standard error over problems)": {"marker": "o"},
        "noise level of the bias": {"marker": "|", "markersize": 11},
        "published": {"marker": "D", "fillstyle": "none"},
    }
    handles = [
        Line2D([], [], color="0.3", linestyle="", label=label, **marker)
        for label, marker in markers.items()
        if label != "published" or overlaid
    ]
    place_legend(figure, handles)
    return figure


@mpl.rc_context(STYLE)
def optimisation_figure(evidence: Evidence, update: str = "own") -> Figure:
    """Draw the synthetic optimisation: the expected value and the gradient's variance.

    There are two variances: the variance over draws, and what the published code calls variance,
    which is mostly the signal.
    """
    runs = pick(evidence.runs, "optimisation", update=update)
    figure = Figure(figsize=(10, 6.2), layout="constrained")
    panels = (
        ("value", "iteration"),
        ("value", "seconds"),
        ("gradient_variance", "iteration"),
        ("gradient_spread", "iteration"),
    )
    for axes, (metric, x) in zip(figure.subplots(2, 2).flat, panels, strict=True):
        # The published curves are known by iteration only.
        overlay = published.OPTIMISATION.get((update, metric), {}) if x == "iteration" else {}
        draw_curves(axes, runs, metric, x, overlay)
        if metric == "value":
            axes.ticklabel_format(axis="y", useOffset=False)
    draw_legend(figure, runs, any(update == key[0] for key in published.OPTIMISATION))
    return figure


@mpl.rc_context(STYLE)
def dvae_figure(evidence: Evidence, x: str = "iteration", section: str = "dvae") -> Figure:
    """Draw the discrete autoencoder: a row per data set, with both bounds and both variances.

    Args:
        evidence: Of any experiments.
        x: ``"iteration"`` or ``"seconds"``.
        section: ``"dvae"`` for bits, ``"categorical"`` for more than two categories.
    """
    runs = [run for run in evidence.runs if section_of(run) == section]
    sizes = sorted(
        values(runs, "data", "variables", "categories"),
        key=lambda size: (list(DATA).index(size[0]), *size[1:]),
    )
    figure = Figure(figsize=(14, 0.6 + 2.9 * len(sizes)), layout="constrained")
    grid = figure.subplots(len(sizes), 4, squeeze=False)
    metrics = ("train", "test", "gradient_variance", "gradient_spread")
    overlaid = False
    for row, (data, d, k) in zip(grid, sizes, strict=True):
        runs_here = pick(runs, "dvae", data=data, variables=d, categories=k)
        has_published = d == 200 and x == "iteration"
        for axes, metric in zip(row, metrics, strict=True):
            overlay = published.DVAE.get((data, k, metric), {}) if has_published else {}
            draw_curves(axes, runs_here, metric, x, overlay)
            overlaid |= bool(overlay)
        title = f"{DATA[data]}: {d} variables, {k} categories"
        row[0].set_title(title, loc="left", fontweight="bold")
    draw_legend(figure, runs, overlaid)
    return figure


def _panels(runs: Sequence[Run], *names: str) -> tuple[Figure, list[tuple[Axes, Any, list[Run]]]]:
    """Return a figure with a panel per combination of these settings, at most four in a line.

    A panel comes with its settings and its runs.
    """
    sizes = values(runs, *names)
    columns = min(len(sizes), 4)
    lines = -(-len(sizes) // columns)
    figure = Figure(figsize=(max(5.0, 3.5 * columns), 0.6 + 2.9 * lines), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False, sharey=True)
    for axes in grid.flat[len(sizes) :]:
        axes.set_visible(False)
    by_size = [
        pick(runs, runs[0].experiment, **dict(zip(names, size, strict=True))) for size in sizes
    ]
    return figure, list(zip(grid.flat, sizes, by_size, strict=False))


def _draw_accuracies(
    axes: Axes, runs: Sequence[Run], title: str, data: str, overlay: Mapping[str, published.Curve]
) -> None:
    draw_curves(axes, runs, "accuracy", "epoch", overlay)
    axes.set_ylim(0, 1)
    name = title if data == "mnist" else f"{title} ({DATA[data]})"
    axes.set_title(name, loc="left", fontweight="bold")
    position = axes.get_subplotspec()
    if position is not None and not position.is_first_col():
        axes.set_ylabel("")


@mpl.rc_context(STYLE)
def addition_figure(evidence: Evidence) -> Figure:
    """Draw MNIST addition: test accuracy against epochs, a panel per number of digits.

    The grey line is the accuracy of a reader of single digits with 99 %.
    """
    runs = pick(evidence.runs, "addition")
    figure, panels = _panels(runs, "data", "digits")
    overlaid = False
    for axes, (data, digits), runs_here in panels:
        overlay = published.ADDITION.get(digits, {}) if data == "mnist" else {}
        overlaid |= bool(overlay)
        axes.axhline(0.99**digits, color="0.55", linestyle="--", linewidth=1.2)
        _draw_accuracies(axes, runs_here, f"{digits} digits", data, overlay)
    reader = Line2D([], [], color="0.55", linestyle="--", label="$0.99^N$")
    draw_legend(figure, runs, overlaid, [reader])
    return figure


@mpl.rc_context(STYLE)
def programs_figure(evidence: Evidence) -> Figure:
    """Draw programs over digits: test accuracy of whole examples, a panel per program and size."""
    runs = pick(evidence.runs, "programs")
    figure, panels = _panels(runs, *Programs.sizes)
    for axes, (program, data, digits, whole, twice), runs_here in panels:
        title = f"{program}, {digits}" if program in ("numbers", "sum") else str(program)
        title += (", whole" if whole else "") + (", softmax twice" if twice else "")
        _draw_accuracies(axes, runs_here, title, data, {})
    draw_legend(figure, runs, overlaid=False)
    return figure


def gradients_pictures(evidence: Evidence) -> list[Picture]:
    """Draw the synthetic gradients, one figure per function."""
    descriptions = {"additive": "the paper's additive f", "pairwise": "f with interactions"}
    return [
        Picture(
            f"gradients-{function}",
            f"Synthetic gradients, {descriptions[function]}: bias and variance of each estimator.",
            gradients_figure(evidence, function),
        )
        for (function,) in values(pick(evidence.runs, "gradients"), "function")
    ]


def optimisation_pictures(evidence: Evidence) -> list[Picture]:
    """Draw the synthetic optimisation, one figure per size and kind of update."""
    descriptions = {"own": "", "published": " with the published code's mistaken update"}
    pictures = []
    for d, update in values(pick(evidence.runs, "optimisation"), "variables", "update"):
        size = "" if d == 200 else f"-{d}"
        runs = pick(evidence.runs, "optimisation", variables=d, update=update)
        figure = optimisation_figure(Evidence(runs, evidence.step_times), update)
        name = f"optimisation{size}" + ("" if update == "own" else f"-{update}")
        caption = (
            f"Synthetic optimisation of {d} bits{descriptions[update]}: "
            "value by iterations and by time, and two kinds of variance."
        )
        pictures.append(Picture(name, caption, figure))
    return pictures


def dvae_pictures(evidence: Evidence) -> list[Picture]:
    """Draw the discrete autoencoder, by iterations and by time, with bits and with categories."""
    pictures = []
    for section, name, title in (
        ("dvae", "dvae", "Discrete autoencoder"),
        ("categorical", "dvae-categorical", "Autoencoder with categorical variables"),
    ):
        if any(section_of(run) == section for run in evidence.runs):
            by_iteration = dvae_figure(evidence, "iteration", section)
            caption = f"{title}: negated train and test ELBO and variance by iterations."
            pictures.append(Picture(f"{name}-iterations", caption, by_iteration))
            by_time = dvae_figure(evidence, "seconds", section)
            pictures.append(Picture(f"{name}-time", f"{title}: the same by time.", by_time))
    return pictures


def programs_pictures(evidence: Evidence) -> list[Picture]:
    """Draw programs over digits."""
    if not pick(evidence.runs, "programs"):
        return []
    caption = "Programs over digits: test accuracy of whole examples by epochs."
    return [Picture("programs", caption, programs_figure(evidence))]


def addition_pictures(evidence: Evidence) -> list[Picture]:
    """Draw MNIST addition."""
    if not pick(evidence.runs, "addition"):
        return []
    caption = "MNIST addition: test accuracy of the sum by epochs, one panel per number of digits."
    return [Picture("addition", caption, addition_figure(evidence))]


def pictures(evidence: Evidence) -> list[Picture]:
    """Draw all figures that the runs allow."""
    synthetic = [*gradients_pictures(evidence), *optimisation_pictures(evidence)]
    digits = [*addition_pictures(evidence), *programs_pictures(evidence)]
    return [*synthetic, *dvae_pictures(evidence), *digits]


def save_all(evidence: Evidence, folder: Path | str) -> list[Path]:
    """Write all figures as PNG files and return their paths."""
    folder = Path(folder)
    require_runs(evidence, folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for picture in pictures(evidence):
        paths.append(folder / f"{picture.name}.png")
        picture.figure.savefig(paths[-1], dpi=150)
    return paths
