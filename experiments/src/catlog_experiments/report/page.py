"""One self-contained HTML page: claims, verdicts, figures, numbers beside the published ones."""

import base64
import io
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

from catlog import __version__

from ..files import write_atomically
from ..records import Row
from ..run_folder import refuse_run_file
from .claims import DECIDED, Claim, Verdict, judge
from .figures import WIDE, Picture, pictures
from .runs import TEXTS, Evidence
from .tables import Table, summary, tables

# The name on the page -> the entry of a run's sessions.jsonl.
ENTRIES = {
    "machine": "host", "system": "platform", "device": "device", "threads": "threads",
    "catlog of the runs": "catlog", "commit": "commit", "torch": "torch", "python": "python",
    "commands of the runs": "command",
}  # fmt: skip
SHOWN = 8  # different values of an entry; a sweep has few, and the page stays readable


@dataclass(frozen=True)
class Section:
    """The section of a report on one experiment.

    Attributes:
        key: The section's name, which the keys of its claims begin with.
        title: The heading.
        command: The arguments of ``catlog sweep`` that run the experiment.
        about: What the experiment is.
        pictures: Its figures; none if it was not run.
        tables: Its numbers.
    """

    key: str
    title: str
    command: str
    about: str
    pictures: list[Picture]
    tables: list[Table]


def sections(evidence: Evidence) -> list[Section]:
    """Return all sections of a report, whether they were run or not."""
    parts = {key: evidence.section(key) for key in TEXTS["sections"]}
    return [
        Section(key, **TEXTS["sections"][key], pictures=pictures(part), tables=tables(part))
        for key, part in parts.items()
    ]


def write_page(
    evidence: Evidence, path: Path | str, provenance: Mapping[str, str] | None = None
) -> Path:
    """Write the page and return its path. Evidence without a run is refused.

    Args:
        evidence: Of any experiments. The page begins with what was run, and folds the claims that
            these runs do not decide.
        path: The path of the HTML file.
        provenance: Names and values that say where the runs come from.
    """
    path = _checked(evidence, path)
    folder = Path(__file__).parent
    templates = Environment(
        loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined
    )
    templates.globals["svg"] = _svg
    judged: dict[bool, list[tuple[Claim, Verdict]]] = {True: [], False: []}
    for claim, verdict in judge(evidence):
        judged[verdict.outcome in DECIDED].append((claim, verdict))
    text = templates.get_template("page.html.j2").render(
        css=(folder / "page.css").read_text(encoding="utf-8"),
        evidence=evidence,
        summary=summary(evidence),
        decided=judged[True],
        undecided=judged[False],
        sections=sections(evidence),
        provenance={
            **(provenance or {}),
            "page made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        },
    )
    write_atomically(path, text)
    return path


def write_figures(evidence: Evidence, folder: Path | str) -> list[Path]:
    """Write all figures as PNG files and return their paths."""
    folder = _checked(evidence, Path(folder) / "figure.png").parent
    paths = []
    for picture in pictures(evidence):
        paths.append(folder / f"{picture.name}.png")
        picture.draw().savefig(paths[-1], dpi=150)
    return paths


def _checked(evidence: Evidence, path: Path | str) -> Path:
    """Make the folder of a file; raise if it would replace a file of a run, or report nothing."""
    refuse_run_file(path)
    if not evidence.runs:
        raise ValueError(
            " ".join([f"There is no run to report, so {path} was not written.", *evidence.notes])
        )
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return Path(path)


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
    sources, starts = list(sources), []
    for path in sorted(path for source in sources for path in source.rglob("sessions.jsonl")):
        with path.open(encoding="utf-8") as file:
            try:
                starts.append(json.loads(file.readline()))
            except ValueError:  # damaged
                continue
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
