"""Sweeps: grids, and runs one after another; slow/test_ray.py has those on Ray."""

from dataclasses import replace
from pathlib import Path

import pytest

from catlog_experiments import DVAE, Addition, Optimisation, folder_for, grid, sweep
from runs import starts

SMALL = Optimisation(iterations=20, every=10, variables=5)


def test_values_of_a_grid_have_the_types_of_the_flags() -> None:
    """So the folder does not depend on how the settings were passed."""
    axes = ["learning-rate=1,None", "anneal=False,True", "samples=2", "estimator=1e3"]
    first, *_, last = grid(SMALL, [*axes, "options=,draws=latin variables=2"])
    fixed = replace(SMALL, samples=2, estimator="1e3")
    assert first == replace(fixed, learning_rate=1.0, anneal=False)
    assert isinstance(first.learning_rate, float)
    assert last == replace(fixed, options=("draws=latin", "variables=2"))


def test_missing_data_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATLOG_DATA", str(tmp_path / "nowhere"))
    small = DVAE(variables=2, epochs=1, batch=2000, test_samples=1, gradient_repeats=0)
    (problem,) = sweep(grid(small, ["data=mnist,mnist-5000"]), tmp_path / "runs")
    assert "nowhere" in problem
    assert [path.name[:20] for path in tmp_path.glob("runs/dvae/*")] == ["IndeCateR-mnist-5000"]
    monkeypatch.setattr("catlog_experiments.dvae.load", None)
    assert sweep([small], tmp_path / "runs") == []  # a complete sweep needs no data


def test_complete_runs_are_skipped_and_failed_ones_reported(tmp_path: Path) -> None:
    small = Addition(digits=2, epochs=1, every=20, estimator="IndeCateR-D", samples=2)
    configs = grid(small, ["batch=400,10000", "seed=0,1"])
    for _ in range(2):
        problems = sweep([*configs, *configs], tmp_path)
        assert len(problems) == 2
        assert all("--batch must be between 1 and the" in problem for problem in problems)
        assert len(list((tmp_path / "addition").iterdir())) == 2
    assert [starts(folder_for(config, tmp_path)) for config in configs[:2]] == [[0], [0]]


def test_missing_ray_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ImportError, match="need Ray: pip install ray"):
        sweep(grid(SMALL, ["seed=0,1"]), tmp_path, jobs=2)
