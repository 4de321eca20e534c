"""Sweeps whose runs or driver are killed at random instants lose no data and leave no process.

``make test-kills KILLS=30`` prints a summary. KILLS_SEED repeats the instants, up to timing.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from catlog_experiments import Optimisation
from driver import Driver, check_clean, until, untimed

KILLS = int(os.environ.get("KILLS", "3"))
BASE = Optimisation(iterations=800, every=10, variables=20)
SEEDS = 3
FLAGS = ("--jobs", "2", "--retries", "1000", "--checkpoint-every", "0.1")


@pytest.fixture(scope="module")
def chance() -> random.Random:
    seed = int(os.environ.get("KILLS_SEED", time.time_ns() % 10**6))
    print(f"\nKILLS_SEED={seed}")
    return random.Random(seed)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    """The metrics of the same runs, not interrupted."""
    driver = Driver(tmp_path_factory.mktemp("whole"), BASE, SEEDS, *FLAGS)
    driver.start()
    assert driver.wait() == 0
    return [untimed(folder) for folder in driver.folders]


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Iterator[Driver]]:
    """One sweep after another, each in a new folder."""
    made: list[Driver] = []

    def more() -> Iterator[Driver]:
        while True:
            made.append(Driver(tmp_path / str(len(made)), BASE, SEEDS, *FLAGS))
            yield made[-1]

    yield more()
    for driver in made:
        driver.end()


def check_complete(driver: Driver, whole: list[list[dict[str, Any]]]) -> int:
    """Check that all runs equal uninterrupted ones, and return the number of their sessions."""
    for folder, expected in zip(driver.folders, whole, strict=True):
        check_clean(folder)
        assert untimed(folder) == expected
    return sum(len(folder.sessions()) for folder in driver.folders)


def test_killed_runs_are_completed(
    chance: random.Random, drivers: Iterator[Driver], whole: list[list[dict[str, Any]]]
) -> None:
    """kill -9 of a run's process, up to two seconds after its start; the sweep continues."""
    killed, complete, sessions = 0, 0, 0
    while killed < KILLS:
        driver = next(drivers)
        driver.start()
        while driver.running and killed < KILLS:
            until(lambda driver=driver: driver.workers() or not driver.running)
            time.sleep(chance.uniform(0.0, 2.0))
            if workers := driver.workers():
                os.kill(chance.choice(workers), signal.SIGKILL)
                killed += 1
        assert driver.wait() == 0
        until(driver.gone)
        sessions += check_complete(driver, whole)
        complete += SEEDS
    print(
        f"\n{killed} runs killed: {complete} of {complete} runs complete and bit-identical, "
        f"in {sessions} sessions"
    )


SIGNALS = {
    "kill -9": signal.SIGKILL,
    "SIGTERM": signal.SIGTERM,
    "SIGINT": signal.SIGINT,
    "Ctrl-C": signal.SIGINT,
}


def test_killed_drivers_are_completed(
    chance: random.Random, drivers: Iterator[Driver], whole: list[list[dict[str, Any]]]
) -> None:
    """The driver is killed at its start or during runs, and restarted until all is done."""
    stops: Counter[str] = Counter()
    complete, sessions, longest = 0, 0, 0.0
    while sum(stops.values()) < KILLS:
        driver = next(drivers)
        returned = None
        while returned != 0:
            driver.start()
            how = ""
            if sum(stops.values()) < KILLS:
                if chance.random() < 0.75:  # while a run is under way
                    until(lambda driver=driver: driver.workers() or not driver.running)
                    time.sleep(chance.uniform(0.0, 2.0))
                else:  # at any point of its start
                    time.sleep(chance.uniform(0.0, 10.0))
                how = chance.choice(["kill -9", "kill -9", *SIGNALS])
                if driver.running:
                    driver.signal(SIGNALS[how], group=how == "Ctrl-C")
            returned = driver.wait()
            stops[how] += how != "" and returned != 0
            began = time.monotonic()
            until(driver.gone)
            longest = max(longest, time.monotonic() - began)
        sessions += check_complete(driver, whole)
        complete += SEEDS
    print(
        f"\nDriver stopped {sum(stops.values())} times ({dict(+stops)}): {complete} of {complete} "
        f"runs complete and bit-identical, in {sessions} sessions; no process left {longest:.1f} s "
        "after the driver ended"
    )
