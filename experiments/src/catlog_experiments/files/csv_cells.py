"""Text in the cells of CSV files, guarded against being read as a formula by a spreadsheet."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from .atomic import write_atomically

FORMULA = re.compile(r"'*[=+\-@\t\r]")  # the beginning of a cell that a spreadsheet would calculate


def guarded(text: str) -> str:
    """Return ``text`` behind an apostrophe if it begins like a formula, else unchanged.

    Formulas begin with ``=``, ``+``, ``-``, ``@``, a tab or a carriage return.

    >>> guarded("=1+1"), guarded("RLOO")
    ("'=1+1", 'RLOO')
    """
    return f"'{text}" if FORMULA.match(text) else text


def unguarded(cell: str) -> str:
    """Invert :func:`guarded`."""
    return cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell


def write_csv(path: Path | str, lines: Iterable[Sequence[str]]) -> None:
    """Write lines of cells to a CSV file, and make its folder."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(lines)
    write_atomically(path, file.getvalue())
