"""One self-contained HTML page: claims, verdicts, figures, tables of numbers."""

import base64
import io
import sys
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd  # type: ignore[import-untyped]
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

from .. import EXPERIMENTS
from ..files import write_atomically
from ..run_folder import Folder
from .claims import DECIDED, judge
from .figures import pictures
from .runs import SWITCHES, TEXTS, Evidence, with_published

# Entries of a run's sessions.jsonl that the page shows.
ENTRIES = ["host", "device", "threads", "catlog", "commit", "torch", "python", "command"]


def tables(evidence: Evidence, *, summary: bool = False) -> dict[str, pd.DataFrame]:
    """Return the tables of every experiment that was run, by caption: one for each size.

    Args:
        evidence: Of any experiments.
        summary: Only with the main result of each experiment, and without published numbers.
    """
    found = {}
    for experiment, cls in EXPERIMENTS.items():
        sizes = [size for size in cls.sizes if size not in SWITCHES]  # which methods' labels show
        metric, _ = cls.headline
        result = {TEXTS["metrics"][metric]["ylabel"]: f"final {metric}"}
        columns = result if summary else TEXTS["columns"][experiment]
        for size in evidence.sizes(experiment, *sizes):
            methods = evidence.methods(experiment, **size)
            content = pd.DataFrame(
                {"method": name, "seeds": len(runs), "iterations": runs[0].length}
                | {column: str(runs.stat(quantity)) for column, quantity in columns.items()}
                for name, runs in (methods if summary else with_published(methods)).items()
            )
            caption = ", ".join([experiment, *(f"{name}={size[name]}" for name in size)])
            found[caption] = content.loc[:, (content != "-").any()]
    return found


def write_page(
    evidence: Evidence, path: Path | str, provenance: pd.DataFrame | None = None
) -> None:
    """Write the page. Evidence without a run is refused.

    Args:
        evidence: Of any experiments. The page begins with what was run, and folds the claims that
            these runs do not decide.
        path: The path of the HTML file.
        provenance: Where the runs come from; see :func:`provenance`.
    """
    if not evidence.runs:
        notes = " ".join(evidence.notes)
        raise ValueError(f"There is no run to report, so {path} was not written. {notes}")
    folder = Path(__file__).parent
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
            provenance=provenance,
            made=f"{datetime.now(UTC):%Y-%m-%d %H:%M UTC}",
            command=" ".join(["catlog", *sys.argv[1:]]),
        )
    write_atomically(path, text)


def _svg(figure: Figure) -> str:
    """Return a figure as the data of an SVG inside the page."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return base64.b64encode(buffer.getvalue()).decode()


def provenance(sources: Iterable[Path]) -> pd.DataFrame:
    """Return where the runs in these folders come from, without repetitions."""
    paths = (path for source in sources for path in sorted(source.rglob("sessions.jsonl")))
    starts = (session for path in paths for session in Folder(path.parent).sessions()[:1])
    return pd.DataFrame(starts, columns=ENTRIES).drop_duplicates()
