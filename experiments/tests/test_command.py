"""The command: exit codes, errors in one line that name the flag, help, lists, tables."""

import codecs
import csv
import re
import shlex
from dataclasses import fields, replace
from math import inf, nan
from pathlib import Path
from typing import Any, get_args, get_type_hints
from unittest.mock import Mock

import pytest

import catlog
from catlog_experiments import (
    DVAE,
    EXPERIMENTS,
    Addition,
    Optimisation,
    cli,
    execute,
    folder_for,
    records,
)
from catlog_experiments.__main__ import main
from catlog_experiments.data import DataError

Capture = pytest.CaptureFixture[str]
FLAGS = ["optimisation", "--iterations", "20", "--every", "10", "--variables", "5"]
SMALL = Optimisation(iterations=20, every=10, variables=5)
COMMANDS = list(cli.COMMANDS.values())


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
    assert "The run is complete already." in capsys.readouterr().out
    assert main([*run, "--resume", "--iterations", "40"]) == 0
    text = words(capsys.readouterr().out)
    assert "Extends one from --iterations 20 to 40." in text
    assert "shortened" in error_of([*run, "--resume"], capsys)
    assert main(["run", *FLAGS, "--resume"]) == 0
    axes = ["--grid", "estimator=IndeCateR,RLOO", "--grid", "seed=0,1"]
    for _ in range(2):
        assert main(["sweep", *FLAGS, *axes]) == 0
        assert "12 rows of 4 of 4 runs: runs/optimisation.csv" in words(capsys.readouterr().out)
    assert main(["export", "runs", "one", "--output", "all.csv", "--thin", "2"]) == 0
    with Path("all.csv").open(encoding="utf-8") as file:
        assert {row["estimator"] for row in csv.DictReader(file)} == {"IndeCateR", "RLOO"}
    assert main(["--version"]) == 0
    assert catlog.__version__ in capsys.readouterr().out


def test_a_failed_sweep_exits_with_1(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(Optimisation, "task", Mock(side_effect=MemoryError("full")))
    assert main(["sweep", *FLAGS]) == 1
    assert "MemoryError: full" in words(capsys.readouterr().out)
    assert not Path("runs/optimisation.csv").exists()


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_ctrl_c_says_how_to_continue(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(
        cli, {"run": "execute", "sweep": "sweep"}[command], Mock(side_effect=KeyboardInterrupt)
    )
    folder = "a folder/" + "with a [long] name/" * 5 + "run"
    flags = ["--folder", folder] if command == "run" else []
    assert main([command, *FLAGS, *flags]) == 130
    *_, line = capsys.readouterr().out.strip().splitlines()
    if command == "run":
        assert shlex.split(line)[-3:] == ["--resume", "--folder", folder]
    else:
        assert line == "Stopped. Run the same command again to continue."


def test_missing_data_leave_no_folder(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """So the same command runs once the data are there."""
    command = ["run", "dvae", "--variables", "2", "--epochs", "1", "--batch", "2000"]
    with monkeypatch.context() as patch:
        patch.setattr("catlog_experiments.dvae.load", Mock(side_effect=DataError("missing")))
        assert "missing" in error_of(command, capsys)
    assert not Path("runs").exists()
    assert main(command) == 0
    assert "negated test ELBO, nats" in capsys.readouterr().out


# --- settings


@pytest.mark.parametrize("cls", [*EXPERIMENTS.values(), *COMMANDS], ids=lambda cls: cls.__name__)
def test_every_number_has_a_smallest_value(cls: Any) -> None:
    """Also numeric settings that are added later."""
    hints = get_type_hints(cls, include_extras=True)
    for field in fields(cls):
        for kind in (hints[field.name], *get_args(hints[field.name])):
            is_bare = kind in (int, float) and not hasattr(hints[field.name], "__metadata__")
            assert not is_bare, f"{cls.__name__}.{field.name} has no smallest value"


@pytest.mark.parametrize(
    ("cls", "name", "value"),
    [(Addition, "clip", nan), (Addition, "clip", 0.0), (DVAE, "learning_rate", inf)]
    + [(Addition, "samples", 0), (Addition, "seed", -1), (DVAE, "reads", "letters")],
)
def test_values_out_of_range_are_refused(cls: Any, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^--{name.replace('_', '-')} must be .*{value!r} was"):
        cls(**{name: value})


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("run addition --clip -1", "--clip must be above 0, but -1.0 was given"),
        ("run dvae --checkpoint-every nan", "--checkpoint-every must be at least 0"),
        ("run dvae --data mnst", "mnst"),
        ("run dvae --protocol paper --models 2", "--models must be 1 with --protocol paper"),
        ("run dvae --protocol gaussian --categories 3", "--categories must be 2"),
        ("run gradients --estimator Nonsense", "'Nonsense' is not known. Use one of ARM"),
        ("run gradients --estimator RLO", "Did you mean RLOO?"),
        ("run gradients --options draws", "must have the form name=value"),
        (
            "run gradients --options smpling=latin",
            "has no setting smpling. Did you mean sampling?",
        ),
        ("run addition --estimator GumbelSoftmax", "needs the derivative of f, which is zero"),
        ("run gradients --estimator ARM", "ARM is for bits, but there are 3 categories here"),
        ("run gradients --estimator VIMCO", "this experiment has no likelihood"),
        ("run gradients --device cuda", "torch sees no GPU here"),
        ("sweep dvae --jobs 0", "--jobs must be at least 1"),
        ("sweep dvae --gpus-per-run -0.5", "--gpus-per-run must be at least 0"),
        ("sweep dvae --grid estimator=RLOO,RLOOO", "No run was started. --estimator: 'RLOOO'"),
        ("sweep dvae --grid seed=0,0", "--grid: seed must have each value once, but 0,0"),
        ("export --thin 0", "--thin must be at least 1"),
        ("export nowhere", "nowhere is neither a folder of runs nor a CSV file"),
        ("compare --problem isng", "'isng' is not known. Did you mean ising?"),
        ("compare --problem ising --estimators RLO", "Did you mean RLOO?"),
        ("compare --problem ising --estimators 'RLOO(4'", "estimators: 'RLOO(4' must be a name"),
        ("compare --problem ising --estimators 'RLOO(4,samples=2)'", "samples"),
        ("compare --problem ising --estimators 'RLOO(smples=2)'", "smples"),
        ("compare --problem parity --repeats 1", "--repeats must be at least 2"),
        ("compare --problem nowhere:f", "No module named 'nowhere'"),
        ("compare --problem math:f", "module 'math' has no attribute 'f'"),
        ("advise --problem parity --budget 0", "--budget must be at least 1"),
    ],
)
def test_errors_are_one_line_that_names_the_flag(
    command: str, message: str, capsys: Capture
) -> None:
    if "cuda" in command and __import__("torch").cuda.is_available():
        pytest.skip("there is a GPU")
    assert message in error_of(command, capsys)
    assert not list(Path().iterdir())


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_flag_has_help(name: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["run", name, "--help"])
    text = capsys.readouterr().out
    for field in fields(EXPERIMENTS[name]):
        flag = "--" + field.name.replace("_", "-")
        assert len(text.split(flag, 1)[1].split("(default")[0]) > 15, f"{flag} has no help"


@pytest.mark.parametrize(
    "command",
    ["", "run", "sweep", "report", "export", "compare", "list", "sweep addition", "run programs"],
)
def test_help_fits_80_columns_and_has_no_markup(command: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    usage, text = capsys.readouterr().out.split("\n", 1)
    assert usage.startswith("usage: catlog ")
    assert max(map(len, text.splitlines())) <= 80
    assert not any(mark in text for mark in (":math:", "``", "\\sum", ":func:", "$"))


def test_the_list_shows_names_in_full(capsys: Capture) -> None:
    """In 80 columns, as in a pipe; the longest name has 30 letters."""
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    first_words = {line.split(" ")[0] for line in lines}
    assert first_words >= {*catlog.estimators.ESTIMATORS, *catlog.problems.PROBLEMS, *EXPERIMENTS}


# --- tables and other files that are written


def test_files_of_a_run_are_not_overwritten(capsys: Capture) -> None:
    execute(SMALL, "run")
    before = {path.name: path.read_bytes() for path in Path("run").iterdir()}
    for name in before:
        for command in (
            "export run --output",
            "report run --output",
            "compare --problem ising --csv",
        ):
            assert "is a file of the run" in error_of(f"{command} run/{name}", capsys)
    assert "is a file" in error_of(["sweep", *FLAGS, "--output", "run/metrics.jsonl"], capsys)
    assert {path.name: path.read_bytes() for path in Path("run").iterdir()} == before
    assert main(["export", "run", "--output", "run/rows.csv"]) == 0


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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a,b\n1,2\n3", "shorter than"),
        (b'a,b\n1,"2', "unexpected end of data"),
        (b"a,b\n\xff,1\n", "utf-8"),
        (b"a,b\n" + b"x" * 200_000 + b",1\n", "field larger"),
        (b"experiment,estimator\ndvae,RLOO\n", "--thin: a row has no iteration"),
    ],
)
def test_a_damaged_or_other_table_is_named(content: bytes, message: str, capsys: Capture) -> None:
    Path("rows.csv").write_bytes(content)
    assert message in error_of("export rows.csv", capsys)
    assert not Path("results.csv").exists()


def test_runs_in_their_default_folder_keep_their_values() -> None:
    execute(SMALL)
    rows = records.read("runs")
    records.write(rows, "rows.csv", digits=17)
    known = {key: value for key, value in rows[-1].items() if value not in (None, [])}
    assert records.read("rows.csv")[-1] == known
    assert folder_for(replace(SMALL, iterations=40)) == folder_for(SMALL)
    assert folder_for(replace(SMALL, seed=1)) != folder_for(SMALL)


# --- compare and advise

MINE = """
import torch
from torch.distributions import Bernoulli, Independent

def problem():
    theta = torch.zeros(4, requires_grad=True)
    return (lambda x: x.prod(-1)), (lambda t: Independent(Bernoulli(logits=t), 1)), [theta]

def plain():
    f, law, (theta,) = problem()
    return f, law(theta)

def nothing():
    return 1

def broken():
    return torch.zeros(2).colour
"""


def test_comparing_on_a_problem_of_the_user(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    Path("my_problem_of_bits.py").write_text(MINE, encoding="utf-8")
    few = "--repeats 10 --rounds 1"
    chosen = "--estimators RLOO,IndeCateR(sampling=latin),CARMS(4) --budget 10"
    mine = "compare --problem my_problem_of_bits"
    assert main(f"compare --problem ising --estimators RLOO --budget 100 {few}".split()) == 0
    assert "Bias against the reference given" in capsys.readouterr().out
    assert main(f"{mine}:problem {chosen} {few} --csv out.csv --plot out.png".split()) == 0
    output = capsys.readouterr().out
    names = ("RLOO(10)", "IndeCateR(2, sampling='latin')", "CARMS(10)")
    assert all(name in output for name in names)
    assert output.endswith("Numbers: out.csv\nFigure: out.png\n")
    assert max(map(len, output.splitlines())) <= 80
    assert Path("out.csv").exists()
    assert Path("out.png").exists()
    assert main(f"{mine}:plain --estimators RLOO --samples 3 {few}".split()) == 0
    assert "RLOO(3)" in capsys.readouterr().out
    assert main(["advise", "--problem", "my_problem_of_bits:problem"]) == 0
    assert "Take " in capsys.readouterr().out
    for command, message in (
        (f"{mine}:nothing", "must return (f, q), (f, make_q, parameters) or a Problem"),
        (f"{mine}:missing", "has no attribute 'missing'"),
        ("compare --problem no_such_module:f", "No module named 'no_such_module'"),
        ("compare --problem :f", "':f' is not known"),
        (f"{mine}:problem --estimators Nonsense", "'Nonsense' is not known"),
    ):
        assert message in error_of(command, capsys)
    with pytest.raises(RuntimeError, match="my_problem_of_bits:broken raised") as caught:
        main(f"{mine}:broken".split())
    assert isinstance(caught.value.__cause__, AttributeError)
