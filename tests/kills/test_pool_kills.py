"""A pool whose workers or parent are killed at random instants loses and leaves nothing.

``KILLS=30 pytest tests/kills/test_pool_kills.py`` sets the number of kills of each kind.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from catlog.functions import Pool
from catlog.parallel import serving
from leftovers import MARK, leftovers, marked

KILLS = int(os.environ.get("KILLS", "3"))
ROWS, SEED = 6, 11
children: list[Any] = []  # child processes of a worker


def noisy(point: Any, mark: str) -> float:
    """Return a random number, slowly, with a child process beside it."""
    if not children:
        children.append(
            subprocess.Popen(
                ["sleep", "1000"], env={**os.environ, MARK: mark}, start_new_session=True
            )
        )
    value = float(np.random.rand())  # noqa: NPY002
    time.sleep(0.01)
    return value


def expected(call: int) -> list[float]:
    """Return the values of an undisturbed pool."""
    values = []
    for row in range(ROWS):
        serving.reseed([SEED, 0, call, row, 0])
        values.append(float(np.random.rand()))  # noqa: NPY002
    return values


def pool(mark: str) -> Pool:
    return Pool(noisy, 2, batch=[mark], retries=1000, seed=SEED, dtype=torch.float64)


X = torch.zeros(ROWS, 1, 1)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_killed_workers_do_not_change_values() -> None:
    """Kill workers while they start, work or idle; every value is that of the undisturbed pool."""
    mark, chance, killed = uuid.uuid4().hex, random.Random(0), 0
    calls = []
    with pool(mark) as f:

        def kill() -> None:
            nonlocal killed
            while killed < KILLS:
                time.sleep(chance.uniform(0, 0.3))
                workers = [worker.process for worker in list(f._workers or ())]
                if workers:
                    try:
                        os.kill(chance.choice(workers), signal.SIGKILL)
                    except ProcessLookupError:
                        continue  # it was dead already
                    killed += 1

        killer = threading.Thread(target=kill)
        killer.start()
        while killer.is_alive() or len(calls) < 3:
            calls.append(f(X)[:, 0].tolist())
            time.sleep(chance.uniform(0, 0.05))
        killer.join()
        assert len(marked(mark)) <= 2  # one per living worker
    assert killed == KILLS
    assert calls == [expected(1 + i) for i in range(len(calls))]
    assert leftovers(mark) == {}
    print(f"{killed} kills during {len(calls)} calls")


NURSERY = """
import os, sys, torch
from test_pool_kills import X, MARK, pool
for line in sys.stdin:
    mark, file = line.split()
    child = os.fork()
    if child == 0:
        os.environ[MARK] = mark
        with open(file, "a") as out:
            f = pool(mark)
            while True:
                print(*f(X)[:, 0].tolist(), file=out, flush=True)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def nursery() -> Iterator["subprocess.Popen[str]"]:
    """A process that forks parents of pools, so that torch is imported once."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", NURSERY]
    with subprocess.Popen(
        command, env=environment, stdin=pipe, stdout=pipe, text=True, encoding="utf-8"
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("kill", range(KILLS))
def test_a_killed_parent_leaves_no_process(
    kill: int, nursery: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """By SIGKILL and SIGTERM in turn, half of the times after the pool has answered once."""
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    mark, file, chance = uuid.uuid4().hex, tmp_path / "values", random.Random(kill)
    print(mark, file, file=nursery.stdin, flush=True)
    parent = int(nursery.stdout.readline())
    if kill % 4 < 2:
        while not (file.exists() and file.stat().st_size):
            time.sleep(0.01)
    time.sleep(chance.uniform(0, 1.0 if kill % 4 < 2 else 8.0))
    number = (signal.SIGKILL, signal.SIGTERM)[kill % 2]
    os.kill(parent, number)
    assert int(nursery.stdout.readline()) == -number
    assert leftovers(mark, patience=60) == {}
    lines = file.read_text(encoding="utf-8").split("\n") if file.exists() else [""]
    assert lines[-1] == ""
    assert [[float(value) for value in line.split()] for line in lines[:-1]] == [
        expected(1 + i) for i in range(len(lines) - 1)
    ]
