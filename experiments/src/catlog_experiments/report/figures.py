"""The figures of a report. Curves are means over seeds, shaded by the standard error."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd  # type: ignore[import-untyped]
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .. import EXPERIMENTS
from .runs import PAPER, TEXTS, Evidence, Methods, estimator_of, rank, with_published

LOOKS = TEXTS["looks"]
STYLE = Path(__file__).with_name("report.mplstyle")
FURTHER = ("#117733", "#999933", "#661100", "#6699cc", "#aa4499", "#000000", "#ddaa33")
LINES: list[Any] = ["-", "-.", ":", "--", (0, (1, 1)), (0, (6, 2)), (0, (3, 1, 1, 1, 1, 1))]
CROPPED = ("train", "test")  # without the first tenth of the points, where they drop from 500
COLUMNS = 4  # panels in a line
ROUNDING = 1e-10  # a variance below this share of the largest in its panel is zero up to rounding


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

    def draw(self, axes: Axes, order: Sequence[str]) -> None:
        """Draw the methods, each in its look among all methods of the figure."""
        spec, across = TEXTS["metrics"][self.metric], TEXTS["axes"].get(self.x, {"xticks": []})
        is_logarithmic, curves = spec.get("yscale") == "log", dict[str, pd.DataFrame]()
        for name, runs in self.methods.items():
            curve = runs.series(self.metric, self.x or "iteration")
            curves |= {name: curve if self.x else curve[-1:]} if len(curve) else {}
        levels = {name: float(curve["mean"].median()) for name, curve in curves.items()}
        floor = ROUNDING * max(levels.values(), default=0) if is_logarithmic else -math.inf
        shown = {name: curve for name, curve in curves.items() if levels[name] > floor}
        # Published curves do not widen the range of x.
        last = max((c["x"].max() for name, c in shown.items() if PAPER not in name), default=0)
        for name, curve in shown.items():
            visible = (curve["x"] <= last) & ((curve["x"] > 0) | ("xscale" not in across))
            x, mean, error = (curve[visible][key] for key in ("x", "mean", "error"))
            style = {"label": name, **look(name, order)}
            if self.x:
                axes.plot(x, mean, markevery=max(1, len(x) // 7), **style)
                shade = mean - error, mean + error
                axes.fill_between(x, *shade, color=style["color"], alpha=0.2, linewidth=0)
            else:
                axes.errorbar([order.index(name)], mean, error.fillna(0), capsize=3, **style)
        axes.set_title(self.title, loc="left", fontweight="bold")
        if zero := [name for name in curves if name not in shown]:
            text = "\n".join(["0 up to rounding:", *zero])
            axes.text(0.03, 0.03, text, transform=axes.transAxes, fontsize=8)
        elif not shown:
            axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color="0.4")
        axes.set(**spec, **across)
        if self.metric in CROPPED and shown:
            means = [curve["mean"] for curve in shown.values()]
            low, high = min(map(min, means)), max(mean.iloc[len(mean) // 10] for mean in means)
            margin = 0.05 * max(high - low, 1.0)
            axes.set_ylim(low - margin, high + margin)
        run = next(iter(self.methods.values()))[0]
        if run["experiment"] == "addition":  # a reader of single digits with 99 %
            axes.axhline(0.99 ** run["digits"], color="0.55", linestyle="--", linewidth=1.2)


@dataclass(frozen=True)
class Picture:
    """A figure of a report.

    Attributes:
        name: The name of its file.
        caption: What it shows.
        panels: What it is made of.
    """

    name: str
    caption: str
    panels: Sequence[Panel]

    @mpl.rc_context(fname=STYLE)
    def draw(self) -> Figure:
        """Draw the panels, and one legend."""
        columns = min(len(self.panels), COLUMNS)
        lines = math.ceil(len(self.panels) / columns)
        methods = sorted({name for panel in self.panels for name in panel.methods}, key=rank)
        legend = 0.25 * math.ceil(len(methods) / columns)  # inches
        figure = Figure((max(5.0, 3.5 * columns), 2.9 * lines + legend), layout="constrained")
        grid = figure.subplots(lines, columns, squeeze=False)
        for axes in grid.flat[len(self.panels) :]:
            axes.set_visible(False)
        for axes, panel in zip(grid.flat, self.panels, strict=False):
            panel.draw(axes, methods)
        labelled = [axes.get_legend_handles_labels() for axes in grid.flat]
        drawn = {name: artist for pair in labelled for artist, name in zip(*pair, strict=True)}
        handles = [drawn[name] for name in methods if name in drawn]
        figure.legend(handles=handles, loc="outside upper left", ncols=columns, frameon=False)
        return figure


def pictures(evidence: Evidence) -> list[Picture]:
    """Return the figures of all experiments that were run."""
    found = []
    for spec in TEXTS["figures"]:
        experiment = spec["experiment"]
        for split in evidence.sizes(experiment, *spec["split"]):
            panels = []
            for size in evidence.sizes(experiment, *spec["sizes"]):
                methods = with_published(evidence.methods(experiment, **split, **size))
                words = [TEXTS["data"].get(size[key], f"{size[key]} {key}") for key in size]
                title = ", ".join(words).replace(" program", "")
                panels += [
                    Panel(methods, metric, x, title * (i == 0))
                    for i, (metric, x) in enumerate(spec["panels"])
                ]
            cls = EXPERIMENTS[experiment]
            changed = {name: split[name] for name in split if split[name] != getattr(cls, name)}
            name = "-".join([spec["name"], *map(str, changed.values())])
            details = [spec["caption"], *(f"{key}: {value}" for key, value in changed.items())]
            found.append(Picture(name, ", ".join(details) + ".", panels))
    return found


def look(method: str, methods: Iterable[str] = ()) -> dict[str, Any]:
    """Return how a method is drawn among ``methods``.

    An estimator that is not the paper's gets a further colour, by its rank among such estimators. A
    method with changed settings keeps its estimator's colour and gets a broken line.

    >>> look("RLOO-F")["color"], look("RLOO-F samples=20")["linestyle"]
    ('#8c510a', '-.')
    >>> look("Mine", methods=["IndeCateR", "Mine"])["color"]
    '#117733'
    """
    estimator, names = estimator_of(method), sorted({*methods, method})
    further = sorted({estimator_of(name) for name in names} - {*LOOKS})
    colours = LOOKS | {name: (FURTHER[i % len(FURTHER)], "d") for i, name in enumerate(further)}
    colour, marker = colours[estimator]
    variants = [name for name in names if estimator_of(name) == estimator != name]
    line = LINES[[estimator, *variants].index(method) % len(LINES)]
    fill = "none" if PAPER in method else "full"
    return {"color": colour, "marker": marker, "linestyle": line, "fillstyle": fill}
