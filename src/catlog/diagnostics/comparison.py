"""The result of a comparison: one row per estimator, and as text."""

import shutil
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import isfinite

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
    bias: float
    bias_error: float
    largest_z: float
    snr: float
    merit: float
    merit_low: float
    merit_high: float
    estimator: Estimator = field(repr=False, compare=False)
    variances: Tensor = field(repr=False, compare=False)


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
        rows = {row.name: row for row in self.rows}
        if name not in rows:
            raise KeyError(f"{name!r} is not among the rows: {', '.join(rows)}.")
        return rows[name]

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
        shown = list(COLUMNS)
        if width is not None:
            most = max(8, width - sum(2 + max(map(len, cells[heading])) for heading in ALWAYS))
            names = [name if len(name) <= most else f"{name[: most - 1]}…" for name in names]
            while len(_joined(names, [cells[c] for c in shown])[0]) > width and shown[2:]:
                shown.pop()
        lines = _joined(names, [cells[heading] for heading in shown])
        is_judged = self.reference != "pooled" or any(isfinite(row.bias) for row in self.rows)
        reference = REFERENCES[self.reference] if is_judged else NO_REFERENCE
        notes = [f"{self.mode}.", f"{reference}. (b): biased by design."]
        if missing := [heading for heading in COLUMNS if heading not in shown]:
            notes.append(f"Not shown, for lack of space: {', '.join(missing)}.")
        for reason in dict.fromkeys(self.skipped.values()):
            left_out = [name for name, why in self.skipped.items() if why == reason]
            link = ", each because" if len(left_out) > 1 else ":"
            notes.append(f"Left out: {', '.join(left_out)}{link} {reason}.")
        wrap = partial(textwrap.wrap, subsequent_indent="  ")
        notes = [line for note in notes for line in wrap(note, width or len(note))]
        return "\n".join([*lines, "", *notes])


# The columns of the table after the names. Where space is short, the last ones are left out.
COLUMNS: dict[str, Callable[[Row], str]] = {
    "variance x s": lambda row: f"{row.merit:.3g}",
    "bias ± noise": lambda row: (
        f"{row.bias:.2g} ± {row.bias_error:.2g}" if isfinite(row.bias) else ""
    ),
    "ms": lambda row: f"{1000 * row.seconds:.3g}",
    "variance": lambda row: f"{row.variance:.3g}",
    "95 % interval": lambda row: f"{row.merit_low:.3g} to {row.merit_high:.3g}",
    "evaluations": lambda row: str(row.evaluations),
    "snr": lambda row: f"{row.snr:.3g}",
}
ALWAYS = [*COLUMNS][:2]


def _joined(names: list[str], columns: list[list[str]]) -> list[str]:
    """Return the lines of a table: names, then cells aligned to the right."""
    widths = [max(map(len, column)) for column in columns]
    return [
        "  ".join([name.ljust(max(map(len, names))), *map(str.rjust, cells, widths)])
        for name, *cells in zip(names, *columns, strict=True)
    ]
