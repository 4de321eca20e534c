"""One self-contained HTML page: claims, verdicts, figures, numbers beside the published ones."""

import base64
import io
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd  # type: ignore[import-untyped]
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

from ..files import write_atomically
from ..run_folder import Folder
from .claims import DECIDED, judge
from .figures import pictures
from .runs import TEXTS, Evidence
from .tables import tables

# Entries of a run's sessions.jsonl that the page shows.
ENTRIES = (
    "host",
    "platform",
    "device",
    "threads",
    "catlog",
    "commit",
    "torch",
    "python",
    "command",
)
SHOWN = 8  # different values of an entry; a sweep has few, and the page stays readable


def write_page(
    evidence: Evidence, path: Path | str, provenance: Mapping[str, str] | None = None
) -> None:
    """Write the page. Evidence without a run is refused.

    Args:
        evidence: Of any experiments. The page begins with what was run, and folds the claims that
            these runs do not decide.
        path: The path of the HTML file.
        provenance: Names and values that say where the runs come from.
    """
    _check(evidence, path)
    folder, made_at = Path(__file__).parent, f"{datetime.now(UTC):%Y-%m-%d %H:%M UTC}"
    loader = FileSystemLoader(folder)
    templates = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    judged, sections = judge(evidence), []
    for experiment, texts in TEXTS["sections"].items():
        runs = [run for run in evidence.runs if run["experiment"] == experiment]
        part = replace(evidence, runs=runs)
        shown = {"pictures": pictures(part), "tables": tables(part)}
        sections.append({"key": experiment, **texts, **shown})
    with pd.option_context("display.max_colwidth", None):
        text = templates.get_template("page.html.j2").render(
            svg=_svg,
            css=(folder / "page.css").read_text(encoding="utf-8"),
            evidence=evidence,
            summary=tables(evidence, summary=True),
            decided=[pair for pair in judged if pair[1].outcome in DECIDED],
            undecided=[pair for pair in judged if pair[1].outcome not in DECIDED],
            sections=sections,
            provenance={**(provenance or {}), "page made": made_at},
        )
    write_atomically(path, text)


def write_figures(evidence: Evidence, folder: Path) -> list[Path]:
    """Write all figures as PNG files and return their paths."""
    _check(evidence, folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = {folder / f"{picture.name}.png": picture for picture in pictures(evidence)}
    for path, picture in paths.items():
        picture.draw().savefig(path, dpi=150)
    return list(paths)


def _check(evidence: Evidence, path: Path | str) -> None:
    if not evidence.runs:
        notes = " ".join(evidence.notes)
        raise ValueError(f"There is no run to report, so {path} was not written. {notes}")


def _svg(figure: Figure) -> str:
    """Return a figure as the data of an SVG inside the page."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return base64.b64encode(buffer.getvalue()).decode()


def count_verdicts(evidence: Evidence) -> str:
    """Return how many claims hold, as a line for a terminal."""
    counts = Counter(verdict.outcome for _, verdict in judge(evidence))
    listed = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
    return f"{counts.total()} claims of the paper: {listed}."


def provenance(sources: Iterable[Path]) -> dict[str, str]:
    """Return names and values that say where these runs come from; a CSV file does not say it."""
    sources = list(sources)
    folders = sorted(path.parent for source in sources for path in source.rglob("sessions.jsonl"))
    starts = [session for folder in folders for session in Folder(folder).sessions()[:1]]
    values: dict[str, Iterable[object]] = {"sources": sources}
    values |= {"command of this page": [" ".join(["catlog", *sys.argv[1:]])]}
    values |= {name: [start.get(name) or "" for start in starts] for name in ENTRIES}
    lines = {}
    for name, found in values.items():
        different = list(dict.fromkeys(map(str, found)))
        more = [f"and {len(different) - SHOWN} more"] * (len(different) > SHOWN)
        lines[name] = ", ".join([*different[:SHOWN], *more])
    return {name: line for name, line in lines.items() if line}
