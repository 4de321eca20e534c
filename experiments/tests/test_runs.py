"""Runs: they resume exactly, whatever was killed, damaged, lost, full or started twice."""

import errno
import json
import os
import re
import signal
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
    records,
)  # fmt: skip
from catlog_experiments.cli import main
from catlog_experiments.files import write_atomically
from catlog_experiments.run_folder import Folder
from runs import CutError, cut_at, starts, untimed

CONFIG = Optimisation(iterations=40, variables=5)
STEP = "catlog_experiments.optimisation.OptimisationTask.step"
SMALL: dict[str, Any] = {
    "gradients": Gradients(repeats=40, together=10, variables=4, estimator="RLOO", samples=5),
    "optimisation": CONFIG,
    "dvae": DVAE(
        epochs=1, every=2, variables=4, batch=1000, estimator="GS-S", test_samples=1,
        gradient_repeats=2,
    ),
    "addition": Addition(digits=2, epochs=1, batch=200, every=5, samples=2),
    "programs": Programs(digits=2, sequences=40, epochs=1, every=2, value_samples=4),
    "a protocol": DVAE(
        protocol="bernoulli", models=2, variables=3, batch=1000, epochs=1, every=2,
        test_samples=1, estimator="DoubleCV",
    ),
    "a learner": Gradients(repeats=40, together=10, variables=4, estimator="NVIL", samples=4),
}  # fmt: skip


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


# --- a resumed run equals an uninterrupted one (slow/test_kills.py kills processes)


@pytest.mark.parametrize(
    ("name", "number"),
    [("optimisation", signal.SIGTERM), *((name, signal.SIGINT) for name in SMALL)],
)
def test_a_signal_leaves_a_run_that_resumes_exactly(
    name: str, number: signal.Signals, whole: Callable[[str], Path], tmp_path: Path
) -> None:
    rows, middle = untimed(whole(name)), SMALL[name].task().iterations // 2

    def watch(done: int, total: int, row: object) -> None:
        if done == middle:
            os.kill(os.getpid(), number)

    with pytest.raises(KeyboardInterrupt):
        execute(SMALL[name], tmp_path, watch=watch)
    execute(SMALL[name], tmp_path, resume=True)
    assert len(rows) >= 2
    assert untimed(tmp_path) == rows
    assert starts(tmp_path) == [0, middle + 1]


# --- other runs, and other starts of this one


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


def test_a_failed_start_does_not_block_the_same_command(tmp_path: Path) -> None:
    for setting in ({"estimator": "Nonsense"}, {"options": ("sampling=Nonsense",)}):
        with pytest.raises(ValueError, match="Nonsense"):
            execute(replace(CONFIG, **setting), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(STEP, Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            execute(CONFIG, tmp_path / "run")
    assert execute(CONFIG, tmp_path / "run")["iteration"] == 40


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


def test_a_full_disk_is_explained(
    cut: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A real ENOSPC: the metrics go to /dev/full."""
    (cut / "metrics.jsonl").rename(tmp_path / "safe")
    (cut / "metrics.jsonl").symlink_to("/dev/full")
    command = ["run", "optimisation", "--iterations", "40", "--variables", "5", "--resume"]
    assert main([*command, "--folder", str(cut)]) == 2
    assert "No space left on device. Free some space" in " ".join(capsys.readouterr().err.split())
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
    with pytest.raises(type(error)):
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
    (session,), rows = Folder(whole("addition")).sessions(), Folder(whole("addition")).rows()
    assert rows[-1]["seconds"] > rows[0]["seconds"] == 0
    assert session["config"] == json.loads(json.dumps(SMALL["addition"].record()))
    assert session["torch"] == torch.__version__
    assert session.keys() >= {"catlog", "python", "device", "commit", "command", "host", "began"}


def test_metrics_are_strict_json(cut: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = {"value": float("nan"), "other": 1.0}
    monkeypatch.setattr(STEP.replace("step", "measure"), lambda *_: measured)
    last = execute(CONFIG, cut, resume=True)
    assert (last["value"], last["other"]) == (None, 1.0)
    assert "NaN" not in (cut / "metrics.jsonl").read_text(encoding="utf-8")
