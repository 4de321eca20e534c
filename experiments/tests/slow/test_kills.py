"""Commands that are killed at random instants lose no data: `make test-kills KILLS=10`.

KILLS_SEED repeats the instants, up to timing.
"""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from catlog_experiments import Addition, Optimisation, execute, folder_for, grid
from catlog_experiments.run_folder import Folder
from runs import started, starts, untimed

KILLS = int(os.environ.get("KILLS", "3"))
SIGNALS = [signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT]
COMMANDS = {
    "run addition --digits 2 --epochs 2 --batch 40 --every 5 --samples 2": [
        Addition(digits=2, epochs=2, batch=40, every=5, samples=2)
    ],
    "sweep optimisation --iterations 900 --every 10 --variables 20 --grid seed=0,1,2": grid(
        Optimisation(iterations=900, every=10, variables=20), ["seed=0,1,2"]
    ),
}


@pytest.fixture(scope="module")
def chance() -> random.Random:
    seed = int(os.environ.get("KILLS_SEED", time.time_ns() % 10**6))
    print(f"\nKILLS_SEED={seed}")
    return random.Random(seed)


@pytest.mark.parametrize("command", COMMANDS)
def test_killed_commands_are_completed(
    command: str, chance: random.Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command continues until it is complete, and its numbers are those of one session."""
    monkeypatch.chdir(tmp_path)
    configs, kills = COMMANDS[command], 0
    whole = [tmp_path / f"whole-{i}" for i in range(len(configs))]
    for config, path in zip(configs, whole, strict=True):
        execute(config, path)
    folders = [folder_for(config) for config in configs]
    resume = ["--resume"] if command.startswith("run") else []
    while not all(Folder(path).completed() for path in folders):
        process = started(*command.split(), *resume, "--checkpoint-every", "0.05")
        begun = [len(starts(path)) for path in folders]
        while process.poll() is None and begun == [len(starts(path)) for path in folders]:
            time.sleep(0.01)
        time.sleep(chance.uniform(0.0, 0.4))
        if kills < KILLS and process.poll() is None:
            process.send_signal(chance.choice(SIGNALS))
            kills += 1
        assert process.wait(400) in (0, 130, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)
    for path, expected in zip(folders, whole, strict=True):
        assert untimed(path) == untimed(expected)
        assert not list(path.glob("*.part"))
    print(f"\n{kills} kills: {len(folders)} runs complete and bit-identical")
