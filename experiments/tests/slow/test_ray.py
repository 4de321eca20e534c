"""Sweeps on a local Ray cluster of two workers; a run under torchrun.

Run by `make test-scale`.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from catlog_experiments import Optimisation, folder_for, records
from catlog_experiments.cli.main import main
from catlog_experiments.run_folder import Folder
from catlog_experiments.sweep import grid, sweep
from catlog.functions import Mapped
from driver import untimed

ray = pytest.importorskip("ray")

SMALL = Optimisation(iterations=300, every=20, variables=20)
GRID = grid(SMALL, ["estimator=IndeCateR,RLOO-S,GS-S", "seed=0,1,2,3,4,5,6,7"])
LONG = replace(SMALL, iterations=200_000, every=200)
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """A cluster of two workers, which can import this module. Sweeps join it."""
    folders = (*Path(__file__).parents[:2], os.environ.get("PYTHONPATH", ""))
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, folders))
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()


def metrics(config: Any, root: Path) -> list[dict[str, Any]]:
    return untimed(Folder(folder_for(config, root)))


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("local")
    assert sweep(GRID, root) == []
    return root


def test_ray_gives_the_metrics_of_the_local_engine(local: Path, tmp_path: Path) -> None:
    assert len(GRID) == 24
    assert sweep(GRID, tmp_path, engine="ray", jobs=2) == []
    processes = set()
    for config in GRID:
        assert metrics(config, tmp_path) == metrics(config, local)
        (session,) = Folder(folder_for(config, tmp_path)).sessions()
        processes.add(session["process"])
    assert os.getpid() not in processes
    assert len(processes) >= 2


def test_a_killed_worker_is_replaced(local: Path, tmp_path: Path) -> None:
    """kill -9 of a run with a checkpoint: it is resumed, all 24 finish, and none runs twice."""
    killed: list[tuple[Path, int]] = []

    def kill_one() -> None:
        done = sum(Folder(folder_for(config, tmp_path)).finished() for config in configs)
        for config in configs if done >= 6 and not killed else []:
            folder = Folder(folder_for(config, tmp_path))
            if (
                folder.sessions()
                and not folder.finished()
                and list(folder.path.glob("checkpoint-*.sha256"))
            ):
                os.kill(folder.sessions()[-1]["process"], signal.SIGKILL)
                killed.append((folder.path, done))
                return

    configs = [
        replace(config, iterations=1000) if config.estimator == "IndeCateR" else config
        for config in GRID
    ]
    assert (
        sweep(configs, tmp_path, engine="ray", jobs=2, checkpoint_every=0.0, watch=kill_one) == []
    )
    ((path, done),) = killed
    assert 6 <= done < 24
    for config in configs:
        folder = Folder(folder_for(config, tmp_path))
        assert folder.finished()
        assert [row["iteration"] for row in folder.metrics()] == list(
            range(0, config.iterations + 1, 20)
        )
        sessions = folder.sessions()
        assert len(sessions) == (2 if folder.path == path else 1)
        if folder.path == path:
            assert sessions[1]["iteration"] > 0
            assert sessions[1]["process"] != sessions[0]["process"]
        if config.estimator != "IndeCateR":
            assert metrics(config, tmp_path) == metrics(config, local)
    whole = next(config for config in configs if folder_for(config, tmp_path) == path)
    assert sweep([whole], tmp_path / "again") == []
    assert metrics(whole, tmp_path) == metrics(whole, tmp_path / "again")


def test_a_killed_process_of_a_local_sweep_is_replaced(tmp_path: Path) -> None:
    """Its run is resumed in a new process, and the other ones are not affected."""
    killed: list[int] = []

    def kill_one() -> None:
        for config in configs if not killed else []:
            folder = Folder(folder_for(config, tmp_path))
            if not folder.finished() and list(folder.path.glob("checkpoint-*.sha256")):
                killed.append(folder.sessions()[-1]["process"])
                os.kill(killed[0], signal.SIGKILL)
                return

    configs = grid(replace(SMALL, iterations=4000), ["seed=0,1,2,3"])
    assert sweep(configs, tmp_path, jobs=2, checkpoint_every=0.0, watch=kill_one) == []
    assert killed
    for config in configs:
        rows = Folder(folder_for(config, tmp_path)).metrics()
        assert [row["iteration"] for row in rows] == list(range(0, config.iterations + 1, 20))
    sessions = [
        session for config in configs for session in Folder(folder_for(config, tmp_path)).sessions()
    ]
    assert killed[0] in {session["process"] for session in sessions}
    assert len(sessions) == 5


def test_a_run_that_always_dies_is_reported(tmp_path: Path) -> None:
    """The others finish."""

    def kill() -> None:
        for session in Folder(folder_for(LONG, tmp_path)).sessions()[-1:]:
            if os.path.exists(f"/proc/{session['process']}"):
                os.kill(session["process"], signal.SIGKILL)

    (problem,) = sweep([LONG, *GRID[:2]], tmp_path, engine="ray", retries=1, watch=kill)
    assert "its process died" in problem
    assert str(folder_for(LONG, tmp_path)) in problem
    assert all(Folder(folder_for(config, tmp_path)).finished() for config in GRID[:2])
    assert len(Folder(folder_for(LONG, tmp_path)).sessions()) == 2


def test_two_sweeps_at_once_run_nothing_twice(tmp_path: Path) -> None:
    """The lock of the folder excludes the second one."""
    with Folder(folder_for(SMALL, tmp_path)).locked():
        (problem,) = sweep([SMALL], tmp_path, engine="ray")
    assert "another process" in problem
    assert sweep([SMALL], tmp_path, engine="ray") == []


def test_a_missing_gpu_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no GPU"):
        sweep([SMALL], tmp_path, engine="ray", gpus_per_run=0.25)


def test_the_command_writes_one_table_and_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--engine", "ray", "--iterations", "40", "--every", "20", "--grid", "seed=0,1,2"]
    files = ["--root", str(tmp_path), "--report", str(tmp_path / "report.html")]
    assert main(["sweep", "optimisation", *flags, *files]) == 0
    rows = records.read(tmp_path / "optimisation.csv")
    assert [(row["seed"], row["iteration"]) for row in rows] == [
        (seed, i) for seed in range(3) for i in (0, 20, 40)
    ]
    assert "3 of 3 done" in capsys.readouterr().out
    assert "<html" in (tmp_path / "report.html").read_text(encoding="utf-8")


def started(command: list[str], until: Any) -> subprocess.Popen[bytes]:
    """Start a command and wait for a condition."""
    process = subprocess.Popen(
        command,
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    limit = time.monotonic() + 120
    while not until():
        assert process.poll() is None, f"it ended too soon, with {process.returncode}"
        assert time.monotonic() < limit
        time.sleep(0.05)
    return process


def test_ctrl_c_leaves_runs_that_resume_exactly(tmp_path: Path) -> None:
    """In a new cluster. The whole process group gets the signal, as from a terminal."""
    configs = grid(replace(SMALL, iterations=3000), ["seed=0,1"])
    flags = "--iterations 3000 --every 20 --variables 20 --grid seed=0,1 --engine ray --jobs 2"
    run = [sys.executable, "-m", "catlog_experiments", "sweep", "optimisation"]
    command = [*run, *flags.split(), "--root", str(tmp_path)]
    folders = [Folder(folder_for(config, tmp_path)) for config in configs]
    process = started(command, lambda: all(len(folder.metrics()) > 5 for folder in folders))
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(90) == 130
    for folder in folders:
        assert not folder.finished()
        assert list(folder.path.glob("checkpoint-*.sha256"))
    assert sweep(configs, tmp_path, engine="ray") == []
    assert sweep(configs, tmp_path / "whole") == []
    for config, folder in zip(configs, folders, strict=True):
        assert metrics(config, tmp_path) == metrics(config, tmp_path / "whole")
        assert [session["iteration"] > 0 for session in folder.sessions()] == [False, True]


from catlog.functions import Mapped
def torchrun(ranks: int, *flags: str) -> list[str]:
    launch = f"-m torch.distributed.run --standalone --nproc-per-node {ranks}"
    launch += " -m catlog_experiments run dvae"
    settings = "--variables 4 --batch 40 --every 5 --estimator RLOO-S"
    return [sys.executable, *launch.split(), *settings.split(), *flags]


def test_a_run_of_two_ranks_is_resumed_by_one(tmp_path: Path) -> None:
    settings = "--samples 2 --test-samples 1 --gradient-repeats 0 --epochs 2"
    flags = [*settings.split(), "--folder", str(tmp_path / "run")]
    folder = Folder(tmp_path / "run")
    process = started(torchrun(2, *flags), lambda: len(folder.metrics()) > 3)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) != 0
    assert not folder.finished()
    assert list(folder.path.glob("checkpoint-*.sha256"))
    logged = len(folder.metrics())
    resume = torchrun(1, *flags, "--resume")
    subprocess.run(resume, env=ENVIRONMENT, capture_output=True, check=True)
    assert folder.finished()
    assert [session["ranks"] for session in folder.sessions()] == [2, 1]
    assert folder.sessions()[1]["iteration"] > 0
    rows = folder.metrics()
    assert len(rows) > logged
    assert rows[-1]["test"] < rows[0]["test"]
