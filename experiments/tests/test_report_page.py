"""The page, rendered once from made-up rows of the paper's sizes, and its tables."""

import html.parser
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from catlog_experiments import Gradients, Optimisation, execute, records
from catlog_experiments.report.claims import CLAIMS
from catlog_experiments.report.figures import pictures
from catlog_experiments.report.page import (
    provenance,
    sections,
    verdict_lines,
    write_figures,
    write_page,
)
from catlog_experiments.report.runs import Evidence
from catlog_experiments.report.tables import summary, tables
from made_up_rows import PAPER, Row, addition_rows, dvae_rows, run_rows

TIMES = [
    {"problem": problem, "method": "RLOO-F", "ms": 4.0}
    for problem in ("dvae", "dvae, 10 categories", "optimisation")
]


class Page(html.parser.HTMLParser):
    """Checks nesting, and gathers what a page refers to."""

    VOID = ("meta", "link", "img", "br")

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.images: list[dict[str, str | None]] = []
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
            self.images.append(attributes)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def written(rows: list[Row], folder: Path, times: list[Row] | None = None) -> str:
    evidence = Evidence.from_rows(rows, times or [])
    path = write_page(evidence, folder / "new" / "report.html", {"device": "some <GPU>"})
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of the addition of 16 digits, of some shorter runs, and of bits of Omniglot."""
    rows = [row for row in PAPER if row.get("digits") == 16 or row.get("data") == "omniglot"]
    shorter = [{**row, "epochs": 3} for row in rows if "digits" in row and row["epoch"] <= 3]
    return written([*rows, *shorter], tmp_path_factory.mktemp("page"))


def test_page_has_every_claim_and_figure_and_needs_no_other_file(content: str) -> None:
    page = Page(content)
    assert len(set(page.ids)) == len(page.ids)
    assert all(f"{claim.key}-claim" in page.ids for claim in CLAIMS)
    assert all(section.key in page.ids for section in sections(Evidence.from_rows([])))
    assert len(page.images) == 2 + 1
    assert all(image["alt"] for image in page.images)
    assert all(link.startswith(("#", "data:")) for link in page.links)
    assert all(link[1:] in page.ids for link in page.links if link.startswith("#"))
    assert not re.search(r"url\(|@import|https?://", content)
    assert "prefers-color-scheme: dark" in content
    assert "some &lt;GPU&gt;" in content
    assert content.count('class="badge') == 2 * len(CLAIMS)


def test_page_begins_with_what_was_run_and_folds_the_rest(content: str) -> None:
    before, folded = content.split("claims that these runs do not decide")
    assert before.index('id="run"') < before.index('id="addition"') < before.index('id="glance"')
    assert "runs with epochs=3 are shown as methods apart" in before
    assert "RLOO-S epochs=3" in before
    assert not re.search('class="badge not-', before)
    assert "Not run." not in before
    assert folded.count("Not run.") == 6 - 2
    assert folded.index("<section") > folded.index(
        "<details><summary>Experiments that were not run"
    )


def test_report_of_runs_that_decide_no_claim(tmp_path: Path) -> None:
    rows = dvae_rows("mnist-5000", "ReinMax", 100.0, 1.0, epochs=3)
    content = written(rows, tmp_path)
    assert len(Page(content).images) == 2
    assert "<h1>Runs of catlog</h1>" in content
    assert "These runs decide none of the paper's claims" in content.replace("&#39;", "'")
    assert content.index("negated test ELBO, nats") < content.index("Verdicts on the paper")


def test_report_says_which_option_decides_claims_about_time(content: str) -> None:
    assert "--step-times" in content
    first, second = verdict_lines(Evidence.from_rows(PAPER))
    assert first.startswith("20 claims of the paper: ")
    names = "optimisation-time, dvae-time, dvae-relaxation-time, categorical"
    assert second.startswith(f"{names}: decided by the clocks of the runs. Pass --step-times")
    assert len(verdict_lines(Evidence.from_rows(PAPER, TIMES))) == 1


def test_a_report_of_nothing_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    evidence = Evidence.from_rows([{"method": "RLOO"}])
    for write in (write_page, write_figures):
        with pytest.raises(ValueError, match=r"There is no run to report.*1 rows are left out"):
            write(evidence, tmp_path / "none" / "report")
    assert not (tmp_path / "none").exists()


def test_figures_are_written(tmp_path: Path) -> None:
    evidence = Evidence.from_rows(addition_rows(4, "RLOO-S", 0.5))
    (path,) = write_figures(evidence, tmp_path / "new")
    assert path.name == "addition.png"
    assert path.stat().st_size > 10_000


def test_summary_has_a_line_per_method_and_setting() -> None:
    contents = summary(Evidence.from_rows(PAPER))
    assert [len(table.rows) for table in contents] == [2 * 3 * 4, 4, 3 * 5 + 4, 6 * 4]
    assert contents[2].header[2:] == ["method", "seeds", "iterations", "negated test ELBO, nats"]
    assert summary(Evidence.from_rows([])) == []


def test_tables_of_gradients_fit_a_page() -> None:
    rows = [row for row in PAPER if row["experiment"] == "gradients"]
    contents = tables(Evidence.from_rows(rows))
    assert len(contents) == 2 * 2 * 3  # two tables for each function and size
    assert all(len(table.header) <= 7 for table in contents)
    for cosines, moments in zip(contents[::2], contents[1::2], strict=True):
        assert [row["method"] for row in cosines.rows] == [row["method"] for row in moments.rows]
        assert {"mean (1 - cos)", "var (cos)"} <= set(cosines.header)
        assert {"relative bias", "relative variance", "ms per estimate"} <= set(moments.header)


def test_programs_have_a_figure_and_a_table_per_program() -> None:
    rows = []
    for seed, (whole, accuracy) in enumerate([(False, 0.9), (False, 0.7), (True, 0.1)]):
        points = [
            {"iteration": 10 * epoch, "epoch": epoch, "accuracy": accuracy * epoch / 2}
            for epoch in range(3)
        ]
        settings = {"program": "numbers", "digits": 4, "data": "mnist", "whole": whole}
        rows += run_rows("programs", "RLOO", seed, points, samples=10, epochs=2, **settings)
    evidence = Evidence.from_rows(rows)
    assert [picture.name for picture in pictures(evidence)] == ["programs"]
    (table,) = tables(evidence)
    cells = {row["method"]: row["examples right"] for row in table.rows}
    assert cells == {"RLOO samples=10": "0.80 ± 0.10", "RLOO samples=10 whole=True": "0.1"}


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
    exported = Evidence.from_rows(records.read(tmp_path / "runs.csv"))
    evidence = Evidence.from_rows(rows)
    assert [run.method for run in exported.runs] == [run.method for run in evidence.runs]
    assert summary(exported) == summary(evidence)
    assert "RLOO samples=20" in {row["method"] for table in tables(evidence) for row in table.rows}
    lines = provenance([tmp_path / "runs"], rows)
    assert lines["seeds"] == "0, 1"
    assert lines["machine"] == socket.gethostname()
    assert {"commands of the runs", "system", "device", "torch", "sources"} <= lines.keys()
