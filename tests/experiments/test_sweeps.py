"""Sweeps in processes: Ctrl-C, a driver that is killed, a run that dies. tests/kills has the same at random instants."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from catlog.experiments import Optimisation, folder_for
from catlog.experiments.run_folder import Folder
from catlog.experiments.sweep import sweep
from driver import Driver, check_clean, until

SMALL = Optimisation(iterations=20, every=10, variables=5)
LONG = Optimisation(iterations=3000, every=20, variables=5)


@dataclass(frozen=True, kw_only=True)
class Deadly(Optimisation):
    """Its process dies, as by the out-of-memory killer."""

    def task(self) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_run_that_always_dies_costs_itself_alone(tmp_path: Path) -> None:
    """It comes first and is tried again; the others, of which most had not begun, are complete, and were run once."""
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
    """The two that run save where they stand, the four that wait do not begin, and no process is left."""
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
        assert (
            start >= folder.metrics()[-1]["iteration"] > 0
        )  # at the step that was the last, beyond what was logged
        assert state is not None
    for folder in driver.folders[2:]:
        assert not folder.path.exists()
