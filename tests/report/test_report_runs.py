"""From rows to runs, and from numbers to text."""

import math

import pytest
from made_up_rows import addition_rows

from catlog.report import published
from catlog.report.formatting import format_number
from catlog.report.runs import Stat, at, collect, method_label, series, statistic
from catlog.report.step_times import StepTimes


def test_longest_run_of_a_seed_counts_and_duplicates_do_not() -> None:
    short = addition_rows(4, "RLOO-F", 0.1, epochs=3, seeds=1)
    short = [{**row, "epochs": 3} for row in short]
    long = addition_rows(4, "RLOO-F", 0.9, epochs=8, seeds=1)
    (run,) = collect([*long, *short, *long])
    assert run.length == 375 * 8
    assert len(run.points) == 9


def test_labels_name_the_settings_that_differ_from_the_paper() -> None:
    row = {"experiment": "dvae", "estimator": "IndeCateR", "options": [], "anneal": False}
    assert method_label(row) == "IndeCateR"  # it has no temperature to anneal
    changed = {**row, "options": ["draws=latin"], "samples": 4}
    assert method_label(changed) == "IndeCateR samples=4 draws=latin"
    assert method_label({**row, "estimator": "GS-F"}) == "GS-F anneal=False"


def test_mean_and_standard_error_are_over_seeds_at_points_that_all_reached() -> None:
    rows = [
        *addition_rows(4, "RLOO-F", [0.5], epochs=4),
        *addition_rows(4, "RLOO-F", [0.0, 0.7], epochs=6)[7:],
    ]
    runs = collect(rows)
    curve = series(runs, "accuracy", "epoch")
    assert curve is not None
    assert curve.seeds == 2
    assert curve.x.tolist() == [0, 1, 2, 3, 4]
    values = [0.5, 0.7 * (1 - math.exp(-1))]
    assert curve.mean[-1] == pytest.approx(sum(values) / 2)
    # the sample standard deviation over sqrt(2)
    assert curve.error[-1] == pytest.approx(abs(values[0] - values[1]) / 2)
    assert at(runs, "accuracy", 6, "epoch").seeds == 1


def test_numbers_are_written_with_their_error() -> None:
    assert str(Stat(0.8535, 0.0012, 3)) == "0.8535 ± 0.0012"
    assert str(Stat()) == "-"
    assert str(statistic([math.inf, 3.0])) == "never"
    assert format_number(123456.0, digits=3) == "123456"
    assert format_number(4.2e-7) == "4.2e-7"


def test_zero_up_to_rounding_is_written_as_zero() -> None:
    assert str(Stat(-6.996e-31, 2e-31, 3)) == format_number(1.5e-30) == "0"
    assert format_number(-1e-18) == "-1e-18"


def test_step_times_without_a_number_are_refused() -> None:
    with pytest.raises(ValueError, match="the columns method and ms"):
        StepTimes.from_rows([{"method": "RLOO-F", "ms": ""}])


def test_published_curves_are_complete() -> None:
    tables = [published.DVAE, published.ADDITION, published.OPTIMISATION]
    for curve in [curve for table in tables for row in table.values() for curve in row.values()]:
        assert len(curve.x) == len(curve.y)
        assert list(curve.x) == sorted(curve.x)
    assert published.DVAE["omniglot", 2, "train"]["IndeCateR"].at(190_000) == 103.3
    assert published.DVAE["omniglot", 2, "test"]["RLOO-S"].at(10_000) is None
    assert published.ADDITION[16]["IndeCateR-D"].at(5) == 0.75
