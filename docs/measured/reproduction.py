"""The results of reproduction.md: verdicts, tables and figures of every experiment that was run."""

from collections import Counter
from pathlib import Path

from catlog_experiments import records
from catlog_experiments.report import figures as paper_figures
from catlog_experiments.report.claims import judge
from catlog_experiments.report.page import SECTIONS
from catlog_experiments.report.runs import Evidence, section_of
from catlog_experiments.report.step_times import StepTimes
from catlog_experiments.report.tables import Table

from . import RESULTS, read, table

EXPERIMENTS = ("gradients", "optimisation", "dvae", "addition")


def load() -> Evidence:
    rows = records.read_all(RESULTS / "paper" / f"{name}.csv" for name in EXPERIMENTS)
    return Evidence.from_rows(rows, StepTimes.from_rows(read("speed/step_times_cuda")))


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")


def markdown(content: Table) -> str:
    lines = ([cell(row.get(name, "")) for name in content.header] for row in content.rows)
    return f"*{content.caption}*\n\n{table(content.header, lines)}"


def pictures(section: str) -> list[str]:
    """Return the files of a section's figures."""
    prefix = "dvae-categorical" if section == "categorical" else section
    return [
        name
        for name in sorted(figures())
        if name.startswith(prefix) and (section != "dvae" or "categorical" not in name)
    ]


def values() -> dict[str, object]:
    evidence = load()
    judged = judge(evidence)
    lines = [
        [cell(claim.says), f"**{verdict.outcome}**", cell(verdict.why)] for claim, verdict in judged
    ]
    parts = []
    for section in SECTIONS:
        members = [run for run in evidence.runs if section_of(run) == section.key]
        if members:
            parts += [f"### {section.title}", section.about]
            parts += [f"![{section.title}](figures/{name})" for name in pictures(section.key)]
            parts += [
                markdown(content)
                for content in section.tables(Evidence(members, evidence.step_times))
            ]
    return {
        "claims": len(judged),
        "outcomes": Counter(verdict.outcome for _, verdict in judged),
        "verdicts": table(("claim", "verdict", "why"), lines),
        "sections": "\n\n".join(parts),
    }


def figures() -> dict[str, object]:
    drawn = {f"{picture.name}.png": picture.figure for picture in paper_figures.pictures(load())}

    def save(name: str, path: Path) -> None:
        drawn[name].savefig(path, dpi=150)

    return {name: lambda path, name=name: save(name, path) for name in drawn}
