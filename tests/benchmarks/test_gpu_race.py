"""The race on a GPU, as far as it can be tested without one."""

import argparse
from pathlib import Path
from typing import Any

import pytest
from benchmarks.cpu_races.racers import estimator_of
from benchmarks.race import CapturedSteps, advise, summaries

from benchmarks import race, step_kernels
from catlog import RLOO, Estimator, ReinMax
from catlog.core.settings import label
from catlog_experiments import records


def options(picks: Path | None = None) -> argparse.Namespace:
    return argparse.Namespace(
        device="cpu",
        data="mnist-5000",
        seeds=[101],
        epochs=0,
        picks=picks,
    )


def test_methods_are_labels() -> None:
    assert [label(estimator_of(name)) for name in race.METHODS] == race.METHODS


def test_runs_of_the_race_are_judged_by_their_labels() -> None:
    rows = [
        {"method": method, "seed": seed, "step": step, "seconds": float(step), "train": train}
        for method, seed, end in (("GumbelSoftmax(8, hard=True)", 0, 90.0), ("RLOO(2)", 1, 110.0))
        for step, train in ((0, 120.0), (3, end))
    ]
    reached, late = summaries(rows)
    assert (reached["method"], reached["seconds"]) == ("GumbelSoftmax(8, hard=True)", 2.0)
    assert (late["method"], late["seconds"], late["trained"]) == ("RLOO(2)", None, 3.0)


class SlowToStart:
    """A fake task and clock: set-up takes 100 seconds, the first step 10, others 1."""

    def __init__(self) -> None:
        self.time = 0.0

    def made(self, *_: object) -> "SlowToStart":
        self.time += 100
        return self

    def step(self, i: int) -> None:
        self.time += 10 if i == 0 else 1

    def now(self, _: str) -> float:
        return self.time


def test_set_up_is_not_on_the_clock_of_the_pilot(monkeypatch: pytest.MonkeyPatch) -> None:
    task = SlowToStart()
    monkeypatch.setattr(race, "made", task.made)
    monkeypatch.setattr(race, "now", task.now)
    steps = CapturedSteps(options())
    for seconds, E in ((1, RLOO(2)), (2, RLOO(2)), (3, RLOO(4))):
        steps(E)
        assert steps.clock() == seconds
    assert steps.setup == 220


def test_picks_are_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[bool] = []

    def advised(
        f: Any, q: Any, *, biased: bool, step: Any, penalty: Any, **_: object
    ) -> dict[str, object]:
        E: Estimator = ReinMax(2) if biased else RLOO(2)
        assert E(f, q).shape == penalty(q).shape == (100,)
        step(E)
        asked.append(biased)
        return {"biased": biased, "pick": repr(E), "draws": 2, "pilot_seconds": 0.5}

    monkeypatch.setattr(race, "pick", advised)
    for _ in range(2):
        advise(options(tmp_path / "picks.csv"))
    assert asked == [False, True]  # what the file holds is not asked again
    rows = records.read(tmp_path / "picks.csv")
    assert [(row["race"], row["seed"]) for row in rows] == [("H200", 101)] * 2
    assert [row["pick"] for row in rows] == ["RLOO(2)", "ReinMax(2)"]


def test_advice_comes_after_some_training(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    task = argparse.Namespace(training=argparse.Namespace(per_epoch=3), step=steps.append)
    monkeypatch.setattr(race, "made", lambda *_: task)
    assert race.trained(1, argparse.Namespace(epochs=2, data="mnist", device="cpu")) is task
    assert steps == [0, 1, 2, 3, 4, 5]


def test_a_new_profile_replaces_the_old_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also where a step has fewer kernels than before."""
    monkeypatch.setattr("sys.argv", ["", "--methods", "RLOO(2)", "--folder", str(tmp_path)])
    monkeypatch.setattr(step_kernels, "made", lambda *_: None)
    monkeypatch.setattr(step_kernels, "step_times", lambda _: [{"method": "RLOO(2)", "ms": 1.0}])
    for count in (3, 2):
        rows = [{"method": "RLOO(2)", "kernel": i, "us": 1.0} for i in range(count)]
        monkeypatch.setattr(step_kernels, "kernels", lambda *_, rows=rows: rows)
        step_kernels.main()
    assert records.read(tmp_path / "captured_kernels_cuda.csv") == rows
