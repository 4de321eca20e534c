"""The report: from rows to runs, numbers, figures, tables and one page."""

import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from catlog_experiments import EXPERIMENTS, records
from catlog_experiments.report.claims import CLAIMS
from catlog_experiments.report.figures import pictures
from catlog_experiments.report.page import tables, write_page
from catlog_experiments.report.runs import Evidence, method_label, published, with_published
from made_up_rows import Row, addition, dvae, optimisation, rows

RESULTS = Path(__file__).parents[2] / "results" / "paper"


@pytest.fixture(scope="module")
def paper() -> Evidence:
    """The recorded runs of the paper's experiments."""
    names = ("gradients", "optimisation", "dvae", "addition")
    return Evidence.from_rows(records.read_all(RESULTS / f"{name}.csv" for name in names))


# --- from rows to runs


def test_runs_of_different_lengths_are_not_averaged_without_a_note() -> None:
    long = addition("RLOO-F", 0.5, epochs=8, seeds=[0])
    short = [{**row, "epochs": 3} for row in addition("RLOO-F", 0.1, epochs=3, seeds=[0])]
    others = addition("RLOO-F", 0.7, epochs=6, seeds=[1])
    others += addition("RLOO-F", 0.9, epochs=3, seeds=[2])
    ignored = [{"method": "RLOO", "ms": 2.0}, {**long[0], "protocol": "bernoulli"}]
    evidence = Evidence.from_rows([*long, *short, *long, *others, *ignored])
    assert {(run["seed"], run.length) for run in evidence.runs} == {(0, 375 * 6), (1, 375 * 6)}
    lengths = "seed 0: 3000, seed 0: 1125, seed 1: 2250, seed 2: 1125"
    assert evidence.notes == [
        "2 rows are left out: they are not of the experiments reported here.",
        "addition RLOO-F (data=mnist, digits=4): the runs differ in length "
        f"({lengths}). 2 of 4 count, up to iteration 2250.",
    ]
    curve = evidence.methods("addition")["RLOO-F"].series("accuracy", "epoch")
    assert curve["x"].tolist() == list(range(7))
    assert curve["mean"].iloc[-1] == pytest.approx(0.6)
    assert curve["error"].iloc[-1] == pytest.approx(0.1)  # sample standard deviation / sqrt(2)


def test_a_run_and_its_table_are_one_run(tmp_path: Path) -> None:
    """A table has a text where a run has a list, and nothing where a setting is empty."""
    made = addition("RLOO-F", 0.5, seeds=1)
    for options in ([], ["draws=latin", "validate=False"]):
        run = [{**row, "options": options, "samples": None, "clip": 1 / 3} for row in made]
        records.write(run, tmp_path / "runs.csv")
        evidence = Evidence.from_rows([*run, *records.read(tmp_path / "runs.csv")])
        assert len(evidence.runs) == 1
        assert evidence.notes == []


def test_runs_with_other_settings_are_other_methods() -> None:
    row = {"experiment": "programs", "estimator": "IndeCateR", "iteration": 0}
    changes = ({}, {"network": "conv"}, {"shift": 2}, {"decay": False}, {"value_samples": 9})
    made = [{**row, **change, "seed": seed} for seed, change in enumerate(changes)]
    methods = Evidence.from_rows(made).methods("programs")
    assert [len(runs) for runs in methods.values()] == [1] * len(changes)
    assert "IndeCateR network=conv" in methods
    row = {"experiment": "dvae", "estimator": "IndeCateR", "options": [], "anneal": False}
    assert method_label({**row, "learning_rate": 1e-4}) == "IndeCateR"  # nothing to anneal
    changed = {**row, "options": ["draws=latin"], "samples": 4, "learning_rate": 2e-4}
    assert method_label(changed) == "IndeCateR samples=4 draws=latin learning_rate=0.0002"
    assert method_label({**row, "estimator": "GS-F"}) == "GS-F anneal=False"


def test_step_times_replace_the_clock() -> None:
    made = addition("RLOO-F", 0.5) + addition("RLOO-S", 0.5)
    clock = Evidence.from_rows(made).methods("addition")
    assert clock["RLOO-S"].stat("final step_ms").mean == pytest.approx(200 / 749)
    times = [{"problem": "addition, 4 digits", "method": "RLOO-F", "ms": 2.0}]
    methods = Evidence.from_rows(made, times).methods("addition")
    assert str(methods["RLOO-F"].stat("final step_ms")) == "2"
    assert methods["RLOO-F"].end("seconds") == 749 * 2.0 / 1000
    assert math.isnan(methods["RLOO-S"].end("seconds"))
    assert methods["RLOO-S"].stat("final step_ms").seeds == 0
    with pytest.raises(ValueError, match="the columns problem, method and ms"):
        Evidence.from_rows([], [{"method": "RLOO-F", "ms": ""}])


def test_published_numbers_are_runs() -> None:
    """Without notes: none is left out, cut or doubled."""
    assert published().notes == []
    omniglot = published().methods("dvae", data="omniglot", categories=2)
    assert omniglot["IndeCateR"].stat("final train").mean == 103.3
    assert omniglot["RLOO-S"].at("test", 10_000).seeds == 0
    runs = Evidence.from_rows(addition("IndeCateR-D", 0.5, digits=16)).methods("addition")
    assert with_published(runs)["IndeCateR-D (paper)"].at("accuracy", 5, "epoch").mean == 0.75


# --- figures and tables


def figure(made: list[Row], name: str, step_times: list[Row] | None = None) -> Figure:
    found = pictures(Evidence.from_rows(made, step_times or []))
    return next(picture for picture in found if picture.name == name).draw()


def test_every_experiment_has_its_figures_and_tables(paper: Evidence) -> None:
    assert {picture.name: len(picture.panels) for picture in pictures(paper)} == {
        "gradients": 12, "gradients-pairwise": 12, "optimisation": 4, "optimisation-published": 4,
        "dvae-iterations": 16, "dvae-time": 16, "addition": 6,
    }  # fmt: skip
    contents = tables(paper, summary=True)
    assert len(contents) == 6 + 2 + 4 + 6
    (omniglot,) = [table for caption, table in contents.items() if "omniglot" in caption]
    assert [*omniglot] == ["method", "seeds", "iterations", "negated test ELBO, nats"]
    assert [*omniglot["method"]] == ["IndeCateR", "RLOO-F", "RLOO-S", "GS-F", "GS-S"]
    assert tables(paper).keys() == contents.keys()
    assert tables(Evidence.from_rows([])) == {}


def test_runs_of_different_sizes_are_not_drawn_as_one() -> None:
    sizes = optimisation("IndeCateR", 100) + optimisation("IndeCateR", 100, variables=5)
    names = [picture.name for picture in pictures(Evidence.from_rows(sizes))]
    assert names == ["optimisation-5", "optimisation"]
    columns = {"iteration": [0], "epoch": 1, "accuracy": 0.5, "program": "equal", "digits": 2}
    programs = rows("programs", "RLOO", data="mnist", **columns)
    programs += rows("programs", "RLOO", data="mnist-5000", **columns)
    titles = [axes.get_title(loc="left") for axes in figure(programs, "programs").axes]
    assert titles == ["equal, MNIST, 2 digits", "equal, MNIST, 5,000 images, 2 digits"]


def test_time_axes_follow_the_step_times() -> None:
    made = dvae("IndeCateR", ms=7.0)
    for times, ms in (([], 7.0), ([{"problem": "dvae", "method": "IndeCateR", "ms": 2.0}], 2.0)):
        axes = figure(made, "dvae-time", times).axes[0]
        assert np.max(axes.lines[0].get_xdata()) == pytest.approx(60 * ms, rel=1e-4)
    times = [{"problem": "dvae", "method": "RLOO-F", "ms": 2.0}]
    assert figure(made, "dvae-time", times).axes[0].texts[0].get_text() == "not measured"


def test_zero_variances_and_published_curves_are_drawn() -> None:
    """The published curves are known by iteration only."""
    made = optimisation("IndeCateR", 100, 0.0) + optimisation("RLOO-F", 100)
    fig = figure([{**row, "update": "published"} for row in made], "optimisation-published")
    by_iteration, by_time, variance, _ = fig.axes
    assert variance.texts[0].get_text() == "0 up to rounding:\nIndeCateR"
    assert len(by_iteration.lines) == len(by_time.lines) + 1
    assert "IndeCateR (paper)" in [text.get_text() for text in fig.legends[0].get_texts()]


# --- the page


def written(made: list[Row], folder: Path) -> str:
    path = folder / "new" / "report.html"
    write_page(Evidence.from_rows(made), path, pd.DataFrame({"device": ["some <GPU>"]}))
    return path.read_text(encoding="utf-8")


def test_page_has_every_claim_and_figure_and_needs_no_other_file(tmp_path: Path) -> None:
    """The page of the addition of 16 digits, and of a run that was cut."""
    shares = {"IndeCateR": 0.4, "IndeCateR-D": 0.86, "RLOO-F": 0.5, "RLOO-S": 0.1}
    runs = [addition(name, share, 50, digits=16) for name, share in shares.items()]
    cut = addition("RLOO-S", 0.1, epochs=3, seeds=[9], digits=16)
    content = written([*(row for run in runs for row in run), *cut], tmp_path)
    ids, links = re.findall(r'\bid="([^"]*)"', content), re.findall(r'\b(?:href|src)="(.)', content)
    assert len(set(ids)) == len(ids)
    assert {*(f"{claim.key}-claim" for claim in CLAIMS), *EXPERIMENTS} <= {*ids}
    assert {f'href="#{name}"' for name in ids} >= {*re.findall(r'href="#[^"]*"', content)}
    assert content.count("<img ") == content.count('alt="MNIST addition') == 1
    assert {*links} == {"#", "d"}  # data of the page itself
    assert not re.search(r"url\(|@import|https?://", content)
    assert "prefers-color-scheme: dark" in content
    assert "some &lt;GPU&gt;" in content
    assert content.count('class="badge') == 2 * len(CLAIMS)
    before, folded = content.split("claims that these runs do not decide")
    assert before.index('id="run"') < before.index('id="addition"') < before.index('id="glance"')
    assert "2 of 3 count, up to iteration 18750" in before
    assert not re.search('class="badge not-', before)
    assert folded.count("Not run.") == content.count("Not run.") == 4


def test_report_of_runs_that_decide_no_claim(tmp_path: Path) -> None:
    content = written(dvae("ReinMax", data="mnist-5000"), tmp_path)
    assert content.count("<img ") == 2
    assert "<h1>Runs of catlog</h1>" in content
    assert "These runs decide none of the paper's claims" in content.replace("&#39;", "'")


def test_a_report_of_nothing_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    evidence = Evidence.from_rows([{"method": "RLOO"}])
    with pytest.raises(ValueError, match=r"There is no run to report.*1 rows are left out"):
        write_page(evidence, tmp_path / "none" / "report")
    assert not (tmp_path / "none").exists()
