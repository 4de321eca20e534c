"""Sweeps seen from outside, the lock of a run, and the page of measured numbers. Ray itself is tested in tests/scale."""

import json
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from catlog.cli.main import _standing, main
from catlog.experiments import Optimisation, execute, folder_for, records
from catlog.experiments.run import record
from catlog.experiments.run_folder import Folder
from catlog.experiments.sweep import Standing, grid, sweep
from scripts import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))


SMALL = Optimisation(iterations=20, every=10, variables=5)


def begun(config: Any, root: Path, session: dict[str, Any], *rows: dict[str, Any]) -> Folder:
    """A run that has logged these rows, as another machine would leave it."""
    folder = Folder(folder_for(config, root))
    folder.path.mkdir(parents=True)
    folder.create(record(config))
    with (folder.path / "sessions.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(session) + "\n")
    for row in rows:
        folder.log(row)
    return folder


def test_time_left(tmp_path: Path) -> None:
    """100 of 400 iterations in 10 s: 30 s to go; a run of an earlier day waits; one is done."""
    configs = grid(SMALL, ["seed=0,1,2,3"])
    execute(configs[0], folder_for(configs[0], tmp_path))
    standing = Standing(configs, tmp_path)
    standing.began -= 20
    began = (datetime.now(UTC) - timedelta(seconds=10)).isoformat()
    begun(
        configs[1],
        tmp_path,
        {"began": began, "iteration": 0, "iterations": 400},
        {"iteration": 100, "value": 0.5},
    )
    old = (datetime.now(UTC) - timedelta(days=1)).isoformat()
    begun(
        configs[2],
        tmp_path,
        {"began": old, "iteration": 0, "iterations": 400},
        {"iteration": 200, "value": 0.5},
    )
    runs = standing.look()
    assert [run.state for run in runs] == ["done", "running", "waiting", "waiting"]
    assert runs[1].left == pytest.approx(30, abs=3)
    assert [run.left for run in runs[2:]] == [None, None]
    standing.at_first = 1.5  # what was there when the sweep began
    assert standing.left(runs) == pytest.approx(20 * (4 - 1.75) / 0.25, rel=0.02)
    console = Console(width=120, height=30, record=True)
    console.print(_standing(standing, console))
    told = console.export_text()
    assert "100/400" in told
    assert "0:00:30" in told or "0:00:29" in told
    assert "1 of 4 done, about 0:03:" in told


def test_a_long_table_shows_what_is_running_first(tmp_path: Path) -> None:
    configs = grid(SMALL, [f"seed={','.join(map(str, range(40)))}"])
    standing = Standing(configs, tmp_path)
    now = datetime.now(UTC).isoformat()
    begun(configs[33], tmp_path, {"began": now, "iteration": 0, "iterations": 400})
    console = Console(width=120, height=20, record=True)
    console.print(_standing(standing, console))
    told = console.export_text()
    assert told.index("seed33") < told.index("seed0-")
    assert "and 28 more" in told
    assert len(told.splitlines()) <= 20


def test_a_run_that_another_process_holds_is_not_run(tmp_path: Path) -> None:
    folder = begun(
        SMALL, tmp_path, {"began": datetime.now(UTC).isoformat(), "iteration": 0, "iterations": 20}
    )
    with (
        folder.held(),
        pytest.raises(ValueError, match="another process"),
        folder.held(patience=0.2),
    ):
        pass
    with folder.held(patience=0.0):
        pass
    assert sweep([SMALL], tmp_path) == []


def test_equal_runs_are_run_once(tmp_path: Path) -> None:
    assert sweep([SMALL, SMALL], tmp_path) == []
    assert len(Folder(folder_for(SMALL, tmp_path)).sessions()) == 1


def test_sessions_tell_where_a_run_was_cut(tmp_path: Path) -> None:
    """A run that is cut by the deadline and run again."""
    slow = replace(SMALL, iterations=100_000)
    assert "cut by the deadline" in sweep([slow], tmp_path, deadline=0.5, checkpoint_every=0.0)[0]
    assert "cut by the deadline" in sweep([slow], tmp_path, deadline=0.5)[0]
    first, second = Folder(folder_for(slow, tmp_path)).sessions()
    assert first["iteration"] == 0
    assert second["iteration"] > 0
    assert second["iterations"] == 100_000


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gpus_per_run": 0.25}, "--engine ray"),
        ({"address": "auto"}, "--engine ray"),
        ({"jobs": 0}, "--jobs"),
    ],
)
def test_bad_settings(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        sweep([SMALL], tmp_path, **given)


def test_a_sweep_is_not_for_torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="torchrun"):
        sweep([SMALL], tmp_path)


def test_without_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"catlog\[ray\]"):
        sweep([SMALL], tmp_path, engine="ray")


def test_a_sweep_is_gathered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [
        "sweep",
        "optimisation",
        "--iterations",
        "20",
        "--every",
        "10",
        "--variables",
        "5",
        "--root",
        str(tmp_path),
    ]
    assert main([*given, "--grid", "seed=0,1", "--grid", "estimator=RLOO,Nonsense"]) == 1
    told = capsys.readouterr().out
    assert "2 of 4 done" in told
    rows = records.read(tmp_path / "optimisation.csv")
    assert [(row["seed"], row["iteration"]) for row in rows] == [
        (seed, i) for seed in (0, 1) for i in (0, 10, 20)
    ]
