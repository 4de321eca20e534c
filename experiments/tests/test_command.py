"""The command: exit codes, errors in one line that name the flag, help, tables."""

import codecs
import csv
import re
import shlex
import socket
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

import catlog
from catlog_experiments import EXPERIMENTS, Optimisation, cli, records
from catlog_experiments.cli import main
from runs import starts

Capture = pytest.CaptureFixture[str]
FLAGS = ["optimisation", "--iterations", "20", "--every", "10", "--variables", "5"]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def words(text: str) -> str:
    """Return text without frames and line breaks."""
    return " ".join(re.sub("[│╭╮╰╯─]", " ", text).split())


def error_of(command: str | list[str], capsys: Capture) -> str:
    """Return what the command prints when it exits with 2, which tyro does by an exception."""
    try:
        code: Any = main(shlex.split(command) if isinstance(command, str) else command)
    except SystemExit as exit_:
        code = exit_.code
    assert code == 2
    captured = capsys.readouterr().err
    assert "Traceback" not in captured
    return words(captured)


def test_commands_run_and_exit_with_their_codes(capsys: Capture) -> None:
    run = ["run", *FLAGS, "--folder", "one"]
    assert main(run) == 0
    assert "gradient_variance" in capsys.readouterr().out
    assert "--resume" in error_of(run, capsys)
    assert main([*run, "--resume"]) == 0
    assert "its seed differ" in error_of([*run, "--resume", "--seed", "1"], capsys)
    assert starts(Path("one")) == [0]  # the complete run was not run again
    axes = ["--grid", "estimator=IndeCateR,RLOO", "--grid", "seed=0,1"]
    for _ in range(2):
        for path in Path("runs").rglob("sessions.jsonl"):
            path.write_text("damaged", encoding="utf-8")
        assert main(["sweep", *FLAGS, *axes]) == 0
    assert main(["export", "runs", "one", "--output", "all.csv"]) == 0
    assert "15 rows in all.csv" in capsys.readouterr().out
    with Path("all.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["estimator"] for row in rows} == {"IndeCateR", "RLOO"}
    assert {row["iteration"] for row in rows} == {"0", "10", "20"}
    with Path("one/sessions.jsonl").open("a", encoding="utf-8") as file:
        file.write("torn")
    assert main(["report", "runs", "one"]) == 0
    assert "IndeCateR" in capsys.readouterr().out
    assert f"<td>{socket.gethostname()}</td>" in Path("report.html").read_text(encoding="utf-8")
    assert main(["--version"]) == 0
    assert catlog.__version__ in capsys.readouterr().out


def test_a_failed_sweep_exits_with_1(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(Optimisation, "task", Mock(side_effect=MemoryError("full")))
    assert main(["sweep", *FLAGS]) == 1
    assert "MemoryError: full" in words(capsys.readouterr().out)


@pytest.mark.parametrize(("command", "name"), [("run", "execute"), ("sweep", "sweeps.sweep")])
def test_ctrl_c_says_how_to_continue(
    command: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(f"{cli.__name__}.{name}", Mock(side_effect=KeyboardInterrupt))
    folder = "a folder/" + "with a [long] name/" * 5 + "run"
    flags = ["--folder", folder] if command == "run" else []
    assert main([command, *FLAGS, *flags]) == 130
    *_, line = capsys.readouterr().out.strip().splitlines()
    assert line.startswith("Stopped. ")
    if command == "run":
        assert shlex.split(line)[-3:] == ["--resume", "--folder", folder]


# --- settings


WRONG = Path(__file__).with_name("wrong_commands.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(("command", "message"), re.findall(r"^(\w.*)\n    (.+)$", WRONG, re.M))
def test_errors_are_one_line_that_names_the_flag(
    command: str, message: str, capsys: Capture
) -> None:
    if "cuda" in command and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert message in error_of(command, capsys)
    assert not list(Path().iterdir())


@pytest.mark.parametrize("command", ["", *(f"run {name}" for name in EXPERIMENTS), "sweep dvae"])
def test_help_fits_80_columns_and_names_every_flag(
    command: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    usage, text = capsys.readouterr().out.split("\n", 1)
    assert usage.startswith("usage: catlog ")
    assert max(map(len, text.splitlines())) <= 80
    assert not any(mark in text for mark in (":math:", "``", "\\sum", ":func:", "$"))
    for field in fields(EXPERIMENTS[command.split()[1]]) if command else ():
        flag = "--" + field.name.replace("_", "-")
        assert len(text.split(flag, 1)[1].split("(default")[0]) > 15, f"{flag} has no help"


# --- tables


def test_an_empty_source_does_not_replace_a_file(capsys: Capture) -> None:
    Path("empty").mkdir()
    for command in ("report", "export"):
        Path("output").write_text("an earlier one", encoding="utf-8")
        message = error_of([command, "empty", "--output", "output"], capsys)
        assert "No run in empty. Nothing was written." in message
        assert Path("output").read_text(encoding="utf-8") == "an earlier one"


def test_a_table_has_the_values_that_were_written() -> None:
    rows = [{"iteration": i, "value": -1.5 * i, "text": f"it's {i}", "none": None} for i in (1, 2)]
    records.write(rows, "rows.csv")
    content = Path("rows.csv").read_bytes()
    assert content.startswith(b"iteration,value,text\n1,-1.5,it's 1\n")
    Path("rows.csv").write_bytes(codecs.BOM_UTF8 + content)  # as a spreadsheet saves it
    assert [{**row, "none": None} for row in records.read("rows.csv")] == rows


def test_a_damaged_table_is_named(capsys: Capture) -> None:
    for content, message in (
        (b"a,b\n1,2\n3", "shorter than"),
        (b'a,b\n1,"2', "unexpected end of data"),
        (b"a,b\n\xff,1\n", "utf-8"),
    ):
        Path("rows.csv").write_bytes(content)
        assert message in error_of("export rows.csv", capsys)
    assert not Path("results.csv").exists()
