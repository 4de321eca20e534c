"""The page, from made-up rows of the paper's full size and from small real runs."""

import html.parser
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from catlog_experiments import DVAE, Addition, Gradients, Optimisation, execute, records
from catlog_experiments.report.claims import CLAIMS
from catlog_experiments.report.page import SECTIONS, report, verdict_lines
from catlog_experiments.report.provenance import provenance
from catlog_experiments.report.runs import Evidence
from catlog_experiments.report.step_times import NO_STEP_TIMES, StepTimes
from catlog_experiments.report.tables import gradients_tables, summary
from made_up_rows import PAPER, STEP_MS, addition_rows, dvae_rows, run_rows

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
    """Programs are not in the paper, which claims nothing of them."""
    claimed = {claim.section for claim in CLAIMS}
    assert claimed | {"programs"} == {section.key for section in SECTIONS}


def test_page_without_runs_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("an earlier report", encoding="utf-8")
    with pytest.raises(ValueError, match=r"There is no run to report.*1 rows are left out"):
        report([{"method": "RLOO", "ms": 2.0}], path)
    assert path.read_text(encoding="utf-8") == "an earlier report"


def test_summary_has_a_line_per_method_and_setting() -> None:
    tables = summary(Evidence.from_rows(PAPER))
    assert [len(table.rows) for table in tables] == [2 * 3 * 4, 4, 3 * 5 + 4, 6 * 4]
    assert tables[2].header[2:] == ["method", "seeds", "iterations", "negated test ELBO, nats"]
    assert summary(Evidence([])) == []


def test_tables_of_gradients_fit_a_page() -> None:
    rows = [row for row in PAPER if row["experiment"] == "gradients"]
    content = gradients_tables(Evidence.from_rows(rows))
    assert len(content) == 2 * 2 * 3  # two tables for each function and size
    assert all(len(table.header) <= 7 for table in content)
    for cosines, moments in zip(content[::2], content[1::2], strict=True):
        assert [row["method"] for row in cosines.rows] == [row["method"] for row in moments.rows]
        assert {"mean (1 - cos)", "var (cos)"} <= set(cosines.header)
        assert {"relative bias", "relative variance", "ms per estimate"} <= set(moments.header)


def test_page_begins_with_what_was_run_and_folds_the_rest(tmp_path: Path) -> None:
    rows = [row for row in PAPER if row["experiment"] == "addition" and row["digits"] == 16]
    shorter = [{**row, "epochs": 3} for row in rows if row["epoch"] <= 3]
    content = report([*rows, *shorter], tmp_path / "report.html").read_text(encoding="utf-8")
    before, folded = content.split("claims that these runs do not decide")
    assert before.index('id="run"') < before.index('id="addition"') < before.index('id="glance"')
    assert "runs with epochs=3 are shown as methods apart" in before
    assert "RLOO-S epochs=3" in before
    assert not re.search('class="badge not-', before)
    assert "Not run." not in before
    assert folded.count("Not run.") == len(SECTIONS) - 1
    assert folded.index("<section") > folded.index(
        "<details><summary>Experiments that were not run"
    )


def test_report_of_runs_that_decide_no_claim(tmp_path: Path) -> None:
    rows = dvae_rows("mnist-5000", "ReinMax", 100.0, 1.0, epochs=3)
    rows += dvae_rows("mnist-5000", "RLOO", 110.0, 1.0, epochs=3)
    content = report(rows, tmp_path / "report.html").read_text(encoding="utf-8")
    page = Page(content)
    assert len(page.images) == 2
    assert "<h1>Runs of catlog</h1>" in content
    assert "These runs decide none of the paper's claims" in content.replace("&#39;", "'")
    assert content.index("negated test ELBO, nats") < content.index("Verdicts on the paper")


@pytest.mark.parametrize("times", [NO_STEP_TIMES, TIMES])
def test_page_says_which_option_decides_claims_about_time(times: StepTimes, tmp_path: Path) -> None:
    rows = [row for row in PAPER if row["experiment"] == "dvae" and row["categories"] == 2]
    content = report(rows, tmp_path / "report.html", times).read_text(encoding="utf-8")
    lines = verdict_lines(Evidence.from_rows(rows, times))
    assert ("--step-times" in content) == (times is NO_STEP_TIMES)
    assert lines[0].startswith("20 claims of the paper: ")
    if times is NO_STEP_TIMES:
        (line,) = lines[1:]
        assert line.startswith("dvae-time, dvae-relaxation-time: decided by the clocks of the runs")
        assert "Pass --step-times" in line
    else:
        assert lines[1:] == []


def test_provenance_has_machine_seeds_and_commands(tmp_path: Path) -> None:
    for seed in range(2):
        execute(Optimisation(iterations=5, variables=5, seed=seed), tmp_path / str(seed))
    with (tmp_path / "1" / "sessions.jsonl").open("a", encoding="utf-8") as file:
        file.write("torn")
    rows = records.read(tmp_path)
    lines = provenance([tmp_path], rows)
    assert lines["seeds"] == "0, 1"
    assert lines["machine"] == socket.gethostname()
    assert {"commands of the runs", "system", "device", "torch", "sources"} <= lines.keys()
    content = report(rows, tmp_path / "report.html", provenance=lines).read_text(encoding="utf-8")
    assert socket.gethostname() in content.split("Provenance")[1]


def test_page_has_a_dark_mode(tmp_path: Path) -> None:
    rows = addition_rows(4, "RLOO-S", 0.5, epochs=2)
    content = report(rows, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "prefers-color-scheme: dark" in content


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
    of_exported, of_rows = Evidence.from_rows(exported), Evidence.from_rows(rows)
    assert [run.method for run in of_exported.runs] == [run.method for run in of_rows.runs]
    assert summary(of_exported) == summary(of_rows)
    content = report(exported, tmp_path / "report.html").read_text(encoding="utf-8")
    assert len(Page(content).images) == 2 + 1 + 2 + 1
    assert "RLOO samples=20" in content


def test_programs_have_curves_and_a_table_per_program(tmp_path: Path) -> None:
    rows = []
    for seed, (whole, accuracy) in enumerate([(False, 0.9), (False, 0.7), (True, 0.1)]):
        points = [
            {
                "iteration": 10 * epoch,
                "seconds": epoch,
                "epoch": epoch,
                "accuracy": accuracy * epoch / 2,
                "result_accuracy": 0.5,
                "digit_accuracy": 0.25,
            }
            for epoch in range(3)
        ]
        settings = {"program": "numbers", "digits": 4, "data": "mnist", "whole": whole}
        rows += run_rows("programs", "RLOO", seed, points, samples=10, epochs=2, **settings)
    text = report(rows, tmp_path / "report.html").read_text(encoding="utf-8")
    Page(text)
    part = text[text.index('id="programs"') :]
    assert "Programs over digits" in part
    table = part[part.index("examples right") :]
    cells = re.findall(r"<t[dh][^>]*>([^<]*)", table)
    assert any("all results at once" in cell for cell in cells)
    assert "0.80 ± 0.10" in cells  # the mean of 0.9 and 0.7
