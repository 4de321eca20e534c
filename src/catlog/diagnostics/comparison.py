"""The result of a comparison: one row per estimator, as text, CSV file or figure."""

import csv
import re
import shutil
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from math import isfinite
from pathlib import Path

from torch import Tensor

from ..core.estimator import Estimator

REFERENCES = {
    "exact": "Bias against the exact gradient",
    "given": "Bias against the reference given",
    "pooled": "Bias against the other unbiased estimators, pooled",
    "rloo": "Bias against RLOO on all layers, with many draws",
}
NO_REFERENCE = "No bias, for want of another unbiased estimator: add one, such as RLOO"


@dataclass(frozen=True)
class Row:
    r"""What was measured of one estimator. Intervals are 95 % intervals.

    Attributes:
        name: The name given, or the class with its settings.
        unbiased: Whether the estimator is unbiased.
        samples: Its number of draws; None if it has none.
        evaluations: Evaluations of f per estimate and batch element.
        repeats: The number of estimates behind the numbers.
        trained: The number of steps for which it learned beforehand.
        seconds: The median time of a step: q, estimate and gradients.
        variance: The variance over draws, after the chain rule, summed over the parameters.
        variance_low: Lower end of its interval.
        variance_high: Upper end of its interval.
        logit_variance: The variance summed over the logits of q; NaN for structured distributions,
            which have no fixed logits.
        bias: The distance of the mean from the reference, minus the noise in it; NaN if there is
            nothing to compare with.
        bias_error: The noise in that distance.
        largest_z: The largest difference of a parameter's mean from the reference, in standard
            errors.
        snr: :math:`\lVert \nabla \rVert / \sqrt{\text{variance}}`.
        merit: Variance times seconds, the lower the better.
        merit_low: Lower end of its interval.
        merit_high: Upper end of its interval.
        estimator: The estimator, after learning.
        variances: The variance of every parameter.
        logit_variances: The variance of every logit; None if there are no fixed logits.
    """

    name: str
    unbiased: bool
    samples: int | None
    evaluations: int
    repeats: int
    trained: int
    seconds: float
    variance: float
    variance_low: float
    variance_high: float
    logit_variance: float
    bias: float
    bias_error: float
    largest_z: float
    snr: float
    merit: float
    merit_low: float
    merit_high: float
    estimator: Estimator = field(repr=False, compare=False)
    variances: Tensor = field(repr=False, compare=False)
    logit_variances: Tensor | None = field(repr=False, compare=False)


@dataclass(frozen=True)
class Comparison:
    """The result of :func:`catlog.compare` and :func:`catlog.compare_layers`.

    Attributes:
        rows: What was measured of every estimator, best first.
        skipped: The estimators that were left out, with the reasons.
        reference: What the bias is measured against: "exact", "given", "pooled" or, by
            :func:`catlog.compare_layers`, "rloo".
        mode: How the numbers of draws were set.
    """

    rows: tuple[Row, ...]
    skipped: Mapping[str, str]
    reference: str
    mode: str

    @property
    def best(self) -> Row:
        """The unbiased estimator with the lowest variance x time; if all are biased, the best."""
        return min(self.rows, key=lambda row: (not row.unbiased, row.merit))

    def __getitem__(self, name: str) -> Row:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(
            f"{name!r} is not among the rows: {', '.join(row.name for row in self.rows)}."
        )

    def __str__(self) -> str:
        """Return :meth:`table` at the width of the terminal; 80 columns if there is none."""
        return self.table(shutil.get_terminal_size().columns)

    def table(self, width: int | None = None) -> str:
        """Return a line of text per estimator, best first, and notes.

        Args:
            width: The most columns of a line. Columns of the table that do not fit are left out and
                named below it; variance x s and the bias are always shown. None: no limit.
        """
        cells = {heading: [heading, *map(text, self.rows)] for heading, text in COLUMNS.items()}
        names = ["", *(row.name if row.unbiased else f"{row.name} (b)" for row in self.rows)]
        if width is not None:
            always = sum(2 + max(map(len, cells[heading])) for heading in ALWAYS)
            names = _cut(names, max(8, width - always))
        names = [name.ljust(max(map(len, names))) for name in names]
        shown = [*ALWAYS]
        for heading in IMPORTANCE:
            chosen = [column for column in COLUMNS if column in (*shown, heading)]
            line = _joined([names, *(cells[column] for column in chosen)])[0]
            if width is None or len(line) <= width:
                shown = chosen
        lines = [*_joined([names, *(cells[column] for column in shown)]), ""]
        is_judged = self.reference != "pooled" or any(isfinite(row.bias) for row in self.rows)
        reference = REFERENCES[self.reference] if is_judged else NO_REFERENCE
        notes = [f"{self.mode}.", f"{reference}. (b): biased by design."]
        if missing := [column for column in COLUMNS if column not in shown]:
            notes.append(f"Not shown, for lack of space: {', '.join(missing)}.")
        for reason in dict.fromkeys(self.skipped.values()):
            left_out = [name for name, why in self.skipped.items() if why == reason]
            link = ", each because" if len(left_out) > 1 else ":"
            notes.append(f"Left out: {', '.join(left_out)}{link} {reason}.")
        for note in notes:
            if width is None or len(note) <= width:
                lines.append(note)
            else:
                lines += textwrap.wrap(note, width, subsequent_indent="  ")
        return "\n".join(lines)

    def to_csv(self, path: Path | str) -> None:
        """Write one line per estimator; the column ``skipped`` says why others were left out."""
        columns = [column.name for column in fields(Row) if column.repr]
        lines = [[*columns, "reference", "mode", "skipped"]]
        for row in self.rows:
            cells = [_cell(getattr(row, column)) for column in columns]
            lines.append([*cells, self.reference, self.mode, ""])
        for name, reason in self.skipped.items():
            blanks = [""] * (len(columns) - 1)
            lines.append([_guarded(name), *blanks, self.reference, self.mode, _guarded(reason)])
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(lines)

    def plot(self, path: Path | str) -> None:
        """Draw variance x time with its interval, and variance against time.

        Needs matplotlib.
        """
        try:
            from .comparison_plot import plot_comparison
        except ImportError as error:
            raise ImportError(
                "Comparison.plot needs matplotlib: pip install matplotlib."
            ) from error
        plot_comparison(self, Path(path))


def _guarded(text: str) -> str:
    """Return ``text`` behind an apostrophe if a spreadsheet would take it for a formula."""
    return f"'{text}" if re.match(r"'*[=+\-@\t\r]", text) else text


def _cell(value: object) -> str:
    """Return a value as a cell of a CSV file."""
    if isinstance(value, str):
        return _guarded(value)
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# The columns of the table after the names, and which of them to show first where space is short.
COLUMNS: dict[str, Callable[[Row], str]] = {
    "variance x s": lambda row: f"{row.merit:.3g}",
    "95 % interval": lambda row: f"{row.merit_low:.3g} to {row.merit_high:.3g}",
    "ms": lambda row: f"{1000 * row.seconds:.3g}",
    "variance": lambda row: f"{row.variance:.3g}",
    "bias ± noise": lambda row: (
        f"{row.bias:.2g} ± {row.bias_error:.2g}" if isfinite(row.bias) else ""
    ),
    "evaluations": lambda row: str(row.evaluations),
    "snr": lambda row: f"{row.snr:.3g}",
    "per logit": lambda row: f"{row.logit_variance:.3g}" if isfinite(row.logit_variance) else "",
}
ALWAYS = ("variance x s", "bias ± noise")
IMPORTANCE = ("ms", "variance", "95 % interval", "evaluations", "snr", "per logit")


def _cut(names: list[str], limit: int) -> list[str]:
    """Return names of at most ``limit`` characters, with an ellipsis where the end is missing."""
    return [name if len(name) <= limit else f"{name[: limit - 1]}…" for name in names]


def _joined(columns: list[list[str]]) -> list[str]:
    """Return the lines of a table with cells aligned to the right and two spaces between them."""
    widths = [max(map(len, column)) for column in columns]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in zip(*columns, strict=True)
    ]
