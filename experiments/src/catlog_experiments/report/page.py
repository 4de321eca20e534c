"""One self-contained HTML page: claims, verdicts, figures, numbers beside the published ones."""

import base64
import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import matplotlib as mpl
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ..files import write_atomically
from ..records import Row
from ..run_folder import refuse_run_file
from . import figures, published, tables
from .claims import TEXTS, judge
from .figures import Picture
from .panels import WIDE
from .runs import Evidence, require_runs, section_of
from .step_times import NO_STEP_TIMES, StepTimes
from .tables import Table


@dataclass(frozen=True)
class Section:
    """The section of the page on one experiment.

    Attributes:
        key: The section's name, which the keys of its claims begin with.
        pictures: Draws its figures.
        tables: Makes its tables.
        title: The heading.
        command: The arguments of ``catlog sweep`` that run the experiment.
        about: What the experiment is.
    """

    key: str
    pictures: Callable[[Evidence], list[Picture]]
    tables: Callable[[Evidence], list[Table]]
    title: str
    command: str
    about: str


DECIDED = ("holds", "does not hold")
_MADE = {
    "gradients": (figures.gradients_pictures, tables.gradients_tables),
    "optimisation": (figures.optimisation_pictures, tables.optimisation_tables),
    "dvae": (figures.dvae_pictures, tables.dvae_tables),
    "categorical": (figures.dvae_pictures, tables.dvae_tables),
    "addition": (figures.addition_pictures, tables.addition_tables),
    "programs": (figures.programs_pictures, tables.programs_tables),
}
SECTIONS = tuple(Section(key, *_MADE[key], **TEXTS["sections"][key]) for key in _MADE)


def report(
    rows: Iterable[Row],
    path: Path | str,
    step_times: StepTimes = NO_STEP_TIMES,
    provenance: Mapping[str, str] | None = None,
) -> Path:
    """Write the page and return its path. Rows without a run are refused.

    Args:
        rows: Of any experiments, as :func:`catlog_experiments.records.read` returns them. The page
            begins with what was run, and folds the claims that these runs do not decide.
        path: The path of the HTML file.
        step_times: Milliseconds per step, measured separately.
        provenance: Names and values that say where the runs come from.
    """
    return write_page(Evidence.from_rows(rows, step_times), path, provenance)


def write_page(
    evidence: Evidence, path: Path | str, provenance: Mapping[str, str] | None = None
) -> Path:
    """Write the page of collected runs and return its path; see :func:`report`."""
    refuse_run_file(path)
    path = Path(path)
    require_runs(evidence, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page(evidence, provenance))
    return path


def page(evidence: Evidence, provenance: Mapping[str, str] | None = None) -> str:
    """Return the whole page as text."""
    folder = Path(__file__).parent
    templates = Environment(
        loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined
    )
    judged = judge(evidence)
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return templates.get_template("page.html.j2").render(
        css=(folder / "page.css").read_text(encoding="utf-8"),
        count=len(evidence.runs),
        evidence=evidence,
        source=published.SOURCE,
        summary=tables.summary(evidence),
        decided=[pair for pair in judged if pair[1].outcome in DECIDED],
        undecided=[pair for pair in judged if pair[1].outcome not in DECIDED],
        parts=[_part(section, evidence) for section in SECTIONS],
        provenance={**(provenance or {}), "page made": made},
    )


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


def _part(section: Section, evidence: Evidence) -> dict[str, object]:
    """Return what the template shows of a section."""
    runs = [run for run in evidence.runs if section_of(run) == section.key]
    evidence = Evidence(runs, evidence.step_times)
    return {
        "section": section,
        "was_run": bool(runs),
        "images": [_image(picture) for picture in section.pictures(evidence)],
        "tables": section.tables(evidence),
    }


def _image(picture: Picture) -> dict[str, object]:
    """Return what the template shows of a picture: an SVG inside the page."""
    buffer = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "catlog"}):
        picture.figure.savefig(buffer, format="svg", metadata={"Date": None})
    return {
        "caption": picture.caption,
        "data": base64.b64encode(buffer.getvalue()).decode(),
        "wide": picture.figure.get_figwidth() > WIDE,
    }
