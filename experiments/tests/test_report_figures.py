"""The report's figures, from made-up rows."""

from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from catlog_experiments.report.figures import LOOKS, WIDE, pictures
from catlog_experiments.report.runs import Evidence
from made_up_rows import (
    PAPER,
    Row,
    addition_rows,
    dvae_rows,
    gradients_rows,
    optimisation_rows,
    run_rows,
)


@pytest.fixture(scope="module")
def drawn() -> dict[str, Figure]:
    """All figures, one of each kind by time or iterations."""
    names = ("gradients-additive", "optimisation", "dvae-categorical-time", "addition")
    found = {picture.name: picture for picture in pictures(Evidence.from_rows(PAPER))}
    assert list(found) == [
        "gradients-additive",
        "gradients-pairwise",
        "optimisation",
        "dvae-iterations",
        "dvae-time",
        "dvae-categorical-iterations",
        "dvae-categorical-time",
        "addition",
    ]
    return {name: found[name].draw() for name in names}


def figure(rows: list[Row], name: str, step_times: list[Row] | None = None) -> Figure:
    found = pictures(Evidence.from_rows(rows, step_times or []))
    return next(picture for picture in found if picture.name == name).draw()


def test_every_figure_has_its_panels_and_one_legend(drawn: dict[str, Figure]) -> None:
    assert {name: sum(axes.get_visible() for axes in fig.axes) for name, fig in drawn.items()} == {
        "gradients-additive": 12,
        "optimisation": 4,
        "dvae-categorical-time": 4,
        "addition": 6,
    }
    assert all(len(fig.legends) == 1 for fig in drawn.values())


def test_a_phone_shows_the_legend_of_a_wide_figure(drawn: dict[str, Figure]) -> None:
    """It shows the left 390 of 896 pixels, in which the letters must have about 11 pixels."""
    for fig in drawn.values():
        (legend,), inches = fig.legends, fig.get_figwidth()
        fig.draw_without_rendering()
        assert inches > WIDE
        assert legend.get_window_extent().x1 / fig.dpi < 390 / 896 * inches
        assert legend.get_texts()[0].get_fontsize() / 72 * 896 / inches > 11


def test_runs_of_different_sizes_are_not_drawn_as_one() -> None:
    rows = optimisation_rows("IndeCateR", 0.02, 0.0)
    rows += [{**row, "variables": 5} for row in rows]
    names = [picture.name for picture in pictures(Evidence.from_rows(rows))]
    assert names == ["optimisation-5", "optimisation"]
    point = {"iteration": 0, "epoch": 1, "accuracy": 0.5}
    programs = [
        row
        for data in ("mnist", "mnist-5000")
        for row in run_rows("programs", "RLOO", 0, [point], program="equal", data=data, digits=2)
    ]
    titles = [axes.get_title(loc="left") for axes in figure(programs, "programs").axes]
    assert titles == ["equal, MNIST, 2 digits", "equal, MNIST, 5,000 images, 2 digits"]


def test_a_method_looks_the_same_in_every_panel_and_in_the_legend() -> None:
    """Those of the paper have their colours, others further ones; settings have broken lines."""
    rows = [*addition_rows(4, "Mine", 0.9), *addition_rows(8, "Yours", 0.8)]
    for digits, samples in ((4, 50), (4, 100), (8, 100)):
        changed = addition_rows(digits, "IndeCateR-D", 0.9)
        rows += [{**row, "samples": samples} for row in changed]
    fig = figure([*rows, *addition_rows(4, "IndeCateR-D", 0.9)], "addition")
    lines = {line.get_label(): line for line in fig.legends[0].get_lines()}
    assert lines["IndeCateR-D"].get_color() == LOOKS["IndeCateR-D"][0]
    known = {colour for colour, _ in LOOKS.values()}
    assert len({lines[name].get_color() for name in ("Mine", "Yours")} - known) == 2
    changed, yours, _ = fig.axes[1].lines  # and the grey line
    for drawn_line, name in ((changed, "IndeCateR-D samples=100"), (yours, "Yours")):
        for look in ("color", "linestyle", "marker"):
            assert getattr(drawn_line, f"get_{look}")() == getattr(lines[name], f"get_{look}")()


def test_time_axes_follow_the_step_times() -> None:
    rows = dvae_rows("mnist", "IndeCateR", 95.0, ms=7.0)
    axes = figure(rows, "dvae-time").axes[0]
    assert np.max(axes.lines[0].get_xdata()) == pytest.approx(60_000 * 0.007)
    axes = figure(rows, "dvae-time", [{"method": "IndeCateR", "ms": 2.0}]).axes[0]
    assert np.max(axes.lines[0].get_xdata()) == pytest.approx(60_000 * 0.002)
    axes = figure(rows, "dvae-time", [{"method": "RLOO-F", "ms": 2.0}]).axes[0]
    assert axes.texts[0].get_text() == "not measured"


def test_zero_variances_and_published_curves_are_drawn() -> None:
    """The published curves are known by iteration only."""
    config: dict[str, Any] = {"update": "published", "gradient_spread": 1e-12}
    rows = optimisation_rows("IndeCateR", 0.02, 0.0) + optimisation_rows("RLOO-F", 0.02, 1e-9)
    fig = figure([{**row, **config} for row in rows], "optimisation-published")
    by_iteration, by_time, variance, _ = fig.axes
    assert "IndeCateR" in variance.get_title(loc="right")
    assert len(by_iteration.lines) == len(by_time.lines) + 1
    fig = figure(gradients_rows("additive", (3, 100), {"RLOO": (0.1, 1e-3)}), "gradients-additive")
    assert [text.get_text() for text in fig.legends[0].get_texts()][-1] == "published"
