"""Sweeps: their progress, locked and dying runs, Ctrl-C, a killed driver.

tests/kills kills at random instants, and tests/scale tests Ray.
"""

import json
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from catlog_experiments import Optimisation, execute, folder_for, records
from catlog_experiments.cli.main import _sweep_table, main
from catlog_experiments.run import record
from catlog_experiments.run_folder import Folder
from catlog_experiments.sweep import grid, sweep
from catlog_experiments.sweep_progress import SweepProgress
from driver import Driver, check_clean, until

SMALL = Optimisation(iterations=20, every=10, variables=5)
LONG = Optimisation(iterations=3000, every=20, variables=5)


@dataclass(frozen=True, kw_only=True)
class Deadly(Optimisation):
    """A run whose process is killed, as by the out-of-memory killer."""

    def task(self) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_run_that_always_dies_does_not_affect_others(tmp_path: Path) -> None:
    """It is the first and is retried; the others are complete and were run once."""
    good = [replace(SMALL, seed=seed) for seed in range(6)]
    (problem,) = sweep([Deadly(seed=99), *good], tmp_path, jobs=2, retries=1)
    assert "its process died" in problem
    assert "seed99" in problem
    assert "1 more attempts" in problem
    for config in good:
        folder = Folder(folder_for(config, tmp_path))
        check_clean(folder)
        assert len(folder.sessions()) == 1


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    driver = Driver(tmp_path, LONG, 6, "--jobs", "2", "--checkpoint-every", "0.2")
    driver.start()
    yield driver
    driver.end()


@pytest.mark.parametrize("how", ["Ctrl-C", "kill -9 of the driver"])
def test_a_sweep_that_is_stopped_stops(how: str, driver: Driver, tmp_path: Path) -> None:
    """Two running runs save their states, four waiting ones do not start, no process is left."""
    until(
        lambda: (
            len(driver.workers()) == 2
            and all(len(folder.metrics()) > 2 for folder in driver.folders[:2])
        )
    )
    number = signal.SIGKILL if "-9" in how else signal.SIGINT
    driver.signal(number, group=how == "Ctrl-C")
    assert driver.wait() == (-signal.SIGKILL if "-9" in how else 130)
    until(driver.gone)
    for folder in driver.folders[:2]:
        assert not folder.finished()
        start, state = Folder(folder.path).restore()
        assert start >= folder.metrics()[-1]["iteration"] > 0  # at the last step, not the last log
        assert state is not None
    for folder in driver.folders[2:]:
        assert not folder.path.exists()


def begin(config: Any, root: Path, age: timedelta, *rows: dict[str, Any]) -> None:
    """Write the files of a run on another machine that began at that time before now."""
    folder = Folder(folder_for(config, root))
    folder.path.mkdir(parents=True)
    folder.write_config(record(config))
    began = (datetime.now(UTC) - age).isoformat()
    session = {"began": began, "iteration": 0, "iterations": 400}
    with (folder.path / "sessions.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(session) + "\n")
    for row in rows:
        folder.log(row)


def test_time_left_is_estimated(tmp_path: Path) -> None:
    """100 of 400 iterations took 10 s, so 30 s are left. A run of the day before waits."""
    configs = grid(SMALL, ["seed=0,1,2,3"])
    execute(configs[0], folder_for(configs[0], tmp_path))
    progress = SweepProgress(configs, tmp_path)
    progress.started_at -= 20
    begin(configs[1], tmp_path, timedelta(seconds=10), {"iteration": 100, "value": 0.5})
    begin(configs[2], tmp_path, timedelta(days=1), {"iteration": 200, "value": 0.5})
    runs = progress.runs()
    assert [run.state for run in runs] == ["done", "running", "waiting", "waiting"]
    assert runs[1].seconds_left == pytest.approx(30, abs=3)
    assert [run.seconds_left for run in runs[2:]] == [None, None]
    progress.initial_fraction = 1.5  # when the sweep began
    assert progress.seconds_left(runs) == pytest.approx(20 * (4 - 1.75) / 0.25, rel=0.02)
    console = Console(width=120, height=30, record=True)
    console.print(_sweep_table(progress, console))
    text = console.export_text()
    assert "100/400" in text
    assert "0:00:30" in text or "0:00:29" in text
    assert "1 of 4 done, about 0:03:" in text


def test_a_long_table_shows_running_runs_first(tmp_path: Path) -> None:
    configs = grid(SMALL, [f"seed={','.join(map(str, range(40)))}"])
    progress = SweepProgress(configs, tmp_path)
    begin(configs[33], tmp_path, timedelta())
    console = Console(width=120, height=20, record=True)
    console.print(_sweep_table(progress, console))
    text = console.export_text()
    seeds = re.findall(r"^ (\d+) ", text, re.MULTILINE)
    assert seeds[:3] == ["33", "0", "1"]
    assert "and 28 more" in text
    assert len(text.splitlines()) <= 20


def test_equal_runs_are_run_once(tmp_path: Path) -> None:
    assert sweep([SMALL, SMALL], tmp_path) == []
    assert len(Folder(folder_for(SMALL, tmp_path)).sessions()) == 1


def test_sessions_record_where_a_run_was_cut(tmp_path: Path) -> None:
    """A run is stopped by the deadline and resumed."""
    slow = replace(SMALL, iterations=100_000)
    assert (
        "stopped by the deadline" in sweep([slow], tmp_path, deadline=0.5, checkpoint_every=0.0)[0]
    )
    assert "stopped by the deadline" in sweep([slow], tmp_path, deadline=0.5)[0]
    first, second = Folder(folder_for(slow, tmp_path)).sessions()
    assert first["iteration"] == 0
    assert second["iteration"] > 0
    assert second["iterations"] == 100_000


@pytest.mark.parametrize("settings", [{"gpus_per_run": 0.25}, {"address": "auto"}])
def test_settings_of_ray_need_ray(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--engine ray"):
        sweep([SMALL], tmp_path, **settings)


def test_a_sweep_refuses_torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="torchrun"):
        sweep([SMALL], tmp_path)


def test_a_sweep_writes_one_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that fail are named, are not shown as waiting, and leave no folder."""
    make_task = Optimisation.task

    def task(config: Optimisation) -> Any:
        if config.estimator == "IndeCateR":
            raise MemoryError
        return make_task(config)

    monkeypatch.setattr(Optimisation, "task", task)
    flags = ["--iterations", "20", "--every", "10", "--variables", "5", "--root", str(tmp_path)]
    axes = ["--grid", "seed=0,1", "--grid", "estimator=RLOO,IndeCateR"]
    assert main(["sweep", "optimisation", *flags, *axes]) == 1
    text = capsys.readouterr().out
    assert "2 of 4 done" in text
    assert (text.count("stopped"), text.count("waiting"), text.count("MemoryError")) == (2, 0, 2)
    assert "6 rows of 2 of 4 runs" in text
    assert len(list((tmp_path / "optimisation").iterdir())) == 2
    rows = records.read(tmp_path / "optimisation.csv")
    assert [(row["seed"], row["iteration"]) for row in rows] == [
        (seed, i) for seed in (0, 1) for i in (0, 10, 20)
    ]
