"""The race of all estimators, as far as it can be tested without a GPU."""

import argparse
from pathlib import Path

import pytest
from benchmarks.cpu_races.judging import standings
from benchmarks.whole_race import count, entrants, summaries, time_steps

from catlog.estimators import ESTIMATORS
from catlog_experiments import records


def options(folder: Path) -> argparse.Namespace:
    return argparse.Namespace(
        data=["mnist-5000"],
        methods=["RLOO(2)", "ReinMax(2)"],
        seeds=[1],
        jobs=2,
        limit=60.0,
        device="cpu",
        steps=4,
        every=2,
        times=folder / "times.csv",
        seconds=1e-3,
        output=folder / "curves.csv",
    )


def test_every_estimator_that_can_train_the_model_is_entered() -> None:
    names = entrants()
    classes = {name.partition("(")[0] for name in names}
    assert classes <= set(ESTIMATORS)
    assert {"RLOO", "SlopeCateR", "IndeCateR", "CritiCateR", "GumbelSoftmax"} <= classes
    assert not {"Exact", "VIMCO", "MAPO", "MemoryCateR"} & classes
    assert len(set(names)) == len(names)


def test_runs_are_counted_once_and_timed(tmp_path: Path) -> None:
    args = options(tmp_path)
    count(args)
    rows = records.read(args.output)
    assert [(row["method"], row["step"]) for row in sorted(rows, key=str)] == [
        ("RLOO(2)", 2),
        ("RLOO(2)", 4),
        ("ReinMax(2)", 2),
        ("ReinMax(2)", 4),
    ]
    count(args)  # nothing is left to do
    assert records.read(args.output) == rows
    timing = options(tmp_path)
    timing.output = tmp_path / "times.csv"
    time_steps(timing)
    times = records.read(timing.output)
    assert all(row["ms"] > 0 for row in times)
    runs = summaries(rows, times)
    assert {run["method"] for run in runs} == set(args.methods)
    assert all(run["seconds"] is None and run["trained"] > 0 for run in runs)


def test_the_first_to_the_first_target_is_on_top() -> None:
    rows = [
        {"data": "mnist-5000", "method": method, "seed": 0, "step": step, "train": train}
        for method, curve in (("A", {600: 110.0, 1200: 90.0}), ("B", {600: 99.0}))
        for step, train in curve.items()
    ]
    times = [{"method": "A", "ms": 0.1}, {"method": "B", "ms": 1.0}]
    (entries,) = standings(summaries(rows, times)).values()
    assert [(entry.method, entry.seconds) for entry in entries] == [
        ("A", pytest.approx(0.09)),
        ("B", 0.6),
    ]
