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
from .claims import judge
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
        title: The heading.
        command: The arguments of ``catlog sweep`` that run the experiment.
        about: What the experiment is.
        pictures: Draws its figures.
        tables: Makes its tables.
    """

    key: str
    title: str
    command: str
    about: str
    pictures: Callable[[Evidence], list[Picture]]
    tables: Callable[[Evidence], list[Table]]


DECIDED = ("holds", "does not hold")
SECTIONS = (
    Section(
        key="gradients",
        title="Synthetic gradients",
        command="gradients",
        about="Many estimates at fixed logits, compared with the exact gradient. The paper's "
        "“bias” is the mean cosine distance of single estimates, and its “variance” is that of the "
        "cosine. The true bias and variance, relative to the gradient's norm, stand below. The "
        "paper's f is a sum over variables, for which one draw gives IndeCateR the exact gradient. "
        "An f with interactions is the fair test.",
        pictures=figures.gradients_pictures,
        tables=tables.gradients_tables,
    ),
    Section(
        key="optimisation",
        title="Synthetic optimisation",
        command="optimisation",
        about="The mean of (x - 0.499)² over 200 bits, maximised with RMSProp at the paper's "
        "learning rates. The function is a sum over variables, so IndeCateR's gradient is exact. "
        "What the published code logs as variance is mostly the squared gradient.",
        pictures=figures.optimisation_pictures,
        tables=tables.optimisation_tables,
    ),
    Section(
        key="dvae",
        title="Discrete autoencoder",
        command="dvae",
        about="200 bits between an encoder and a decoder. IndeCateR, RLOO-S and GS-S have 2 draws, "
        "RLOO-F and GS-F have 800. The variance over draws is that of the encoder's gradient for "
        "one fixed minibatch. The published “variance” is the spread of the entries of one "
        "gradient.",
        pictures=figures.dvae_pictures,
        tables=tables.dvae_tables,
    ),
    Section(
        key="categorical",
        title="Discrete autoencoder with categorical variables",
        command="dvae --categories 10",
        about="More than two categories for each latent variable. This experiment is in the "
        "paper's repository, not in the paper.",
        pictures=figures.dvae_pictures,
        tables=tables.dvae_tables,
    ),
    Section(
        key="addition",
        title="MNIST addition",
        command="addition",
        about="A LeNet learns to read digits from the sum of several digits alone. IndeCateR has "
        "10 draws, IndeCateR-D 10 for every digit, RLOO-S 10, RLOO-F 100 for every digit. The grey "
        "line is a reader of single digits with 99 %.",
        pictures=figures.addition_pictures,
        tables=tables.addition_tables,
    ),
    Section(
        key="programs",
        title="Programs over digits",
        command="programs",
        about="A network learns to read digits from what a program computes of them, with an "
        "expectation per result. This experiment is not in the paper.",
        pictures=figures.programs_pictures,
        tables=tables.programs_tables,
    ),
)


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
