"""The command line at 80 columns: early checks, extended runs, tables and reports that say it."""

import re
import shlex
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console

import catlog
from catlog.diagnostics.progress import progress_bar
from catlog_experiments import (
    DVAE,
    EXPERIMENTS,
    Addition,
    Gradients,
    Optimisation,
    execute,
    folder_for,
)
from catlog_experiments.__main__ import main
from catlog_experiments.cli.main import _sweep_table
from catlog_experiments.data.files import DataError
from catlog_experiments.files.atomic import write_atomically
from catlog_experiments.run_folder import Folder
from catlog_experiments.sweep import grid, sweep
from catlog_experiments.sweep_progress import SweepProgress
from driver import untimed

Capture = pytest.CaptureFixture[str]
SMALL = Optimisation(iterations=20, every=10, variables=5)
FLAGS = ["optimisation", "--every", "10", "--variables", "5"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


def error_of(command: list[str], capsys: Capture) -> str:
    """Return the error of a command that must fail with exit code 2 and print nothing else."""
    capsys.readouterr()
    assert main(command) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return " ".join(captured.err.split())


# --- settings are checked before anything starts


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("run dvae --estimator RLO", "--estimator: 'RLO' is not known. Did you mean RLOO?"),
        ("run dvae --estimator rloo-f", "Did you mean RLOO-F?"),
        ("run dvae --options draw=latin", "IndeCateR has no setting draw. Did you mean draws?"),
        ("run dvae --options draws", "--options: 'draws' must have the form name=value"),
        ("run dvae --options draws=sideways", "IndeCateR: `draws` must be one of"),
        ("run addition --estimator ReinMax", "needs the derivative of f, which is zero"),
        ("run gradients --estimator ARM", "ARM is for bits, but there are 3 categories here"),
        ("sweep dvae --grid estimator=RLOO,RLOOO", "No run was started. --estimator: 'RLOOO'"),
        ("sweep dvae --grid estimator=RLOO,RLOOO", "Did you mean RLOO?"),
        ("sweep addition --grid digits=4,x", "--grid: digits must be an int of at least 1"),
        ("sweep addition --grid digit=4,8", "Did you mean digits?"),
        ("sweep dvae --grid data=mnist,omniglt", "Did you mean omniglot?"),
        ("compare --problem isng", "--problem: 'isng' is not known. Did you mean ising?"),
        ("compare --problem ising --estimators RLO", "Did you mean RLOO?"),
        ("compare --problem ising --estimators RLOO(4", "'RLOO(4' must be a name, with settings"),
        ("compare --problem ising --estimators RLOO(4)LEG", "Put a comma after each estimator"),
        ("compare --problem ising --estimators IndeCateR(4,5)", "'5' in IndeCateR(4,5) must have"),
        ("compare --problem ising --estimators RLOO(4,samples=2)", "samples is given twice"),
    ],
)
def test_misspelt_settings_are_refused_at_once(command: str, message: str, capsys: Capture) -> None:
    assert message in error_of(command.split(), capsys)
    assert not list(Path().iterdir())


def test_all_wrong_settings_of_a_sweep_are_named() -> None:
    configs = grid(SMALL, ["estimator=RLOO,RLOOO,VIMCO", "seed=0,1"])
    with pytest.raises(ValueError, match=r"'RLOOO' is not known.*VIMCO bounds") as caught:
        sweep(configs, "runs")
    assert str(caught.value).count("RLOOO") == 1
    assert not Path("runs").exists()


def test_names_of_axes_may_have_dashes() -> None:
    assert [config.learning_rate for config in grid(SMALL, ["learning-rate=1,2"])] == [1.0, 2.0]


def test_missing_data_leave_no_folder(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """So the same command runs once the data are there."""

    command = ["run", "dvae", "--variables", "2", "--epochs", "1", "--batch", "2000"]
    with monkeypatch.context() as patch:
        patch.setattr("catlog_experiments.dvae.load", Mock(side_effect=DataError("missing")))
        assert main(command) == 2
    assert not Path("runs").exists()
    assert main(command) == 0
    assert "negated test ELBO, nats" in capsys.readouterr().out


@pytest.mark.parametrize("jobs", [[], ["--jobs", "2"]], ids=["in turn", "in processes"])
def test_missing_data_of_a_later_run_stop_a_sweep_before_the_first(
    jobs: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("CATLOG_DATA", str(Path("nowhere").resolve()))
    flags = ["--variables", "2", "--epochs", "1", "--batch", "2000"]
    grid = ["--grid", "data=mnist-5000,mnist,fashion-mnist"]
    assert main(["sweep", "dvae", *flags, *grid, *jobs]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "No run was started." in message
    assert "train-images-idx3-ubyte.gz" in message
    assert message.count("nowhere") == 2  # both of the missing sets are named
    assert not Path("runs").exists()


def test_a_complete_sweep_needs_no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    config = DVAE(variables=2, epochs=1, batch=2000)
    assert sweep([config], "runs") == []
    monkeypatch.setattr("catlog_experiments.sweep.load", None)
    assert sweep([config], "runs") == []


def test_missing_tensorboard_leaves_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match="tensorboard"):
        execute(SMALL, "run", tensorboard=True)
    assert not Path("run").exists()


def test_missing_ray_is_reported_without_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["sweep", *FLAGS, "--engine", "ray", "--grid", "seed=0,1"]) == 2
    captured = capsys.readouterr()
    assert "Ray is not installed: pip install 'ray>=2.40'" in captured.err
    assert captured.out == "2 runs of optimisation on Ray, stored in runs\n"


# --- runs are extended

LENGTHS: dict[str, tuple[Any, dict[str, int]]] = {
    "gradients": (Gradients(repeats=20, together=10, variables=3, categories=2), {"repeats": 40}),
    # 23 is no multiple of 10: the last logged point of the short run is none of the long one
    "optimisation": (replace(SMALL, iterations=23, estimator="GS-S"), {"iterations": 45}),
    "dvae": (
        DVAE(epochs=1, every=3, variables=3, batch=800, estimator="GS-S", test_samples=1),
        {"epochs": 2},
    ),
    "addition": (Addition(digits=2, epochs=1, batch=200, samples=2), {"epochs": 2}),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_an_extended_run_equals_a_long_one(name: str) -> None:
    """First in another folder, which leaves the short run as it was, then in place."""
    short, change = LENGTHS[name]
    long = replace(short, **change)
    execute(long, "long")
    execute(short, "short")
    before = untimed(Folder("short"))
    ((length, value),) = change.items()
    for target, extends in (("extended", "short"), ("short", None)):
        assert untimed(Folder("short")) == before
        assert execute(short, "short", resume=True)["iteration"] == before[-1]["iteration"]
        notes: list[str] = []
        execute(long, target, resume=True, extends=extends, notify=notes.append)
        assert notes == [f"Extends short from --{length} {getattr(short, length)} to {value}."]
        assert untimed(Folder(target)) == untimed(Folder("long"))
        assert [session["iteration"] > 0 for session in Folder(target).sessions()] == [False, True]
        assert Folder(target).completed({"experiment": name}) is None
        assert execute(long, target, resume=True) == Folder(target).summary()


def test_a_run_is_extended_by_the_command(capsys: Capture) -> None:
    assert main(["run", *FLAGS, "--iterations", "20"]) == 0
    assert main(["run", *FLAGS, "--iterations", "40", "--resume"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    short = folder_for(SMALL)
    assert f"Extends {short} from --iterations 20 to 40." in text
    assert "Resumes from iteration 20 of 40." in text
    assert Folder(short).finished()
    assert Folder(folder_for(replace(SMALL, iterations=40))).finished()
    assert main(["run", *FLAGS, "--iterations", "40", "--resume"]) == 0
    assert "The run is complete already." in capsys.readouterr().out
    assert main(["run", *FLAGS, "--iterations", "40", "--resume", "--seed", "1"]) == 0
    assert "Nothing to resume: starts from scratch." in capsys.readouterr().out


def test_runs_that_cannot_be_extended_are_refused(capsys: Capture) -> None:
    execute(SMALL, "run")
    folder = ["--folder", "run", "--resume"]
    message = error_of_run([*FLAGS, "--iterations", "10", *folder], capsys)
    assert "holds this run with --iterations 20, which cannot be shortened to 10" in message
    message = error_of_run([*FLAGS, "--iterations", "40", "--seed", "1", *folder], capsys)
    assert "its iterations, seed differ" in message
    uneven = Gradients(repeats=25, together=10, variables=3)
    execute(uneven, "uneven")
    with pytest.raises(ValueError, match="--repeats: a run of 25 estimates cannot be extended"):
        execute(replace(uneven, repeats=40), "uneven", resume=True)
    assert Folder("uneven").finished()


def error_of_run(flags: list[str], capsys: Capture) -> str:
    assert main(["run", *flags]) == 2
    return " ".join(capsys.readouterr().err.split())


def test_a_cut_copy_of_a_run_is_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy is cut before the checkpoints: the run starts from scratch."""
    long = replace(SMALL, iterations=40)
    execute(SMALL, "short")
    execute(long, "long")

    def cut(path: Path, content: bytes | str) -> None:
        if path.suffix == ".pt":
            raise KeyboardInterrupt
        write_atomically(path, content)

    with monkeypatch.context() as patch:
        patch.setattr("catlog_experiments.run_folder.write_atomically", cut)
        with pytest.raises(KeyboardInterrupt):
            execute(long, "copy", resume=True, extends="short", notify=lambda note: None)
    assert Folder("copy").metrics()
    execute(long, "copy", resume=True)
    assert untimed(Folder("copy")) == untimed(Folder("long"))


def test_a_stopped_run_names_the_flags_that_continue_it(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("catlog_experiments.cli.main.execute", Mock(side_effect=KeyboardInterrupt))
    folder = "a folder/" + "with a long name/" * 5 + "run"
    assert main(["run", *FLAGS, "--folder", folder]) == 130
    *_, line = capsys.readouterr().out.strip().splitlines()
    assert shlex.split(line)[-3:] == ["--resume", "--folder", folder]


def test_errors_are_printed_unless_torchrun_has_started_other_ranks(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("RANK", "1")  # as some job schedulers do
    assert "'isng' is not known" in error_of(["compare", "--problem", "isng"], capsys)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert error_of(["compare", "--problem", "isng"], capsys) == ""


# --- tables


def test_the_table_of_a_sweep_names_runs_by_what_differs(tmp_path: Path) -> None:
    configs = grid(Addition(), ["estimator=IndeCateR-D-Latin,RLOO-F", "digits=4,16", "seed=0,1"])
    console = Console(width=80, height=40, record=True)
    console.print(_sweep_table(SweepProgress(configs, tmp_path), console))
    text = console.export_text()
    lines = text.splitlines()
    assert len(lines) == 5 + len(configs)  # no row is torn
    for header in ("estimator", "digits", "seed", "iteration", "accuracy", "state", "time left"):
        assert header in lines[1]
    assert text.count("IndeCateR-D-Latin") == 4
    assert "…" not in text
    assert "mnist" not in text


def test_times_of_the_bar_are_labelled() -> None:
    console = Console(width=80, record=True, force_terminal=True)
    with progress_bar(console) as bar:
        bar.add_task("negated test ELBO, nats 209.12", total=1000, completed=10)
    last = console.export_text().strip().splitlines()[-1]
    assert "elapsed" in last
    assert last.rstrip().endswith("left")


@pytest.mark.parametrize(
    "command",
    [
        *("", "run", "sweep", "plot", "report", "export", "compare", "list", "sweep addition"),
        *(f"run {name}" for name in EXPERIMENTS),
    ],
)
def test_help_fits_80_columns_and_has_no_markup(command: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    usage, text = capsys.readouterr().out.split("\n", 1)
    assert usage.startswith("usage: catlog ")
    assert max(map(len, text.splitlines())) <= 80
    assert not any(mark in text for mark in (":math:", "``", "\\sum", ":func:", "$"))


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("command", ["compare", "advise", "run dvae", "run programs"])
def test_help_breaks_lines_where_the_next_word_does_not_fit(
    command: str, columns: int, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    lines = capsys.readouterr().out.replace("│", " ").splitlines()  # with a frame or without
    texts = [(line, after) for line, after in pairwise(lines) if re.match(r" {20,}\S", after)]
    texts = [(line, after) for line, after in texts if re.search(r"\S {2,}\S|^ {20,}", line)]
    assert texts
    for line, after in texts:
        assert len(line.rstrip()) + 1 + len(after.split()[0]) > columns - 2


def test_the_list_uses_the_words_of_the_pages(capsys: Capture) -> None:
    assert main(["list", "estimators"]) == 0
    text = capsys.readouterr().out
    assert "index" not in text
    assert "independent: bits, categorical, one-hot, mixed; any: also structured" in text
    assert "knapsack" not in text
    assert len(text.splitlines()) < 60
    assert main(["list"]) == 0
    assert "knapsack" in capsys.readouterr().out


def test_the_list_shows_names_in_full(capsys: Capture) -> None:
    """In 80 columns, as in a pipe; the longest name has 30 letters."""
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    first_words = {line.split(" ")[0] for line in lines}
    assert first_words >= {*catlog.estimators.ESTIMATORS, *catlog.problems.PROBLEMS}


# --- reports


def test_an_empty_report_does_not_replace_one(capsys: Capture) -> None:
    Path("empty").mkdir()
    for command in ("report", "plot", "export"):
        Path("output").write_text("an earlier one", encoding="utf-8")
        message = error_of([command, "empty", "--output", "output"], capsys)
        assert "No run in empty. Nothing was written." in message
        assert Path("output").read_text(encoding="utf-8") == "an earlier one"


def test_a_report_names_runs_of_other_lengths(capsys: Capture) -> None:
    for seed, iterations in ((0, 40), (1, 40), (1, 20), (2, 20)):
        execute(replace(SMALL, seed=seed, iterations=iterations), f"runs/{seed}-{iterations}")
    assert main(["report", "runs"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "IndeCateR 2 40 0.25" in text
    assert (
        "runs with iterations=20 are shown as methods apart from those with iterations=40" in text
    )
    assert "optimisation, variables=5, update=own" in text
    assert "20 claims of the paper: 16 not run, 4 not testable." in text
    assert "Report: " in text


def test_a_report_says_which_option_decides(capsys: Capture) -> None:
    """The table of the paper's runs gives two verdicts, with step times and without."""
    results = Path(__file__).parents[2] / "results"
    command = ["report", str(results / "paper" / "optimisation.csv")]
    assert main(command) == 0
    assert "optimisation-time: decided by the clocks" in capsys.readouterr().out
    Path("ms.csv").write_text("problem,method,ms\noptimisation,RLOO-F,2\n", encoding="utf-8")
    assert main([*command, "--step-times", "ms.csv"]) == 0
    assert "clocks" not in capsys.readouterr().out


def test_a_sweep_without_rows_writes_no_report(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(Optimisation, "task", Mock(side_effect=MemoryError))
    Path("report.html").write_text("an earlier one", encoding="utf-8")
    assert main(["sweep", *FLAGS, "--report", "report.html"]) == 1
    assert Path("report.html").read_text(encoding="utf-8") == "an earlier one"
    assert "1 run of optimisation on this machine" in capsys.readouterr().out
