"""From rows to runs, and from numbers to text."""

import math
from pathlib import Path

import pytest

from catlog_experiments import records
from catlog_experiments.report.runs import Evidence, method_label, published
from catlog_experiments.report.statistics import Stat, format_number, statistic
from made_up_rows import addition_rows


def test_shorter_runs_are_apart_and_runs_that_are_left_out_are_named() -> None:
    short = addition_rows(4, "RLOO-F", 0.1, epochs=3, seeds=1)
    short = [{**row, "epochs": 3} for row in short]
    long = addition_rows(4, "RLOO-F", 0.9, epochs=8, seeds=1)
    longer = [
        {**row, "device": "cpu"} for row in addition_rows(4, "RLOO-F", 0.9, epochs=9, seeds=1)
    ]
    evidence = Evidence.from_rows([*long, *short, *longer, *long])
    assert [(run.method, run.length) for run in evidence.runs] == [
        ("RLOO-F", 375 * 9),
        ("RLOO-F epochs=3", 375 * 3),
    ]
    assert len(evidence.runs[0].points) == 10
    size = "addition RLOO-F (data=mnist, digits=4)"
    assert evidence.notes == (
        f"{size}: runs with epochs=3 are shown as methods apart from those with epochs=10.",
        f"{size}, seed 0: a run of 3000 iterations is left out, because one of 3375 counts "
        "(they differ in device).",
    )


def test_runs_of_different_lengths_are_not_averaged_without_a_note() -> None:
    rows = [
        *addition_rows(4, "RLOO-F", [0.5], epochs=8),
        *addition_rows(4, "RLOO-F", [0.0, 0.7], epochs=6)[7:],
        *addition_rows(4, "RLOO-F", [0.0, 0.0, 0.9], epochs=3)[8:],
    ]
    evidence = Evidence.from_rows(rows)
    assert [(run["seed"], run.length) for run in evidence.runs] == [(0, 375 * 6), (1, 375 * 6)]
    size = "addition RLOO-F (data=mnist, digits=4)"
    assert evidence.notes == (
        f"{size}, seed 2: left out, because it got to iteration 1125 of 3000.",
        f"{size}: the runs differ in length (seed 0: 3000, seed 1: 2250), so all are read up to "
        "iteration 2250.",
    )
    assert Evidence.from_rows(addition_rows(4, "RLOO-F", 0.5)).notes == ()


def test_rows_of_no_run_are_counted() -> None:
    rows = [*addition_rows(4, "RLOO-F", 0.5, epochs=2, seeds=1), {"method": "RLOO", "ms": 2.0}]
    (note,) = Evidence.from_rows(rows).notes
    assert note == "1 rows are left out: they are not of a run of a known experiment."


def test_a_run_and_its_table_are_one_run(tmp_path: Path) -> None:
    """A table has a text where a run has a list, and nothing where a setting is empty."""
    rows = addition_rows(4, "RLOO-F", 0.5, epochs=2, seeds=1)
    for options in ([], ["draws=latin", "validate=False"]):
        run = [{**row, "options": options, "samples": None, "clip": 1 / 3} for row in rows]
        records.write(run, tmp_path / "runs.csv")
        evidence = Evidence.from_rows([*run, *records.read(tmp_path / "runs.csv")])
        assert len(evidence.runs) == 1
        assert evidence.notes == ()


def test_runs_with_another_network_or_other_data_are_not_averaged() -> None:
    row = {"experiment": "programs", "estimator": "IndeCateR", "iteration": 0}
    changes = ({}, {"network": "conv"}, {"shift": 2}, {"decay": False}, {"sequences": 500})
    changes += ({"value_samples": 9}, {"restart": 20}, {"floor": 1e-4})
    rows = [{**row, **change, "seed": seed} for seed, change in enumerate(changes)]
    methods = Evidence.from_rows(rows).methods("programs")
    assert [len(runs) for runs in methods.values()] == [1] * len(changes)
    assert "IndeCateR network=conv" in methods


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
    runs = Evidence.from_rows(rows).methods("addition")["RLOO-F"]
    curve = runs.series("accuracy", "epoch")
    assert curve is not None
    assert curve.x.tolist() == [0, 1, 2, 3, 4]
    values = [0.5, 0.7 * (1 - math.exp(-1))]
    assert curve.mean[-1] == pytest.approx(sum(values) / 2)
    # the sample standard deviation over sqrt(2)
    assert curve.error[-1] == pytest.approx(abs(values[0] - values[1]) / 2)
    assert runs.at("accuracy", 4, "epoch").seeds == 2


def test_numbers_are_written_with_their_error() -> None:
    assert str(Stat(0.8535, 0.0012, 3)) == "0.8535 ± 0.0012"
    assert str(Stat()) == "-"
    assert str(statistic([math.inf, 3.0])) == "never"
    assert format_number(123456.0, digits=3) == "123456"
    assert format_number(4.2e-7) == "4.2e-7"


def test_zero_up_to_rounding_is_written_as_zero() -> None:
    assert str(Stat(-6.996e-31, 2e-31, 3)) == format_number(1.5e-30) == "0"
    assert format_number(-1e-18) == "-1e-18"


def test_step_times_replace_the_clock() -> None:
    rows = addition_rows(4, "RLOO-F", 0.5, epochs=2) + addition_rows(4, "RLOO-S", 0.5, epochs=2)
    times = [{"problem": "addition, 4 digits", "method": "RLOO-F", "ms": 2.0}]
    methods = Evidence.from_rows(rows, times).methods("addition")
    assert str(methods["RLOO-F"].milliseconds()) == "2"
    assert methods["RLOO-F"].end("seconds") == 750 * 2.0 / 1000
    assert math.isnan(methods["RLOO-S"].end("seconds"))
    assert methods["RLOO-S"].milliseconds().mean == pytest.approx(200 / 749)
    with pytest.raises(ValueError, match="the columns method and ms"):
        Evidence.from_rows([], [{"method": "RLOO-F", "ms": ""}])


def test_published_numbers_are_runs() -> None:
    """Without notes: none is left out, cut or doubled."""
    assert published().notes == ()
    omniglot = published().methods("dvae", data="omniglot", categories=2)
    assert omniglot["IndeCateR"].final("train").mean == 103.3
    assert omniglot["RLOO-S"].at("test", 10_000).seeds == 0
    rows = [{**row, "data": "mnist"} for row in addition_rows(16, "IndeCateR-D", 0.5)]
    runs = Evidence.from_rows(rows).methods("addition")["IndeCateR-D"]
    assert runs.beside().at("accuracy", 5, "epoch").mean == 0.75
