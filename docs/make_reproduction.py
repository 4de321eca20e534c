"""Fill the results of docs/reproduction.md from results/*.csv; with --check, only compare."""

import sys
from pathlib import Path

from catlog.experiments import records
from catlog.report.claims import judge
from catlog.report.page import SECTIONS
from catlog.report.runs import Evidence, collect, section_of
from catlog.report.step_times import StepTimes
from catlog.report.tables import Table

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "paper"
SOURCES = ("gradients", "optimisation", "dvae", "addition")
BEGIN, END = "<!-- results: begin (made by docs/make_reproduction.py) -->", "<!-- results: end -->"


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")


def markdown(table: Table) -> str:
    lines = [
        f"*{table.caption}*",
        "",
        "| " + " | ".join(table.header) + " |",
        "|" + "---|" * len(table.header),
    ]
    lines += [
        "| " + " | ".join(cell(row.get(name, "")) for name in table.header) + " |"
        for row in table.rows
    ]
    return "\n".join(lines)


def times() -> StepTimes:
    path = RESULTS.parent / "speed" / "step_times_cuda.csv"
    return StepTimes.from_rows(records.read(path) if path.exists() else [])


def results() -> str:
    """Verdicts, figures and tables of every experiment that was run."""
    rows = records.read_all(path for name in SOURCES if (path := RESULTS / f"{name}.csv").exists())
    runs, taken = collect(rows), times()
    judged = judge(Evidence(runs, taken))
    parts = ["## Results", "", "| claim | verdict | why |", "|---|---|---|"]
    parts += [
        f"| {cell(claim.says)} | **{verdict.outcome}** | {cell(verdict.why)} |"
        for claim, verdict in judged
    ]
    for section in SECTIONS:
        here = [run for run in runs if section_of(run) == section.key]
        if here:
            parts += ["", f"### {section.title}", "", section.about]
            for figure in sorted(
                (HERE / "figures").glob(
                    f"{'dvae-cat' if section.key == 'categorical' else section.key}*.png"
                )
            ):
                if section.key != "dvae" or "categorical" not in figure.name:
                    parts += ["", f"![{section.title}](figures/{figure.name})"]
            parts += [
                line
                for table in section.tables(Evidence(here, taken))
                for line in ("", markdown(table))
            ]
    return "\n".join([BEGIN, "", *parts, "", END])


def page() -> str:
    text = (HERE / "reproduction.md").read_text(encoding="utf-8")
    return text[: text.index(BEGIN)] + results() + text[text.index(END) + len(END) :]


if __name__ == "__main__":
    made = page()
    if "--check" in sys.argv[1:]:
        sys.exit(
            0
            if made == (HERE / "reproduction.md").read_text(encoding="utf-8")
            else "docs/reproduction.md is not what results/*.csv give."
        )
    (HERE / "reproduction.md").write_text(made, encoding="utf-8")
