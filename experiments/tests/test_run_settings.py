"""Settings of experiments and commands: types, ranges, grids; files that are written."""

import codecs
import csv
from dataclasses import fields, is_dataclass, replace
from math import inf, nan
from pathlib import Path
from typing import Any, get_args

import pytest

from catlog.diagnostics.comparison import Comparison
from catlog_experiments import (
    DVAE,
    EXPERIMENTS,
    Addition,
    Gradients,
    Optimisation,
    execute,
    records,
)
from catlog_experiments.__main__ import main
from catlog_experiments.cli import main as cli
from catlog_experiments.files.csv_cells import guarded, unguarded
from catlog_experiments.ranges import _alternatives, annotations
from catlog_experiments.report.page import report
from catlog_experiments.report.runs import Evidence
from catlog_experiments.run_folder import Folder
from catlog_experiments.sweep import grid, sweep

SMALL = Optimisation(iterations=20, every=10, variables=5)
COMMANDS = [get_args(command)[0] for command in get_args(cli.Command)]


@pytest.mark.parametrize("cls", [*EXPERIMENTS.values(), *COMMANDS], ids=lambda cls: cls.__name__)
def test_every_number_has_a_range(cls: type) -> None:
    """Also numeric settings that are added later."""
    assert is_dataclass(cls)
    hints = annotations(cls)
    for field in fields(cls):
        for kind, within in _alternatives(hints[field.name]):
            assert kind not in (int, float) or within is not None, (
                f"{cls.__name__}.{field.name} has no range"
            )


@pytest.mark.parametrize(
    ("cls", "name", "value"),
    [
        *((Addition, "clip", value) for value in (-1.0, 0.0, nan)),
        *((Addition, name, 0) for name in ("every", "digits", "batch", "samples")),
        *((Addition, name, -1) for name in ("epochs", "seed")),
        (Addition, "seed", 2**32),
        (DVAE, "test_samples", 0),
        (DVAE, "every", -2),
        (DVAE, "categories", 1),
        (DVAE, "gradient_repeats", -1),
        (DVAE, "learning_rate", inf),
        (DVAE, "reads", "letters"),
        (Gradients, "together", 0),
        (Gradients, "repeats", 1),
        (Gradients, "variables", 0),
        (Optimisation, "iterations", 0),
        (Optimisation, "learning_rate", 0.0),
        (Optimisation, "update", "sideways"),
    ],
)
def test_values_out_of_range_are_refused(cls: Any, name: str, value: Any) -> None:
    flag = name.replace("_", "-")
    with pytest.raises(ValueError, match=rf"^--{flag} must be .*, but {value!r} was given"):
        cls(**{name: value})


@pytest.mark.parametrize(
    "settings",
    [{"clip": "1"}, {"digits": 2.5}, {"seed": True}, {"seed": None}, {"options": "draws=latin"}],
)
def test_values_of_a_wrong_type_are_refused(settings: dict[str, Any]) -> None:
    (name,) = settings
    with pytest.raises(TypeError, match=f"--{name}"):
        Addition(**settings)


WRONG_FLAGS = {
    "run addition": ["--clip -1"],
    "run optimisation": ["--every 0"],
    "run gradients": ["--together 0"],
    "run dvae": ["--test-samples 0", "--checkpoint-every -1", "--checkpoint-every nan"],
    "sweep dvae": [
        "--jobs 0",
        "--retries -1",
        "--cpus-per-run 0",
        "--gpus-per-run -0.5",
        "--deadline -1",
    ],
    "export": ["--thin 0", "--thin -3", "--digits 0", "--digits 18"],
    "compare --problem parity": [
        "--repeats 1",
        "--rounds 0",
        "--training -1",
        "--budget 0",
        "--samples 0",
        "--seed -1",
    ],
    "advise --problem parity": ["--budget 0"],
}


@pytest.mark.parametrize(
    "command", [f"{start} {flag}" for start, flags in WRONG_FLAGS.items() for flag in flags]
)
def test_errors_of_commands_name_the_flag(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(command.split())
    assert caught.value.code == 2
    message = " ".join(capsys.readouterr().err.split())
    assert f"{command.split()[-2]} must be" in message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("jobs", 0),
        ("retries", -1),
        ("cpus_per_run", 0),
        ("deadline", -1.0),
        ("checkpoint_every", nan),
    ],
)
def test_errors_of_functions_name_the_setting(name: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"--{name.replace('_', '-')} must be"):
        sweep([SMALL], tmp_path, **{name: value})
    with pytest.raises(ValueError, match="--thin"):
        records.thinned([], 0)
    with pytest.raises(ValueError, match="--digits"):
        records.write([], tmp_path / "rows.csv", digits=0)
    with pytest.raises(ValueError, match="--checkpoint-every"):
        execute(SMALL, tmp_path, checkpoint_every=-1.0)


# --- grids


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        (
            ["update=sideways"],
            r"--grid: update must be one of 'own', 'published', but 'sideways' was given",
        ),
        (
            ["seed=0,one"],
            "--grid: seed must be an int between 0 and 4294967295, but 'one' was given",
        ),
        (["seed=0.5"], "--grid: seed must be an int"),
        (["seed=0,"], "--grid: seed must be an int.*''"),
        (["iterations=0"], "--grid: iterations must be an int of at least 1, but 0 was given"),
        (["anneal=maybe"], "--grid: anneal must be True or False"),
        (["learning_rate=-1"], "--grid: learning_rate must be a number above 0 or None"),
        (["seed=0", "seed=1"], "--grid: seed is given twice"),
        (["seed=0,0"], "--grid: 'seed=0,0' has a value twice"),
        (["nothing=1"], "field=value"),
        (["seed"], "field=value"),
        ([""], "field=value"),
    ],
)
def test_bad_axes_are_refused(axes: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        grid(SMALL, axes)


def test_values_of_a_grid_have_the_types_of_the_flags() -> None:
    """So the folder does not depend on how the settings were passed."""
    axes = ["learning_rate=1,None", "anneal=False,true", "samples=2", "estimator=1e3"]
    first, *_, last = grid(SMALL, [*axes, "options=,draws=latin variables=2"])
    fixed = replace(SMALL, samples=2, estimator="1e3")
    assert first == replace(fixed, learning_rate=1.0, anneal=False)
    assert isinstance(first.learning_rate, float)
    assert last == replace(fixed, options=("draws=latin", "variables=2"))


def test_an_unknown_size_is_named() -> None:
    """As in tables written before grids were checked."""
    row = {"experiment": "optimisation", "estimator": "RLOO", "seed": 0, "iteration": 0}
    message = "update of a run of optimisation with RLOO must be one of"
    with pytest.raises(ValueError, match=message):
        Evidence.from_rows([row | {"update": "sideways"}])


# --- files that are written


def test_files_of_a_run_are_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    execute(SMALL, tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    for name in before:
        for command in ("export", "report"):
            output = str(tmp_path / "run" / name)
            assert main([command, str(tmp_path), "--output", output]) == 2
            assert "is a file of the run" in " ".join(capsys.readouterr().err.split())
    config, metrics = str(tmp_path / "run" / "config.json"), str(tmp_path / "run" / "metrics.jsonl")
    assert main(["sweep", "optimisation", "--root", str(tmp_path), "--output", config]) == 2
    assert main(["compare", "--problem", "parity", "--csv", metrics]) == 2
    with pytest.raises(ValueError, match="is a file of the run"):
        report([], metrics)
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
    assert Folder(tmp_path / "run").finished()
    assert main(["export", str(tmp_path), "--output", str(tmp_path / "run" / "rows.csv")]) == 0


TEXTS = ["=1+1", "+1", "-x", "@SUM(A1)", "'=1", "''-", "\tx", "plain", "it's", "a=b"]


def test_text_in_csv_is_never_a_formula(tmp_path: Path) -> None:
    rows = [
        {"iteration": i, "value": -1.5 * i, "count": -i, "text": text, "=key": text}
        for i, text in enumerate(TEXTS)
    ]
    records.write(rows, tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open(newline="", encoding="utf-8") as file:
        header, *lines = csv.reader(file)
    cells = [cell for line in (header, *lines) for cell in line[3:]]
    assert not [cell for cell in cells if cell[:1] in ("=", "+", "-", "@", "\t")]
    assert lines[1][:3] == ["1", "-1.5", "-1"]  # numbers stay numbers
    content = (tmp_path / "rows.csv").read_bytes()
    (tmp_path / "rows.csv").write_bytes(codecs.BOM_UTF8 + content)  # as a spreadsheet saves it
    assert records.read(tmp_path / "rows.csv") == rows
    assert [unguarded(guarded(text)) for text in TEXTS] == TEXTS


def test_a_comparison_has_no_formulas(tmp_path: Path) -> None:
    result = Comparison((), {"=cmd()": "-it failed"}, "exact", "Equal evaluations")
    result.to_csv(tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open(newline="", encoding="utf-8") as file:
        _, line = csv.reader(file)
    assert (line[0], line[-1]) == ("'=cmd()", "'-it failed")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a,b\n1,2\n3", "line 3 has 1 cells, but there are 2 columns"),
        (b"a,b\n1,2,3\n", "line 2 has 3 cells"),
        (b'a,b\n1,"2', "unexpected end of data"),
        (b"a,b\n\xff,1\n", "utf-8"),
        (b"a,b\n" + b"x" * 200_000 + b",1\n", "field larger"),
    ],
)
def test_a_torn_table_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        records.read(path)
    assert str(path) in str(caught.value)


def test_tables_of_other_data_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By an error in one line, without a traceback."""
    (tmp_path / "rows.csv").write_text("method,ms\nRLOO,fast\n", encoding="utf-8")
    execute(SMALL, tmp_path / "run")
    run, rows = str(tmp_path / "run"), str(tmp_path / "rows.csv")
    assert main(["plot", run, "--step-times", rows, "--output", str(tmp_path)]) == 2
    assert "--step-times" in capsys.readouterr().err
    assert main(["export", rows, "--output", str(tmp_path / "out.csv")]) == 2
    assert "no iteration" in capsys.readouterr().err


def test_a_folder_with_brackets_is_printed_literally(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--repeats", "20", "--variables", "3", "--folder", "a [red] b"]
    assert main(["run", "gradients", *flags]) == 0
    assert capsys.readouterr().out.count("a [red] b") == 1
