"""The results of reproduction.md: the report's verdicts, tables and figures, in Markdown."""

from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from catlog_experiments import records
from catlog_experiments.report.claims import judge
from catlog_experiments.report.figures import Picture, pictures
from catlog_experiments.report.page import Section, sections
from catlog_experiments.report.runs import Evidence
from catlog_experiments.report.tables import Table

from . import RESULTS, read, table

EXPERIMENTS = ("gradients", "optimisation", "dvae", "addition")


@cache
def load() -> Evidence:
    rows = records.read_all(RESULTS / "paper" / f"{name}.csv" for name in EXPERIMENTS)
    return Evidence.from_rows(rows, read("speed/step_times_cuda"))


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")


def table_text(content: Table) -> str:
    lines = ([cell(row.get(name, "")) for name in content.header] for row in content.rows)
    return f"*{content.caption}*\n\n{table(content.header, lines)}"


def section_text(section: Section) -> str:
    images = [f"![{picture.caption}](figures/{picture.name}.png)" for picture in section.pictures]
    numbers = map(table_text, section.tables)
    return "\n\n".join([f"### {section.title}", section.about, *images, *numbers])


def values() -> dict[str, object]:
    judged = judge(load())
    lines = [
        [cell(claim.says), f"**{verdict.outcome}**", cell(verdict.why)] for claim, verdict in judged
    ]
    shown = [section for section in sections(load()) if section.pictures]
    outcomes = Counter(verdict.outcome for _, verdict in judged)
    return {
        "claims": len(judged),
        "hold": outcomes["holds"],
        "do_not": outcomes["does not hold"],
        "untested": outcomes["not testable"],
        "verdicts": table(("claim", "verdict", "why"), lines),
        "sections": "\n\n".join(map(section_text, shown)),
    }


def draw(picture: Picture, path: Path) -> None:
    picture.draw().savefig(path, dpi=150)


def figures() -> dict[str, Callable[[Path], None]]:
    return {f"{picture.name}.png": partial(draw, picture) for picture in pictures(load())}
