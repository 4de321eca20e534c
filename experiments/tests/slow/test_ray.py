"""Sweeps on a local Ray cluster of two workers: `make test-scale`."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from catlog_experiments import Optimisation, folder_for, grid, sweep
from catlog_experiments.cli import main
from catlog_experiments.run_folder import Folder
from runs import started, starts, untimed

ray = pytest.importorskip("ray")

SMALL = Optimisation(iterations=300, every=20, variables=20)
GRID = grid(SMALL, ["estimator=IndeCateR,RLOO-S,GS-S", "seed=0,1,2,3"])


@dataclass(frozen=True, kw_only=True)
class Deadly(Optimisation):
    """A run whose process is killed, as by the out-of-memory killer."""

    def task(self) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """A cluster of two workers, which can import this module. Sweeps join it."""
    folders = (*Path(__file__).parents[:2], os.environ.get("PYTHONPATH", ""))
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, folders))
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()


def processes(configs: list[Any], root: Path) -> list[int]:
    """Return the process of every session."""
    folders = [Folder(folder_for(config, root)) for config in configs]
    return [session["process"] for folder in folders for session in folder.sessions()]


def test_ray_gives_the_numbers_of_this_process(tmp_path: Path) -> None:
    """Twelve runs: the first always dies and is retried; eleven are complete and were run once."""
    (problem,) = sweep([Deadly(seed=99), *GRID[1:]], tmp_path, jobs=2)
    assert "WorkerCrashedError" in problem
    assert "seed99" in problem
    assert sweep(GRID[1:], tmp_path / "whole") == []
    for config in GRID[1:]:
        path = folder_for(config, tmp_path)
        assert untimed(path) == untimed(folder_for(config, tmp_path / "whole"))
        assert starts(path) == [0]
    used = processes(GRID[1:], tmp_path)
    assert os.getpid() not in used
    assert len(set(used)) >= 2


def test_a_killed_run_resumes(tmp_path: Path) -> None:
    configs = grid(replace(SMALL, iterations=3000), ["seed=0,1,2"])
    killed: list[int] = []

    def kill_one() -> None:
        for config in configs if not killed else []:
            path = folder_for(config, tmp_path)
            if (path / "checkpoint.pt").exists() and Folder(path).completed() is None:
                killed.append(Folder(path).sessions()[-1]["process"])
                os.kill(killed[0], signal.SIGKILL)
                return

    assert sweep(configs, tmp_path, jobs=2, checkpoint_every=0.0, watch=kill_one) == []
    assert len(killed) == 1
    assert len(processes(configs, tmp_path)) == 4
    assert sweep(configs, tmp_path / "whole") == []
    for config in configs:
        whole = folder_for(config, tmp_path / "whole")
        assert untimed(folder_for(config, tmp_path)) == untimed(whole)


def test_a_missing_gpu_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--gpus-per-run must be at most 0, .*1 was given"):
        sweep(GRID, tmp_path, jobs=2, gpus_per_run=1.0)


def test_the_command_and_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command starts a cluster of its own. Interrupted runs save their states."""
    monkeypatch.chdir(tmp_path)
    flags = ["optimisation", "--every", "200", "--variables", "20", "--jobs", "2"]
    flags += ["--grid", "seed=0,1", "--iterations"]
    configs = grid(replace(SMALL, iterations=20_000, every=200), ["seed=0,1"])
    process = started("sweep", *flags, "20000")
    while not all(len(Folder(folder_for(config)).rows()) > 2 for config in configs):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130
    assert main(["sweep", *flags, "20000"]) == 0
    assert all(starts(folder_for(config))[1] >= 400 for config in configs)
