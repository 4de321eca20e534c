"""The page, from made-up rows of the paper's full size and from small real runs."""

import html.parser
import re
from pathlib import Path
from typing import Any

from made_up_rows import PAPER, STEP_MS

from catlog.experiments import DVAE, Addition, Gradients, Optimisation, execute, records
from catlog.report.claims import CLAIMS
from catlog.report.page import SECTIONS, report
from catlog.report.runs import collect
from catlog.report.step_times import StepTimes
from catlog.report.tables import summary

TIMES = StepTimes(
    {("dvae", name): ms for name, ms in STEP_MS.items()} | {("dvae, 10 categories", "RLOO-F"): 9.0}
)


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


def test_page_has_every_claim_and_figure_and_needs_no_other_file(tmp_path: Path) -> None:
    # fewer panels: faster
    rows = [row for row in PAPER if row.get("data") != "mnist" or row.get("digits", 0) >= 16]
    path = report(rows, tmp_path / "a" / "report.html", TIMES, {"device": "some <GPU>"})
    content = path.read_text(encoding="utf-8")
    page = Page(content)
    assert len(set(page.ids)) == len(page.ids)
    assert all(f"{claim.key}-claim" in page.ids for claim in CLAIMS)
    assert all(section.key in page.ids for section in SECTIONS)
    assert len(page.images) == 2 + 1 + 2 + 2 + 1
    assert all(image["alt"] for image in page.images)
    assert all(link.startswith(("#", "data:")) for link in page.links)
    assert all(link[1:] in page.ids for link in page.links if link.startswith("#"))
    assert not re.search(r"url\(|@import|https?://", content)
    assert "some &lt;GPU&gt;" in content
    assert content.count('class="badge') == 2 * len(CLAIMS)


def test_claims_belong_to_sections() -> None:
    assert {claim.section for claim in CLAIMS} == {section.key for section in SECTIONS}


def test_page_without_runs_says_so(tmp_path: Path) -> None:
    content = report([], tmp_path / "report.html").read_text(encoding="utf-8")
    page = Page(content)
    assert page.images == []
    assert content.count("Not run.") == len(SECTIONS)


def test_summary_has_a_line_per_method_and_setting() -> None:
    lines = summary(PAPER)
    assert len(lines) == 2 * 3 * 4 + 4 + 3 * 5 + 4 + 6 * 4
    assert {tuple(line) for line in lines} == {("experiment", "method", "seeds", "result")}
    assert summary([]) == []


def test_small_runs_of_all_experiments_make_a_page(tmp_path: Path) -> None:
    estimates = {"repeats": 120}
    steps = {"variables": 20, "iterations": 40}
    images = {"variables": 10, "epochs": 1, "test_samples": 1, "gradient_repeats": 2}
    for seed in range(2):
        common: dict[str, Any] = {"device": "cpu", "seed": seed}
        for number, config in enumerate(
            (
                Gradients(estimator="IndeCateR", **estimates, **common),
                Gradients(estimator="RLOO", samples=20, **estimates, **common),
                Gradients(estimator="GS", samples=20, **estimates, **common),
                Gradients(estimator="IndeCateR", function="pairwise", **estimates, **common),
                Optimisation(estimator="IndeCateR", **steps, **common),
                Optimisation(estimator="RLOO-S", **steps, **common),
                DVAE(estimator="RLOO-S", **images, **common),
                Addition(estimator="RLOO-S", digits=32, epochs=1, **common),
            )
        ):
            execute(config, tmp_path / "runs" / f"{number}-{seed}")
    rows = records.read(tmp_path / "runs")
    records.write(rows, tmp_path / "runs.csv", digits=17)
    exported = records.read(tmp_path / "runs.csv")
    assert [run.method for run in collect(exported)] == [run.method for run in collect(rows)]
    assert summary(exported) == summary(rows)
    content = report(exported, tmp_path / "report.html").read_text(encoding="utf-8")
    assert len(Page(content).images) == 2 + 1 + 2 + 1
    assert "RLOO samples=20" in content
