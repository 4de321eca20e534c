"""Runs: they resume exactly, whatever was killed, damaged, lost, full or started twice."""

import errno
import json
import os
import re
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from catlog_experiments import (
    DVAE,
    Addition,
    Gradients,
    Optimisation,
    Programs,
    execute,
    folder_for,
    records,
)
from catlog_experiments.files import write_atomically
from catlog_experiments.run_folder import Folder
from runs import CutError, cut_at, started, starts, untimed

CONFIG = Optimisation(iterations=40, variables=5)
STEP = "catlog_experiments.optimisation.OptimisationTask.step"
TINY = DVAE(epochs=1, every=2, variables=4, batch=1000, estimator="GS-S", test_samples=1)
SMALL: dict[str, Any] = {
    "gradients": Gradients(repeats=40, together=10, variables=4, estimator="RLOO", samples=5),
    "optimisation": CONFIG,
    "dvae": replace(TINY, gradient_repeats=2),
    "addition": Addition(
        digits=2, epochs=1, batch=200, every=5, estimator="IndeCateR-D", samples=2
    ),
    "programs": Programs(digits=2, sequences=40, epochs=1, every=2, value_samples=4),
    "a protocol": DVAE(
        protocol="bernoulli", models=2, variables=3, batch=1000, epochs=1, every=2,
        test_samples=1, estimator="DoubleCV",
    ),
    "a learner": Gradients(repeats=40, together=10, variables=4, estimator="NVIL", samples=4),
}  # fmt: skip
# A longer run continues a shorter one.
LENGTHS: dict[str, dict[str, int]] = {
    "gradients": {"repeats": 60},
    # 43 is no multiple of 5: the last logged point of the short run is none of the long one
    "optimisation": {"iterations": 43},
    "addition": {"epochs": 2},
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of an uninterrupted run, which runs once for all tests."""

    @cache
    def folder(name: str) -> Path:
        path: Path = tmp_path_factory.mktemp("whole") / name
        execute(SMALL[name], path)
        return path

    return folder


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    """A run that was cut after 30 of its 40 iterations, with a checkpoint."""
    with pytest.raises(CutError):
        execute(CONFIG, tmp_path / "cut", checkpoint_every=0, watch=cut_at(30))
    return tmp_path / "cut"


# --- a resumed run equals an uninterrupted one


@pytest.mark.parametrize("name", SMALL)
def test_a_cut_run_resumes_exactly(name: str, whole: Callable[[str], Path], tmp_path: Path) -> None:
    rows = untimed(whole(name))
    assert len(rows) >= 2
    middle = rows[-1]["iteration"] // 2
    with pytest.raises(CutError):
        execute(SMALL[name], tmp_path, checkpoint_every=0, watch=cut_at(middle))
    execute(SMALL[name], tmp_path, resume=True)
    assert untimed(tmp_path) == rows


def test_kill_9_then_resume_is_bit_identical(tmp_path: Path) -> None:
    """More instants and experiments: slow/test_kills.py."""
    flags = ["run", "optimisation", "--iterations", "1500", "--every", "20", "--variables", "50"]
    config = Optimisation(iterations=1500, every=20, variables=50)
    process = started(*flags, "--checkpoint-every", "0.1", "--folder", str(tmp_path / "broken"))
    while not (tmp_path / "broken" / "checkpoint.pt").exists():
        assert process.poll() is None, "the run ended before it was killed"
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert Folder(tmp_path / "broken").completed() is None
    execute(config, tmp_path / "broken", resume=True)
    execute(config, tmp_path / "whole")
    assert untimed(tmp_path / "broken") == untimed(tmp_path / "whole")
    assert starts(tmp_path / "broken")[1] > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_run_that_resumes_exactly(
    number: signal.Signals,
    whole: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It comes between two logged points."""
    step = type(CONFIG.task()).step

    def interrupted(task: Any, i: int) -> None:
        if i == 17:
            os.kill(os.getpid(), number)
        step(task, i)

    with monkeypatch.context() as patch:
        patch.setattr(STEP, interrupted)
        with pytest.raises(KeyboardInterrupt):
            execute(CONFIG, tmp_path)
    execute(CONFIG, tmp_path, resume=True)
    assert starts(tmp_path) == [0, 18]
    assert untimed(tmp_path) == untimed(whole("optimisation"))


@pytest.mark.parametrize("name", LENGTHS)
def test_an_extended_run_equals_a_long_one(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    short = SMALL[name]
    long = replace(short, **LENGTHS[name])
    assert folder_for(long) == folder_for(short)
    execute(long, tmp_path / "long")
    execute(short, tmp_path / "run")
    last = execute(long, tmp_path / "run", resume=True)
    ((length, value),) = LENGTHS[name].items()
    lengths = f"--{length} {getattr(short, length)} to {value}"
    assert caplog.messages == [f"Extends {tmp_path}/run from {lengths}."]
    assert untimed(tmp_path / "run") == untimed(tmp_path / "long")
    assert [start > 0 for start in starts(tmp_path / "run")] == [False, True]
    assert execute(long, tmp_path / "run", resume=True) == last
    with pytest.raises(ValueError, match=f"its {length} differ.*not shortened"):
        execute(short, tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("short", "change"),
    [
        (Gradients(repeats=25, together=10, variables=3), {"repeats": 40}),
        (Programs(digits=1, sequences=20, epochs=1), {"epochs": 2}),
    ],
)
def test_a_run_whose_steps_depend_on_its_length_is_not_extended(
    short: Any, change: dict[str, int], tmp_path: Path
) -> None:
    long = replace(short, **change)
    assert folder_for(short) != folder_for(long)
    execute(short, tmp_path)
    with pytest.raises(ValueError, match=f"another run.*{short.length} differ"):
        execute(long, tmp_path, resume=True)
    assert Folder(tmp_path).completed(short.record())


# --- other runs, and other starts of this one


def test_another_run_in_the_folder_is_not_touched(tmp_path: Path) -> None:
    execute(CONFIG, tmp_path)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(ValueError, match="--resume"):
        execute(CONFIG, tmp_path)
    with pytest.raises(ValueError, match="seed differ"):
        execute(replace(CONFIG, seed=3), tmp_path, resume=True)
    assert execute(CONFIG, tmp_path, resume=True)["iteration"] == 40  # complete: not run again
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    assert starts(tmp_path) == [0]


def test_of_simultaneous_starts_one_runs(tmp_path: Path) -> None:
    """One thread runs, the others get an error. The lock also excludes processes."""

    def start(_: int) -> str:
        try:
            return f"ran {execute(CONFIG, tmp_path)['iteration']} steps"
        except ValueError as error:
            return "refused" if re.search("--resume|another process", str(error)) else str(error)

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(start, range(4))) == ["ran 40 steps", *["refused"] * 3]
    assert starts(tmp_path) == [0]


def test_the_lock_is_taken_before_anything_is_written(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with Folder(run).locked():
        inode = (run / "run.lock").stat().st_ino
        with pytest.raises(ValueError, match="another process"), Folder(run).locked(patience=0.1):
            pass
        assert [path.name for path in run.iterdir()] == ["run.lock"]
    execute(CONFIG, run)
    assert (run / "run.lock").stat().st_ino == inode  # never replaced, so it excludes everybody


@pytest.mark.parametrize("option", ["estimator", "options"])
def test_a_failed_start_does_not_block_the_same_command(option: str, tmp_path: Path) -> None:
    wrong: Any = {"estimator": "Nonsense", "options": ("sampling=Nonsense",)}
    for _ in range(2):
        with pytest.raises(ValueError, match="Nonsense"):
            execute(replace(CONFIG, **{option: wrong[option]}), tmp_path / "run")
        assert not (tmp_path / "run").exists()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(STEP, Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            execute(CONFIG, tmp_path / "run")
    assert execute(CONFIG, tmp_path / "run")["iteration"] == 40


@pytest.mark.parametrize("name", ["../../x", "/x", "..", "a/b"])
def test_no_estimator_name_leaves_the_root(name: str, tmp_path: Path) -> None:
    folder = folder_for(replace(CONFIG, estimator=name), tmp_path / "root")
    assert folder.resolve().parent == tmp_path / "root" / "optimisation"


# --- damage


def flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("damage", [flip, lambda content: content[:999], lambda content: b""])
def test_a_run_with_a_damaged_checkpoint_starts_again(
    damage: Any, cut: Path, whole: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    file = cut / "checkpoint.pt"
    file.write_bytes(damage(file.read_bytes()))
    execute(CONFIG, cut, resume=True)
    assert caplog.messages == [f"{file} is damaged, so the run starts from scratch."]
    assert starts(cut) == [0, 0]
    assert untimed(cut) == untimed(whole("optimisation"))


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda content: content[:-20],
    "empty": lambda content: b"",
    "not text": lambda content: content + b"\xff\x00\n",
    "not a row": lambda content: content + b"[1]\n",
    "nested": lambda content: b"[" * 100_000 + b"\n" + content,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["metrics.jsonl", "sessions.jsonl"])
def test_damaged_lines_are_repaired_from_a_checkpoint(
    name: str, damage: str, cut: Path, whole: Callable[[str], Path]
) -> None:
    (cut / name).write_bytes(DAMAGES[damage]((cut / name).read_bytes()))
    with pytest.raises(ValueError, match="seed differ"):
        execute(replace(CONFIG, seed=7), cut, resume=True)
    execute(CONFIG, cut, resume=True)
    assert untimed(cut) == untimed(whole("optimisation"))
    assert records.read(cut)[-1]["variables"] == 5


def test_an_unidentified_run_is_refused(cut: Path) -> None:
    (cut / "sessions.jsonl").write_text('{"config"', encoding="utf-8")
    (cut / "checkpoint.pt").write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"sessions\.jsonl is lost or damaged"):
        execute(CONFIG, cut, resume=True)
    with pytest.raises(ValueError, match=r"sessions\.jsonl is lost or damaged"):
        records.read(cut)


# --- full disks


def test_a_full_disk_is_explained(cut: Path, tmp_path: Path) -> None:
    """A real ENOSPC: the metrics go to /dev/full."""
    (cut / "metrics.jsonl").rename(tmp_path / "safe")
    (cut / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"disk is full.*--resume"):
        Folder(cut).log({"iteration": 35})
    (cut / "metrics.jsonl").unlink()
    (tmp_path / "safe").rename(cut / "metrics.jsonl")
    (cut / "checkpoint.pt.123.part").write_bytes(b"half")  # left by a killed process
    assert execute(CONFIG, cut, resume=True)["iteration"] == 40
    assert not list(cut.glob("*.part"))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left")])
def test_a_file_is_written_whole_or_not_at_all(
    error: BaseException, cut: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (cut / "checkpoint.pt").read_bytes()
    monkeypatch.setattr(os, "fsync", Mock(side_effect=error))
    with pytest.raises(type(error), match="disk is full" if error.args else None):
        Folder(cut).save(35, {})
    assert (cut / "checkpoint.pt").read_bytes() == before
    assert not list(cut.glob("*.part"))


def test_a_link_stays_a_link_and_a_device_a_device(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_atomically(tmp_path / "link", "content")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text(encoding="utf-8") == "content"
    write_atomically("/dev/null", "content")
    assert not Path("/dev/null").is_file()


# --- what is recorded


def test_settings_and_circumstances_are_recorded(whole: Callable[[str], Path]) -> None:
    (session,) = Folder(whole("addition")).sessions()
    assert session["config"] == json.loads(json.dumps(SMALL["addition"].record()))
    assert session["torch"] == torch.__version__
    assert session.keys() >= {"catlog", "python", "device", "commit", "command", "host", "began"}


def test_metrics_are_strict_json(cut: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = {"value": float("nan"), "other": 1.0}
    monkeypatch.setattr(STEP.replace("step", "measure"), lambda *_: measured)
    last = execute(CONFIG, cut, resume=True)
    assert (last["value"], last["other"]) == (None, 1.0)
    assert "NaN" not in (cut / "metrics.jsonl").read_text(encoding="utf-8")
