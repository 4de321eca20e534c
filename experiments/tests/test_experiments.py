"""Experiments: runs that resume exactly, damaged files, full disks, sweeps, the command line."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributions import Categorical, Independent, OneHotCategorical

import catlog
from catlog_experiments import (
    DVAE,
    EXPERIMENTS,
    Addition,
    Gradients,
    Optimisation,
    Programs,
    execute,
    folder_for,
    records,
)
from catlog_experiments.__main__ import main
from catlog_experiments.run_folder import Folder
from catlog_experiments.sweep import grid, sweep
from cutting import CutError, cut_at
from driver import untimed

TINY = DVAE(epochs=1, every=2, variables=4, batch=2000, gradient_repeats=0, test_samples=1)
SMALL: dict[str, Any] = {
    "gradients": Gradients(repeats=40, together=10, variables=4, estimator="RLOO", samples=5),
    "optimisation": Optimisation(iterations=40, variables=20),
    "dvae": replace(TINY, every=4, batch=400, estimator="GS-S", gradient_repeats=2),
    "addition": Addition(digits=2, epochs=1, every=20, estimator="IndeCateR-D", samples=2),
    "programs": Programs(digits=2, sequences=40, epochs=1, every=2, value_samples=4),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of an uninterrupted run, which runs once for all tests."""

    @cache
    def folder(name: str) -> Path:
        path: Path = tmp_path_factory.mktemp(name)
        execute(SMALL[name], path)
        return path

    return folder


@pytest.mark.parametrize("name", SMALL)
def test_the_same_seed_gives_the_same_metrics(
    name: str, whole: Callable[[str], Path], tmp_path: Path
) -> None:
    rows = untimed(Folder(whole(name)))
    assert len(rows) >= 2
    execute(SMALL[name], tmp_path / "same")
    assert untimed(Folder(tmp_path / "same")) == rows
    execute(replace(SMALL[name], seed=1), tmp_path / "other")
    assert untimed(Folder(tmp_path / "other")) != rows


@pytest.mark.parametrize("name", SMALL)
def test_a_cut_run_resumes_exactly(name: str, whole: Callable[[str], Path], tmp_path: Path) -> None:
    rows = untimed(Folder(whole(name)))
    middle = rows[-1]["iteration"] // 2 if name != "gradients" else 4
    with pytest.raises(CutError):
        execute(SMALL[name], tmp_path, checkpoint_every=0, watch=cut_at(middle))
    execute(SMALL[name], tmp_path, resume=True)
    assert untimed(Folder(tmp_path)) == rows


def test_an_estimator_that_learns_resumes_exactly() -> None:
    """Its parameters and its optimiser's state are part of the checkpoint."""
    config = replace(SMALL["gradients"], estimator="NVIL", samples=4)
    task = config.task()
    task.step(0)
    task.step(1)
    copy = config.task()
    copy.load_state_dict(deepcopy(task.state_dict()))
    for resumed in (task, copy):
        torch.manual_seed(1)
        resumed.step(2)
        torch.manual_seed(2)
        resumed.step(3)
    assert task.measure(4) == copy.measure(4)
    assert torch.equal(next(task.E.parameters()), next(copy.E.parameters()))


KILLED = {
    "optimisation": ["--iterations", "1500", "--every", "20", "--variables", "50"],
    "addition": ["--digits", "2", "--epochs", "1", "--every", "25", "--samples", "2"],
}


@pytest.mark.parametrize("name", KILLED)
def test_kill_9_then_resume_is_bit_identical(name: str, tmp_path: Path) -> None:
    """The kill comes at an arbitrary step; the metrics equal those of an uninterrupted run."""
    flags = [name, *KILLED[name], "--checkpoint-every", "0.1"]
    command = [sys.executable, "-m", "catlog_experiments", "run", *flags, "--folder"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    quiet: dict[str, Any] = {"env": environment, "stdout": subprocess.DEVNULL}
    broken = tmp_path / "broken"
    process = subprocess.Popen([*command, str(broken)], **quiet)
    while not list(broken.glob("checkpoint-*.sha256")):
        assert process.poll() is None, "the run ended before it was killed"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not Folder(broken).finished()
    subprocess.run([*command, str(broken), "--resume"], **quiet, check=True)
    subprocess.run([*command, str(tmp_path / "whole")], **quiet, check=True)
    whole = untimed(Folder(tmp_path / "whole"))
    assert untimed(Folder(broken)) == whole
    assert whole[-1]["iteration"] > 100


def test_ctrl_c_leaves_a_run_that_resumes_exactly(
    whole: Callable[[str], Path], tmp_path: Path
) -> None:
    """The signal comes between two logged points."""
    config = SMALL["optimisation"]
    task_step = type(config.task()).step

    def interrupted(task: Any, i: int) -> None:
        if i == 17:
            os.kill(os.getpid(), signal.SIGINT)
        task_step(task, i)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("catlog_experiments.optimisation.OptimisationTask.step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            execute(config, tmp_path)
    assert [path.name for path in tmp_path.glob("*.pt")] == ["checkpoint-000000018.pt"]
    execute(config, tmp_path, resume=True)
    assert untimed(Folder(tmp_path)) == untimed(Folder(whole("optimisation")))


def test_another_run_in_the_folder_is_not_touched(tmp_path: Path) -> None:
    config = SMALL["gradients"]
    execute(config, tmp_path)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(ValueError, match="--resume"):
        execute(config, tmp_path)
    with pytest.raises(ValueError, match="seed differ"):
        execute(replace(config, seed=3), tmp_path, resume=True)
    assert execute(config, tmp_path, resume=True)["estimates"] == 40  # complete: not run again
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_config_and_provenance_are_written(whole: Callable[[str], Path], tmp_path: Path) -> None:
    run = whole("addition")
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    assert config["experiment"] == "addition"
    assert config["digits"] == 2
    provenance = json.loads((run / "provenance.json").read_text(encoding="utf-8"))
    assert provenance["torch"] == torch.__version__
    assert provenance.keys() >= {"catlog", "python", "device", "commit", "command", "started"}
    rows = records.read(run)
    records.write(rows, tmp_path / "rows.csv")
    rows_of_csv = records.read(tmp_path / "rows.csv")
    assert len(rows_of_csv) == len(rows)
    assert rows_of_csv[-1]["accuracy"] == pytest.approx(rows[-1]["accuracy"], rel=1e-5)
    assert rows_of_csv[-1]["estimator"] == "IndeCateR-D"


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_sweep_skips_complete_runs_and_reports_failed_ones(jobs: int, tmp_path: Path) -> None:
    configs = grid(SMALL["addition"], ["batch=400,10000", "seed=0,1"])
    problems = sweep(configs, tmp_path, jobs=jobs)
    assert len(problems) == 2
    assert all("--batch must be between 1 and the" in problem for problem in problems)
    assert len(list((tmp_path / "addition").iterdir())) == 2
    done = [folder_for(config, tmp_path) for config in configs[:2]]
    times = [(path / "summary.json").stat().st_mtime_ns for path in done]
    assert sweep(configs[:2], tmp_path, jobs=jobs) == []
    assert times == [(path / "summary.json").stat().st_mtime_ns for path in done]


@pytest.mark.parametrize(
    "name", ["IndeCateR", "IndeCateR-Taylor", "RLOO-F", "RLOO-S", "GS-F", "GS-S"]
)
def test_unbiased_estimators_optimise(name: str, tmp_path: Path) -> None:
    """All start near 0.25, and the unbiased ones climb."""
    execute(Optimisation(estimator=name, iterations=30, every=30), tmp_path)
    first, last = Folder(tmp_path).metrics()
    assert first["value"] == pytest.approx(0.25, abs=3e-4)
    if name in ("IndeCateR", "RLOO-F"):
        assert last["value"] > 0.2504


def test_exact_gradient_of_the_synthetic_problems_is_right() -> None:
    """The multilinear shortcut agrees with enumeration."""
    for function in ("additive", "pairwise"):
        for name in ("IndeCateR", "GS"):
            task = Gradients(variables=3, categories=4, function=function, estimator=name).task()
            logits = task.logits.double().requires_grad_()
            task.f.double()
            cls = OneHotCategorical if name == "GS" else Categorical
            value = catlog.Exact()(task.f, Independent(cls(logits=logits), 1))
            (gradient,) = torch.autograd.grad(value, logits)
            torch.testing.assert_close(gradient, task.exact, rtol=1e-6, atol=1e-6)


def test_a_relaxation_without_hard_draws_has_no_hard_draws() -> None:
    soft = Gradients(estimator="GumbelSoftmax", options=("hard=False",)).task()
    assert soft.E.hard is False
    soft.step(0)


def test_published_update_moves_all_by_the_first() -> None:
    task = replace(SMALL["optimisation"], update="published").task()
    before = task.logits.detach().clone()
    task.step(0)
    moved = task.logits.detach() - before
    torch.testing.assert_close(moved, moved[:1].expand_as(moved))


SAMPLERS = [name for name in catlog.estimators.ESTIMATORS if name != "Exact"]


@pytest.mark.parametrize("name", SAMPLERS)
def test_any_estimator_trains_by_name(name: str, tmp_path: Path) -> None:
    execute(replace(TINY, estimator=name), tmp_path / "dvae")
    rows = Folder(tmp_path / "dvae").metrics()
    assert rows[-1]["train"] < rows[0]["test"]
    optimisation = Optimisation(iterations=4, variables=4, every=4, estimator=name)
    if name == "VIMCO":
        with pytest.raises(ValueError, match="log-weights"):
            execute(optimisation, tmp_path / "optimisation")
    else:
        execute(optimisation, tmp_path / "optimisation")
        assert Folder(tmp_path / "optimisation").finished()


def test_vimco_bounds_better_than_the_elbo() -> None:
    """With more draws the importance-weighted bound is tighter, and with one it is the ELBO."""
    torch.manual_seed(0)
    task = DVAE(variables=8, estimator="VIMCO", samples=64, gradient_repeats=0).task()
    images = task.train[:50]
    with torch.no_grad():
        elbo = task.bound(images, catlog.RLOO(64), relaxed=False).mean()
        assert task.bound(images, task.E, relaxed=False).mean() < elbo


@pytest.mark.parametrize("reads", ["numbers", "one-hot"])
@pytest.mark.parametrize("name", ["IndeCateR", "IndeCateR-D", "RLOO-F", "GS-S"])
def test_a_categorical_dvae_trains(name: str, reads: str, tmp_path: Path) -> None:
    few = DVAE(epochs=1, every=4, variables=5, categories=4, batch=1000, gradient_repeats=0)
    samples = 3 if name == "RLOO-F" else None
    execute(replace(few, reads=reads, estimator=name, samples=samples), tmp_path)
    rows = Folder(tmp_path).metrics()
    assert rows[-1]["train"] < rows[0]["test"]


def test_divergence_agrees_with_torch() -> None:
    for categories in (2, 5):
        task = DVAE(variables=3, categories=categories, test_samples=1).task()
        logits = torch.randn(7, 3 if categories == 2 else 15)
        q = task.distribution(logits, relaxed=False)
        prior = task.distribution(torch.zeros_like(logits), relaxed=False)
        expected = torch.distributions.kl_divergence(q.base_dist, prior.base_dist).sum(-1)
        torch.testing.assert_close(task.divergence(logits), expected)


def test_addition_is_learned(tmp_path: Path) -> None:
    """Two digits, two passes over 2,000 sequences: well above chance (about 6 %)."""
    last = execute(Addition(digits=2, epochs=2, estimator="IndeCateR-D"), tmp_path)
    assert last["accuracy"] > 0.6


def test_addition_refuses_relaxations() -> None:
    with pytest.raises(ValueError, match="derivative"):
        Addition(estimator="GumbelSoftmax").task()


def test_commands_run_and_exit_with_their_codes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = ["run", "gradients", "--repeats", "20", "--variables", "3", "--folder", "one"]
    assert main(run) == 0
    assert "relative_variance" in capsys.readouterr().out
    assert main(run) == 2
    assert "--resume" in capsys.readouterr().err
    assert main([*run, "--resume"]) == 0
    assert main(["run", "gradients", "--estimator", "Nonsense"]) == 2
    assert "Nonsense" in capsys.readouterr().err
    axes = ["--grid", "estimator=IndeCateR,RLOO", "--grid", "seed=0,1"]
    assert main(["sweep", "gradients", *axes, "--repeats", "20", "--variables", "3"]) == 0
    assert main(["export", "runs", "one", "--output", "all.csv"]) == 0
    with (tmp_path / "all.csv").open(encoding="utf-8") as file:
        assert {row["estimator"] for row in csv.DictReader(file)} == {"IndeCateR", "RLOO"}
    assert main(["list"]) == 0
    output = capsys.readouterr().out
    assert all(name in output for name in EXPERIMENTS)
    assert main(["--version"]) == 0
    assert catlog.__version__ in capsys.readouterr().out
    assert main(["export", "nowhere"]) == 2


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_flag_has_help(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["run", name, "--help"])
    text = capsys.readouterr().out
    for field in fields(EXPERIMENTS[name]):
        flag = "--" + field.name.replace("_", "-")
        assert flag in text
        after = text.split(flag, 1)[1].split("(default")[0]
        assert len(after) > 15, f"{flag} has no help"


def test_the_gradient_is_clipped() -> None:
    def norm(clip: float | None) -> float:
        torch.manual_seed(0)
        task = Addition(digits=2, device="cpu", compile="no", clip=clip).task()
        task.step(0)
        return float(torch.stack([p.grad.norm() for p in task.network.parameters()]).norm())

    assert norm(None) > 0.1
    assert norm(0.1) == pytest.approx(0.1, rel=1e-4)
