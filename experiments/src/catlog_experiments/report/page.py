"""One self-contained HTML page: claims, verdicts, figures, numbers beside the published ones."""

import base64
import io
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

from catlog import __version__

from ..files import write_atomically
from ..records import Row
from ..run_folder import Folder, refuse_run_file
from .claims import DECIDED, judge
from .figures import WIDE, pictures
from .runs import TEXTS, Evidence
from .tables import summary, tables

# The name on the page -> the entry of a run's sessions.jsonl.
ENTRIES = {
    "machine": "host", "system": "platform", "device": "device", "threads": "threads",
    "catlog of the runs": "catlog", "commit": "commit", "torch": "torch", "python": "python",
    "commands of the runs": "command",
}  # fmt: skip
SHOWN = 8  # different values of an entry; a sweep has few, and the page stays readable


def sections(evidence: Evidence) -> list[dict[str, Any]]:
    """Return all sections of a report, with figures and tables if they were run.

    Their keys begin the keys of their claims.
    """
    parts = {key: evidence.section(key) for key in TEXTS["sections"]}
    return [
        {"key": key, **TEXTS["sections"][key], "pictures": pictures(part), "tables": tables(part)}
        for key, part in parts.items()
    ]


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
    judged = judge(evidence)
    text = templates.get_template("page.html.j2").render(
        svg=_svg,
        css=(folder / "page.css").read_text(encoding="utf-8"),
        evidence=evidence,
        summary=summary(evidence),
        decided=[pair for pair in judged if pair[1].outcome in DECIDED],
        undecided=[pair for pair in judged if pair[1].outcome not in DECIDED],
        sections=sections(evidence),
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
    """Raise if a file would replace one of a run, or report nothing."""
    refuse_run_file(path)
    if not evidence.runs:
        notes = " ".join(evidence.notes)
        raise ValueError(f"There is no run to report, so {path} was not written. {notes}")


def _svg(figure: Figure) -> dict[str, object]:
    """Return a figure as the data of an SVG inside the page, and whether it is wide."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    data = base64.b64encode(buffer.getvalue()).decode()
    return {"data": data, "is_wide": figure.get_figwidth() > WIDE}


def verdict_lines(evidence: Evidence) -> list[str]:
    """Return how many claims hold, and which of them an option would decide, for a terminal."""
    judged = judge(evidence)
    counts = Counter(verdict.outcome for _, verdict in judged)
    listed = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
    lines = [f"{len(judged)} claims of the paper: {listed}."]
    by_clock = [
        claim.key
        for claim, verdict in judged
        if claim.goes_by_clocks(evidence) and verdict.outcome in DECIDED
    ]
    if by_clock:
        lines.append(
            f"{', '.join(by_clock)}: decided by the clocks of the runs. Pass --step-times to "
            "decide by step times measured separately, as docs/reproduction.md does."
        )
    return lines


def provenance(sources: Iterable[Path], rows: Iterable[Row]) -> dict[str, str]:
    """Return names and values that say where these runs come from; a CSV file does not say it."""
    sources = list(sources)
    folders = sorted(path.parent for source in sources for path in source.rglob("sessions.jsonl"))
    starts = [session for folder in folders for session in Folder(folder).sessions()[:1]]
    values: dict[str, Iterable[object]] = {
        "sources": sources,
        "seeds": sorted({row["seed"] for row in rows if row.get("seed") is not None}),
        **{name: [start.get(key, "") for start in starts] for name, key in ENTRIES.items()},
        "catlog of this page": [__version__],
        "command of this page": [" ".join(["catlog", *sys.argv[1:]])],
    }
    lines = {}
    for name, found in values.items():
        different = [text for text in dict.fromkeys(map(str, found)) if text]
        more = [f"and {len(different) - SHOWN} more"] if len(different) > SHOWN else []
        lines[name] = ", ".join([*different[:SHOWN], *more])
    return {name: line for name, line in lines.items() if line}
