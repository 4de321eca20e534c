"""The report: from rows to runs, numbers, figures, tables and one page."""

import html.parser
import math
import re
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from catlog_experiments import EXPERIMENTS, Gradients, Optimisation, execute, records
from catlog_experiments.report.claims import CLAIMS
from catlog_experiments.report.figures import pictures
from catlog_experiments.report.page import (
    count_verdicts,
    provenance,
    tables,
    write_figures,
    write_page,
)
from catlog_experiments.report.runs import Evidence, method_label, published, with_published
from made_up_rows import PAPER, Row, addition_rows, dvae_rows, optimisation_rows, run_rows

SIZE = "addition RLOO-F (data=mnist, digits=4)"

# --- from rows to runs


def test_the_longest_run_of_a_seed_counts_and_what_is_left_out_is_named() -> None:
    short = [{**row, "epochs": 3} for row in addition_rows(4, "RLOO-F", 0.1, epochs=3, seeds=1)]
    long = addition_rows(4, "RLOO-F", 0.9, epochs=8, seeds=1)
    other = {**long[0], "protocol": "bernoulli"}
    evidence = Evidence.from_rows([*long, *short, *long, {"method": "RLOO", "ms": 2.0}, other])
    assert [(run.method, run.length) for run in evidence.runs] == [("RLOO-F", 375 * 8)]
    assert len(evidence.runs[0].points) == 9
    assert evidence.notes == (
        "2 rows are left out: they are not of the experiments reported here.",
        f"{SIZE}: the runs differ in length (seed 0: 3000, seed 0: 1125). 1 of 2 count, up to "
        "iteration 3000.",
    )


def test_runs_of_different_lengths_are_not_averaged_without_a_note() -> None:
    rows = [
        *addition_rows(4, "RLOO-F", [0.5], epochs=8),
        *addition_rows(4, "RLOO-F", [0.0, 0.7], epochs=6)[7:],
        *addition_rows(4, "RLOO-F", [0.0, 0.0, 0.9], epochs=3)[8:],
    ]
    evidence = Evidence.from_rows(rows)
    assert {(run["seed"], run.length) for run in evidence.runs} == {(0, 375 * 6), (1, 375 * 6)}
    lengths = "seed 0: 3000, seed 1: 2250, seed 2: 1125"
    assert evidence.notes == (
        f"{SIZE}: the runs differ in length ({lengths}). 2 of 3 count, up to iteration 2250.",
    )
    curve = evidence.methods("addition")["RLOO-F"].series("accuracy", "epoch")
    assert curve["x"].tolist() == list(range(7))
    values = [0.5 * (1 - math.exp(-6 / 4)), 0.7]
    assert curve["mean"].iloc[-1] == pytest.approx(sum(values) / 2)
    # the sample standard deviation over sqrt(2)
    assert curve["error"].iloc[-1] == pytest.approx(abs(values[0] - values[1]) / 2)


def test_a_run_and_its_table_are_one_run(tmp_path: Path) -> None:
    """A table has a text where a run has a list, and nothing where a setting is empty."""
    rows = addition_rows(4, "RLOO-F", 0.5, epochs=2, seeds=1)
    for options in ([], ["draws=latin", "validate=False"]):
        run = [{**row, "options": options, "samples": None, "clip": 1 / 3} for row in rows]
        records.write(run, tmp_path / "runs.csv")
        evidence = Evidence.from_rows([*run, *records.read(tmp_path / "runs.csv")])
        assert len(evidence.runs) == 1
        assert evidence.notes == ()


def test_runs_with_other_settings_are_other_methods() -> None:
    row = {"experiment": "programs", "estimator": "IndeCateR", "iteration": 0}
    changes = ({}, {"network": "conv"}, {"shift": 2}, {"decay": False}, {"sequences": 500})
    changes += ({"value_samples": 9}, {"restart": 20}, {"floor": 1e-4})
    rows = [{**row, **change, "seed": seed} for seed, change in enumerate(changes)]
    methods = Evidence.from_rows(rows).methods("programs")
    assert [len(runs) for runs in methods.values()] == [1] * len(changes)
    assert "IndeCateR network=conv" in methods
    row = {"experiment": "dvae", "estimator": "IndeCateR", "options": [], "anneal": False}
    assert method_label({**row, "learning_rate": 1e-4}) == "IndeCateR"  # nothing to anneal
    changed = {**row, "options": ["draws=latin"], "samples": 4, "learning_rate": 2e-4}
    assert method_label(changed) == "IndeCateR samples=4 draws=latin learning_rate=0.0002"
    assert method_label({**row, "estimator": "GS-F"}) == "GS-F anneal=False"


def test_step_times_replace_the_clock() -> None:
    rows = addition_rows(4, "RLOO-F", 0.5, epochs=2) + addition_rows(4, "RLOO-S", 0.5, epochs=2)
    clock = Evidence.from_rows(rows).methods("addition")
    assert clock["RLOO-S"].stat("step_ms").mean == pytest.approx(200 / 749)
    times = [{"problem": "addition, 4 digits", "method": "RLOO-F", "ms": 2.0}]
    methods = Evidence.from_rows(rows, times).methods("addition")
    assert str(methods["RLOO-F"].stat("step_ms")) == "2"
    assert methods["RLOO-F"].end("seconds") == 750 * 2.0 / 1000
    assert math.isnan(methods["RLOO-S"].end("seconds"))
    assert methods["RLOO-S"].stat("step_ms").seeds == 0
    with pytest.raises(ValueError, match="the columns problem, method and ms"):
        Evidence.from_rows([], [{"method": "RLOO-F", "ms": ""}])


def test_published_numbers_are_runs() -> None:
    """Without notes: none is left out, cut or doubled."""
    assert published().notes == ()
    omniglot = published().methods("dvae", data="omniglot", categories=2)
    assert omniglot["IndeCateR"].stat("final train").mean == 103.3
    assert omniglot["RLOO-S"].at("test", 10_000).seeds == 0
    runs = Evidence.from_rows(addition_rows(16, "IndeCateR-D", 0.5)).methods("addition")
    assert with_published(runs)["IndeCateR-D (paper)"].at("accuracy", 5, "epoch").mean == 0.75


# --- figures


def figure(rows: list[Row], name: str, step_times: list[Row] | None = None) -> Figure:
    found = pictures(Evidence.from_rows(rows, step_times or []))
    return next(picture for picture in found if picture.name == name).draw()


def test_every_experiment_has_its_figures() -> None:
    panels = {picture.name: len(picture.panels) for picture in pictures(Evidence.from_rows(PAPER))}
    assert panels == {
        "gradients": 12, "gradients-pairwise": 12, "optimisation": 4, "dvae-iterations": 16,
        "dvae-time": 16, "addition": 6,
    }  # fmt: skip


def test_runs_of_different_sizes_are_not_drawn_as_one() -> None:
    rows = optimisation_rows("IndeCateR", 0.02, 0.0)
    rows += [{**row, "variables": 5} for row in rows]
    names = [picture.name for picture in pictures(Evidence.from_rows(rows))]
    assert names == ["optimisation-5", "optimisation"]
    point = {"iteration": 0, "epoch": 1, "accuracy": 0.5}
    programs = [
        row
        for data in ("mnist", "mnist-5000")
        for row in run_rows("programs", "RLOO", 0, [point], program="equal", data=data, digits=2)
    ]
    titles = [axes.get_title(loc="left") for axes in figure(programs, "programs").axes]
    assert titles == ["equal, MNIST, 2 digits", "equal, MNIST, 5,000 images, 2 digits"]


def test_time_axes_follow_the_step_times() -> None:
    rows = dvae_rows("mnist", "IndeCateR", 95.0, ms=7.0)
    for times, ms in (([], 7.0), ([{"problem": "dvae", "method": "IndeCateR", "ms": 2.0}], 2.0)):
        axes = figure(rows, "dvae-time", times).axes[0]
        assert np.max(axes.lines[0].get_xdata()) == pytest.approx(60 * ms)
    times = [{"problem": "dvae", "method": "RLOO-F", "ms": 2.0}]
    assert figure(rows, "dvae-time", times).axes[0].texts[0].get_text() == "not measured"


def test_zero_variances_and_published_curves_are_drawn() -> None:
    """The published curves are known by iteration only."""
    config: dict[str, Any] = {"update": "published", "gradient_spread": 1e-12}
    rows = optimisation_rows("IndeCateR", 0.02, 0.0) + optimisation_rows("RLOO-F", 0.02, 1e-9)
    fig = figure([{**row, **config} for row in rows], "optimisation-published")
    by_iteration, by_time, variance, _ = fig.axes
    assert variance.texts[0].get_text() == "0 up to rounding:\nIndeCateR"
    assert len(by_iteration.lines) == len(by_time.lines) + 1
    assert "IndeCateR (paper)" in [text.get_text() for text in fig.legends[0].get_texts()]


# --- tables


def test_a_table_has_a_line_per_method_and_setting() -> None:
    evidence = Evidence.from_rows(PAPER)
    contents = tables(evidence, summary=True)
    count = dict.fromkeys(EXPERIMENTS, 0)
    for caption, table in contents.items():
        count[caption.split(",")[0]] += len(table)
    counts = {"gradients": 2 * 3 * 4, "optimisation": 4, "dvae": 3 * 5 + 4, "addition": 6 * 4}
    assert count == counts | {"programs": 0}
    (omniglot,) = [table for caption, table in contents.items() if "omniglot" in caption]
    assert [*omniglot] == ["method", "seeds", "iterations", "negated test ELBO, nats"]
    assert tables(evidence).keys() == contents.keys()
    assert tables(Evidence.from_rows([])) == {}


def test_real_runs_and_their_table_make_the_same_report(tmp_path: Path) -> None:
    steps: dict[str, Any] = {"variables": 20, "iterations": 10, "device": "cpu"}
    for seed in range(2):
        for config in (
            Gradients(estimator="RLOO", samples=20, repeats=120, device="cpu", seed=seed),
            Optimisation(estimator="RLOO-S", seed=seed, **steps),
        ):
            execute(config, tmp_path / "runs" / f"{config.name}-{seed}")
    with (tmp_path / "runs" / "gradients-1" / "sessions.jsonl").open("a", encoding="utf-8") as file:
        file.write("torn")
    rows = records.read(tmp_path / "runs")
    records.write(rows, tmp_path / "runs.csv", digits=17)
    exported = tables(Evidence.from_rows(records.read(tmp_path / "runs.csv")))
    contents = tables(Evidence.from_rows(rows))
    assert all(table.equals(exported[caption]) for caption, table in contents.items())
    assert "RLOO samples=20" in {name for table in contents.values() for name in table["method"]}
    (host,) = provenance([tmp_path / "runs"])["host"]
    assert host == socket.gethostname()


# --- the page


class Page(html.parser.HTMLParser):
    """Checks nesting, and gathers what a page refers to."""

    VOID = ("meta", "link", "img", "br")

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.images = 0
        self.feed(content)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        assert tag not in ("script", "iframe", "object")
        self.ids += [attributes["id"] or ""] if "id" in attributes else []
        links = [attributes.get(name) for name in ("href", "src", "srcset")]
        self.links += [link for link in links if link is not None]
        if tag == "img":
            assert attributes["alt"]
            self.images += 1
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def written(rows: list[Row], folder: Path) -> str:
    path = folder / "new" / "report.html"
    write_page(Evidence.from_rows(rows), path, pd.DataFrame({"device": ["some <GPU>"]}))
    return path.read_text(encoding="utf-8")


def test_page_has_every_claim_and_figure_and_needs_no_other_file(tmp_path: Path) -> None:
    """The page of the addition of 16 digits, and of a run that was cut."""
    cut = [{**row, "seed": 9} for row in addition_rows(16, "RLOO-S", 0.1, epochs=3, seeds=1)]
    content = written([*(row for row in PAPER if row.get("digits") == 16), *cut], tmp_path)
    page = Page(content)
    assert len(set(page.ids)) == len(page.ids)
    assert {*(f"{claim.key}-claim" for claim in CLAIMS), *EXPERIMENTS} <= {*page.ids}
    assert page.images == 1
    assert all(link.startswith(("#", "data:")) for link in page.links)
    assert all(link[1:] in page.ids for link in page.links if link.startswith("#"))
    assert not re.search(r"url\(|@import|https?://", content)
    assert "prefers-color-scheme: dark" in content
    assert "some &lt;GPU&gt;" in content
    assert content.count('class="badge') == 2 * len(CLAIMS)
    before, folded = content.split("claims that these runs do not decide")
    assert before.index('id="run"') < before.index('id="addition"') < before.index('id="glance"')
    assert "3 of 4 count, up to iteration 37500" in before
    assert not re.search('class="badge not-', before)
    assert folded.count("Not run.") == content.count("Not run.") == 4


def test_report_of_runs_that_decide_no_claim(tmp_path: Path) -> None:
    rows = dvae_rows("mnist-5000", "ReinMax", 100.0, 1.0, epochs=3)
    content = written(rows, tmp_path)
    assert Page(content).images == 2
    assert "<h1>Runs of catlog</h1>" in content
    assert "These runs decide none of the paper's claims" in content.replace("&#39;", "'")
    assert count_verdicts(Evidence.from_rows(rows)).startswith("20 claims of the paper: ")


def test_a_report_of_nothing_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    evidence = Evidence.from_rows([{"method": "RLOO"}])
    for write in (write_page, write_figures):
        with pytest.raises(ValueError, match=r"There is no run to report.*1 rows are left out"):
            write(evidence, tmp_path / "none" / "report")
    assert not (tmp_path / "none").exists()
    (path,) = write_figures(Evidence.from_rows(addition_rows(4, "RLOO-S", 0.5)), tmp_path / "new")
    assert path.name == "addition.png"
    assert path.stat().st_size > 10_000
