"""The folder of a run: simultaneous and failed starts, torn and lost files, changed versions."""

import errno
import json
import os
import re
import shutil
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
import torch

from catlog_experiments import Optimisation, execute, folder_for, records, run_folder
from catlog_experiments.environment import environment
from catlog_experiments.files.atomic import write_atomically
from catlog_experiments.files.cache import load_or_make
from catlog_experiments.run_folder import LOCK, Folder
from catlog_experiments.sweep_progress import SweepProgress
from cutting import CutError, cut_at
from driver import untimed

CONFIG = Optimisation(iterations=40, variables=5)


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    """A run that was cut after 30 of its 40 iterations, with checkpoints at 25 and 30."""
    with pytest.raises(CutError):
        execute(CONFIG, tmp_path / "cut", checkpoint_every=0, watch=cut_at(30))
    return tmp_path / "cut"


@pytest.fixture
def whole(tmp_path: Path) -> list[dict[str, Any]]:
    execute(CONFIG, tmp_path / "whole")
    return untimed(Folder(tmp_path / "whole"))


# --- the lock


def test_of_simultaneous_starts_one_runs(tmp_path: Path) -> None:
    """One thread writes, the others get an error. The lock also excludes processes."""
    for trial in range(10):
        path, barrier, outcomes = tmp_path / str(trial), threading.Barrier(8), list[str]()

        def start(
            path: Path = path, barrier: threading.Barrier = barrier, outcomes: list[str] = outcomes
        ) -> None:
            folder = Folder(path)
            barrier.wait()
            try:
                with folder.locked(patience=0.0):
                    folder.check_config({"seed": 0}, resume=False)
                    folder.write_config({"seed": 0})
                    folder.log({"iteration": 1})
                    time.sleep(0.05)
                outcomes.append("ran")
            except Exception as error:
                outcomes.append(f"{type(error).__name__}: {error}")

        threads = [threading.Thread(target=start) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        errors = [outcome for outcome in outcomes if outcome != "ran"]
        assert len(errors) == 7, outcomes
        for message in errors:
            assert message.startswith("ValueError"), outcomes
            assert "another process" in message or "--resume" in message, outcomes
        assert len(Folder(path).metrics()) == 1


def test_the_lock_is_taken_before_anything_is_written(tmp_path: Path) -> None:
    with Folder(tmp_path / "run").locked():
        with (
            pytest.raises(ValueError, match="another process"),
            Folder(tmp_path / "run").locked(patience=0.1),
        ):
            pass
        assert [path.name for path in (tmp_path / "run").iterdir()] == [LOCK]


def test_the_locked_file_is_never_replaced(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "run")
    with folder.locked():
        pass
    before = (folder.path / LOCK).stat().st_ino
    execute(CONFIG, folder.path)
    execute(CONFIG, folder.path, resume=True)
    assert (folder.path / LOCK).stat().st_ino == before


# --- starts that fail


@pytest.mark.parametrize(
    "config", [replace(CONFIG, estimator="Nonsense"), replace(CONFIG, options=("draws=sideways",))]
)
def test_a_failed_start_does_not_block_the_same_command(config: Any, tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match=r"Nonsense|sideways"):
            execute(config, tmp_path / "run")
    assert execute(CONFIG, tmp_path / "run")["iteration"] == 40  # another command runs as well


def test_a_run_that_failed_at_its_first_step_does_not_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = "catlog_experiments.optimisation.OptimisationTask.step"
    with monkeypatch.context() as patch:
        patch.setattr(step, Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            execute(CONFIG, tmp_path)
    assert execute(CONFIG, tmp_path)["iteration"] == 40
    with pytest.raises(ValueError, match="--resume"):
        execute(CONFIG, tmp_path)


@pytest.mark.parametrize("name", ["../../x", "/x", "..", "a/b"])
def test_no_estimator_name_leaves_the_root(name: str, tmp_path: Path) -> None:
    config, root = replace(CONFIG, estimator=name), tmp_path / "root" / "deep"
    assert folder_for(config, root).resolve().parent == (root / "optimisation").resolve()
    with pytest.raises(ValueError, match="is not known"):
        execute(config, folder_for(config, root))
    assert not list(tmp_path.iterdir())


# --- checkpoints


def test_a_run_with_damaged_checkpoints_starts_from_scratch(
    cut: Path, whole: list[dict[str, Any]]
) -> None:
    """Its new checkpoints are kept, and a second cut loses little."""
    for path in cut.glob("checkpoint-*.pt"):
        path.write_bytes(b"damaged")
    notes: list[str] = []
    with pytest.raises(CutError):
        execute(CONFIG, cut, resume=True, checkpoint_every=0, watch=cut_at(15), notify=notes.append)
    assert notes == [
        f"{cut} starts from scratch: checkpoint-000000030.pt is damaged, "
        "checkpoint-000000025.pt is damaged."
    ]
    assert sorted(path.name for path in cut.glob("checkpoint-*.pt")) == [
        "checkpoint-000000010.pt",
        "checkpoint-000000015.pt",
    ]
    execute(CONFIG, cut, resume=True)
    assert [session["iteration"] for session in Folder(cut).sessions()] == [0, 0, 15]
    assert untimed(Folder(cut)) == whole


@pytest.mark.parametrize(
    "damage", ["last checkpoint cut", "last checkpoint flipped", "all checkpoints cut", "no digest"]
)
def test_a_damaged_checkpoint_is_detected(
    damage: str, cut: Path, whole: list[dict[str, Any]]
) -> None:
    files = sorted(cut.glob("*.pt"))
    if damage == "no digest":
        files[-1].with_suffix(".sha256").unlink()
    for file in files if damage.startswith("all") else files[-1:]:
        content = bytearray(file.read_bytes())
        if damage.endswith("cut"):
            file.write_bytes(content[: len(content) // 2])
        elif damage.endswith("flipped"):
            content[len(content) // 2] ^= 1
            file.write_bytes(content)
    start, state = Folder(cut).restore()
    assert (start, state is None) == ((0, True) if damage.startswith("all") else (25, False))
    with pytest.warns(UserWarning, match=r"checkpoint-000000030\.pt is damaged"):
        execute(CONFIG, cut, resume=True)
    assert untimed(Folder(cut)) == whole


@pytest.mark.parametrize("keep", [0.97, 0.5, 0.0])
def test_after_truncated_metrics_an_older_checkpoint_is_used(
    keep: float, cut: Path, whole: list[dict[str, Any]]
) -> None:
    metrics = cut / "metrics.jsonl"
    content = metrics.read_bytes()
    metrics.write_bytes(content[: int(keep * len(content))])
    with pytest.warns(UserWarning, match=r"the metrics of checkpoint-000000030\.pt are lost"):
        execute(CONFIG, cut, resume=True)
    assert untimed(Folder(cut)) == whole


def test_full_disk(cut: Path, tmp_path: Path) -> None:
    """A real ENOSPC: the metrics go to /dev/full."""
    folder = Folder(cut)
    kept = folder.metrics()
    folder.metrics_path.rename(tmp_path / "safe")
    folder.metrics_path.symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"disk is full.*--resume"):
        folder.log({"iteration": 35})
    folder.metrics_path.unlink()
    (tmp_path / "safe").rename(folder.metrics_path)
    assert folder.metrics() == kept
    execute(CONFIG, cut, resume=True)
    assert folder.finished()


def test_a_checkpoint_that_does_not_fit_leaves_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(tmp_path)
    folder.checkpoint(5, {"x": torch.zeros(3)})
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left")))
        with pytest.raises(OSError, match="disk is full"):
            folder.checkpoint(10, {"x": torch.ones(3)})
    start, state = folder.restore()
    assert start == 5
    assert state is not None
    assert state["x"].sum() == 0
    assert not list(tmp_path.glob("*.part"))


def test_undamaged_checkpoints_are_kept(cut: Path) -> None:
    """After damage to the newest one, the next one must not replace the only good one."""
    (cut / "checkpoint-000000030.pt").write_bytes(b"damaged")
    folder = Folder(cut)
    assert folder.restore()[0] == 25
    folder.checkpoint(27, {})
    assert sorted(path.name for path in cut.glob("checkpoint-*.pt")) == [
        "checkpoint-000000025.pt",
        "checkpoint-000000027.pt",
    ]
    assert len(list(cut.glob("*.sha256"))) == 2


def test_a_checkpoint_without_its_metrics_is_removed(cut: Path) -> None:
    """Else it would seem to fit once a new session has logged as many lines."""
    folder = Folder(cut)
    lines = folder.metrics_path.read_bytes().splitlines(keepends=True)
    folder.metrics_path.write_bytes(b"".join(lines[:-1]))
    assert folder.restore()[0] == 25
    folder.log({"iteration": 30})
    assert Folder(cut).restore()[0] == 25


# --- lost and torn files


def test_a_checkpoint_is_not_used_for_another_seed(cut: Path, whole: list[dict[str, Any]]) -> None:
    """Without config.json, a run is identified by its sessions and checkpoints."""
    (cut / "config.json").unlink()
    for lost in ("sessions.jsonl", None):
        with pytest.raises(ValueError, match="seed differ"):
            execute(replace(CONFIG, seed=7), cut, resume=True)
        if lost is not None:
            (cut / lost).unlink()
    execute(CONFIG, cut, resume=True)
    assert untimed(Folder(cut)) == whole
    assert Folder(cut).sessions()[-1]["iteration"] == 30
    assert json.loads((cut / "config.json").read_bytes())["seed"] == 0


def test_an_unidentified_run_is_refused(cut: Path) -> None:
    """As written by old versions, whose sessions and checkpoints have no configuration."""
    (cut / "config.json").write_text('{"experiment"', encoding="utf-8")
    (cut / "sessions.jsonl").unlink()
    for path in cut.glob("checkpoint-*"):
        path.unlink()
    with pytest.raises(ValueError, match=r"config\.json is lost or damaged"):
        execute(CONFIG, cut, resume=True)


def test_a_checkpoint_of_another_run_is_skipped(cut: Path, tmp_path: Path) -> None:
    other_seed = replace(CONFIG, seed=1)
    with pytest.raises(CutError):
        execute(other_seed, tmp_path / "other", checkpoint_every=0, watch=cut_at(10))
    for path in cut.glob("checkpoint-*"):
        shutil.copy(path, tmp_path / "other")
    shutil.copy(cut / "metrics.jsonl", tmp_path / "other")
    notes: list[str] = []
    execute(other_seed, tmp_path / "other", resume=True, notify=notes.append)
    assert "checkpoint-000000030.pt is of another run" in notes[0]
    assert Folder(tmp_path / "other").sessions()[-1]["iteration"] == 10


@pytest.mark.parametrize(
    "torn", [b'{"began": "2026-01-01T', b"\x00\x00\n", b'["no", "dict"]\n', b'{"no": "session"}\n']
)
def test_a_torn_session_is_ignored(torn: bytes, cut: Path) -> None:
    """A torn line does not affect the lines after it, nor the progress of a sweep."""
    with (cut / "sessions.jsonl").open("ab") as file:
        file.write(torn)
    home = folder_for(CONFIG, cut.parent)
    home.parent.mkdir()
    cut.rename(home)
    assert [run.state for run in SweepProgress([CONFIG], home.parents[1]).runs()] == ["waiting"]
    execute(CONFIG, home, resume=True)
    assert [session["iteration"] for session in Folder(home).sessions()] == [0, 30]


@pytest.mark.parametrize("torn", [b"", b'{"iteration": 4', b"[]", b"\xff\xfe"])
def test_a_run_with_a_torn_summary_is_completed_again(
    torn: bytes, tmp_path: Path, whole: list[dict[str, Any]]
) -> None:
    """Its end is repeated, with the same numbers."""
    run = tmp_path / "whole"
    (run / "summary.json").write_bytes(torn)
    assert not Folder(run).finished()
    with pytest.raises(ValueError, match="--resume"):
        execute(CONFIG, run)
    assert execute(CONFIG, run, resume=True)["iteration"] == 40
    assert Folder(run).finished()
    assert untimed(Folder(run)) == whole


def test_a_run_with_torn_metrics_is_completed_again(
    tmp_path: Path, whole: list[dict[str, Any]]
) -> None:
    metrics = tmp_path / "whole" / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-20])
    assert not Folder(tmp_path / "whole").finished()
    execute(CONFIG, tmp_path / "whole", resume=True)
    assert untimed(Folder(tmp_path / "whole")) == whole


def test_a_summary_is_strict_json(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.log({"iteration": 3, "value": float("nan")})
    folder.finish({"iteration": 3, "value": float("nan")})
    assert "NaN" not in (tmp_path / "summary.json").read_text(encoding="utf-8")
    assert folder.summary() == {"iteration": 3, "value": None}


def test_half_written_files_are_removed(cut: Path) -> None:
    (cut / "checkpoint-000000035.pt.0a1b2c3d.part").write_bytes(b"half")
    execute(CONFIG, cut, resume=True)
    assert not list(cut.glob("*.part"))


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "other"])
def test_a_torn_cache_is_replaced(damage: str, tmp_path: Path) -> None:
    path, calls = tmp_path / "new" / "cache.pt", list[str]()

    def make() -> dict[str, torch.Tensor]:
        calls.append("make")
        return {"x": torch.arange(1000.0)}

    load_or_make(path, make)
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 1
    if damage == "other":
        torch.save([1], path)
    else:
        sizes = {"empty": 0, "cut": len(content) // 2, "flipped": len(content)}
        path.write_bytes(content[: sizes[damage]])
    for _ in range(2):
        assert torch.equal(load_or_make(path, make)["x"], torch.arange(1000.0))
    assert len(calls) == 2
    assert list(path.parent.iterdir()) == [path]


def test_a_cache_that_cannot_be_written_warns(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    with pytest.warns(UserWarning, match="CATLOG_CACHE"):
        assert load_or_make(tmp_path / "file" / "cache.pt", lambda: {"x": torch.ones(1)})["x"] == 1


def test_events_are_written_also_if_a_metric_was_not_finite(
    cut: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = cut / "metrics.jsonl"
    *lines, last = metrics.read_text(encoding="utf-8").splitlines()
    lines.append(json.dumps({**json.loads(last), "value": None}))
    metrics.write_text("\n".join([*lines, ""]), encoding="utf-8")
    writer = MagicMock()
    writer.__enter__.return_value = writer
    tensorboard = SimpleNamespace(SummaryWriter=lambda folder: writer)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", tensorboard)
    execute(CONFIG, cut, resume=True, tensorboard=True)
    calls = [call.args for call in writer.add_scalar.call_args_list]
    assert all(isinstance(value, float) for _, value, _ in calls)
    assert [step for name, _, step in calls if name == "value"] == [35, 40]
    assert [step for name, _, step in calls if name == "gradient_variance"] == [30, 35, 40]


# --- changed versions


@pytest.mark.parametrize(
    ("name", "now"), [("torch", "9.9"), ("catlog", "9.9"), ("python", "9.9"), ("threads", 77)]
)
def test_changed_versions_are_reported_and_recorded(
    name: str, now: Any, cut: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = environment()
    monkeypatch.setattr(run_folder, "environment", lambda: {**before, name: now})
    message = re.escape(f"iteration 30 with {name} {now} (before: {before[name]})")
    with pytest.warns(UserWarning, match=message):
        execute(CONFIG, cut, resume=True)
    first, second = Folder(cut).sessions()
    assert (first[name], second[name]) == (before[name], now)


def test_unchanged_versions_are_not_reported(cut: Path) -> None:
    notes: list[str] = []
    execute(CONFIG, cut, resume=True, notify=notes.append)
    assert notes == []


def test_sessions_without_versions_are_compared_by_provenance(cut: Path) -> None:
    """Old versions wrote none into sessions."""
    (session,) = Folder(cut).sessions()
    old = {key: session[key] for key in ("began", "iteration", "iterations")}
    (cut / "sessions.jsonl").write_text(json.dumps(old) + "\n", encoding="utf-8")
    provenance = json.loads((cut / "provenance.json").read_text(encoding="utf-8"))
    (cut / "provenance.json").write_text(
        json.dumps({**provenance, "torch": "2.0"}), encoding="utf-8"
    )
    with pytest.warns(UserWarning, match="before: 2.0"):
        execute(CONFIG, cut, resume=True)


# --- one way to write a file


def test_a_file_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_atomically(path, "old")

    for error in (KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")):
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", Mock(side_effect=error))
            with pytest.raises(type(error)) as caught:
                write_atomically(path, "new")
        assert path.read_text(encoding="utf-8") == "old"
        assert list(tmp_path.iterdir()) == [path]
    assert str(caught.value).endswith(f"No space left on device: {str(path)!r}")


def test_only_abandoned_parts_are_removed(tmp_path: Path) -> None:
    old, new = tmp_path / "file.1.part", tmp_path / "file.2.part"
    of_other_file = tmp_path / "other.1.part"
    for part in (old, new, of_other_file):
        part.write_text("half", encoding="utf-8")
    for part in (old, of_other_file):
        os.utime(part, (0, 0))
    write_atomically(tmp_path / "file", b"whole")
    assert sorted(tmp_path.iterdir()) == [tmp_path / "file", new, of_other_file]


def test_a_link_stays_a_link_and_a_device_a_device(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_atomically(tmp_path / "link", "content")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text(encoding="utf-8") == "content"
    write_atomically("/dev/null", "content")
    assert not Path("/dev/null").is_file()
    (tmp_path / "plain").write_text("content", encoding="utf-8")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_rows_are_read_without_config_json(cut: Path) -> None:
    """Sessions or checkpoints suffice; without them an error names the run."""
    before = records.read(cut)
    (cut / "config.json").unlink()
    assert records.read(cut) == before
    for path in cut.glob("checkpoint-*"):
        path.unlink()
    (cut / "sessions.jsonl").write_text("torn", encoding="utf-8")
    with pytest.raises(ValueError, match=r"config\.json cannot be read"):
        records.read(cut)
