"""The paper's figures, from made-up rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from catlog_experiments.report import figures
from catlog_experiments.report.looks import LOOKS
from catlog_experiments.report.panels import WIDE
from catlog_experiments.report.runs import Evidence
from catlog_experiments.report.step_times import NO_STEP_TIMES, StepTimes
from made_up_rows import (
    PAPER,
    WELL,
    Row,
    addition_rows,
    dvae_rows,
    gradients_rows,
    optimisation_rows,
    run_rows,
)


def evidence(rows: list[Row], times: StepTimes = NO_STEP_TIMES) -> Evidence:
    return Evidence.from_rows(rows, times)


def test_every_figure_has_its_panels_and_one_legend() -> None:
    pictures = figures.pictures(evidence(PAPER))
    assert {picture.name: len(picture.figure.axes) for picture in pictures} == {
        "gradients-additive": 12,
        "gradients-pairwise": 12,
        "optimisation": 4,
        "dvae-iterations": 12,
        "dvae-time": 12,
        "dvae-categorical-iterations": 4,
        "dvae-categorical-time": 4,
        "addition": 8,  # two of them hidden
    }
    assert all(len(picture.figure.legends) == 1 for picture in pictures)


def test_a_phone_shows_the_legend_of_a_wide_figure() -> None:
    """It shows the left 390 of 896 pixels, in which the letters must have about 11 pixels."""
    for picture in figures.pictures(evidence(PAPER)):
        figure, (legend,) = picture.figure, picture.figure.legends
        figure.draw_without_rendering()
        inches = figure.get_figwidth()
        assert inches > WIDE
        assert legend.get_window_extent().x1 / figure.dpi < 390 / 896 * inches
        pixels = legend.get_texts()[0].get_fontsize() / 72 * 896 / inches
        assert pixels > 11


def test_runs_of_different_sizes_are_not_drawn_as_one() -> None:
    rows = optimisation_rows("IndeCateR", 0.02, 0.0)
    rows += [{**row, "variables": 5} for row in rows]
    pictures = figures.optimisation_pictures(evidence(rows))
    assert [picture.name for picture in pictures] == ["optimisation-5", "optimisation"]


def test_programs_on_different_data_have_different_panels() -> None:
    point = {"iteration": 0, "epoch": 1, "accuracy": 0.5}
    rows = [
        row
        for data in ("mnist", "mnist-5000")
        for row in run_rows("programs", "RLOO", 0, [point], program="equal", data=data)
    ]
    figure = figures.programs_figure(evidence(rows))
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["equal", "equal (MNIST, 5,000 images)"]
    assert [axes.get_ylabel() for axes in figure.axes] == ["test accuracy", ""]


def test_figures_are_written(tmp_path: Path) -> None:
    rows = [*addition_rows(4, "RLOO-S", 0.5), *gradients_rows("additive", (3, 100), WELL)]
    paths = figures.save_all(evidence(rows), tmp_path / "new")
    assert [path.name for path in paths] == ["gradients-additive.png", "addition.png"]
    assert all(path.stat().st_size > 10_000 for path in paths)
    with pytest.raises(ValueError, match=r"There is no run to report.*1 rows are left out"):
        figures.save_all(evidence([{"method": "RLOO"}]), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_paper_methods_keep_their_colours_and_others_get_further_ones() -> None:
    further = [*addition_rows(4, "Mine", 0.9), *addition_rows(4, "Yours", 0.8)]
    (legend,) = figures.addition_figure(evidence([*PAPER, *further])).legends
    colours = {line.get_label(): line.get_color() for line in legend.get_lines()}
    known = {colour for colour, _ in LOOKS.values()}
    assert colours["IndeCateR-D"] == LOOKS["IndeCateR-D"][0]
    assert len({colours["Mine"], colours["Yours"]} - known) == 2


def test_time_axes_follow_the_step_times() -> None:
    rows = dvae_rows("mnist", "IndeCateR", 95.0, ms=7.0)

    def reach(times: StepTimes) -> float:
        axes = figures.dvae_figure(evidence(rows, times), "seconds").axes[0]
        return max(float(np.max(line.get_xdata())) for line in axes.lines)

    assert reach(NO_STEP_TIMES) == pytest.approx(60_000 * 0.007)
    assert reach(StepTimes({("dvae", "IndeCateR"): 2.0})) == pytest.approx(60_000 * 0.002)
    without = evidence(rows, StepTimes({("dvae", "RLOO-F"): 2.0}))
    assert figures.dvae_figure(without, "seconds").axes[0].texts[0].get_text() == "not measured"


def test_zero_variance_and_missing_metrics_are_drawn() -> None:
    rows = optimisation_rows("IndeCateR", 0.02, 0.0) + optimisation_rows("RLOO-F", 0.02, 1e-9)
    axes = figures.optimisation_figure(evidence(rows)).axes[2]
    assert "IndeCateR" in axes.get_title(loc="right")
    without = [
        {name: value for name, value in row.items() if not name.startswith("gradient")}
        for row in dvae_rows("mnist", "RLOO-S", 95.0, 1.0)
    ]
    figures.dvae_figure(evidence(without))


def test_published_iterations_are_not_drawn_on_a_time_axis() -> None:
    """The published curves are known by iteration only."""
    config: dict[str, Any] = {"update": "published", "gradient_spread": 1e-12}
    rows = [{**row, **config} for row in optimisation_rows("IndeCateR", 0.02, 0.0, seeds=2)]
    figure = figures.optimisation_figure(evidence(rows), update="published")
    by_iteration, by_time, *_ = figure.axes
    assert len(by_iteration.lines) == len(by_time.lines) + 1
