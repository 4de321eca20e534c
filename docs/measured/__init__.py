"""Numbers, tables and figures of the pages, computed from results/: one module per page.

A module has a function `values()`, which returns what the page's template names, or `figures()`,
which returns functions that draw the page's pictures, by file name. It may have both.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from catlog_experiments import records

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
Row = records.Row
sys.path.append(str(ROOT))  # the benchmarks, which are not installed
from benchmarks.measuring import cell_text as short  # noqa: E402, F401
from benchmarks.measuring import grouped, keyed, selected  # noqa: E402, F401


def read(name: str) -> list[Row]:
    """Return the rows of results/NAME.csv."""
    return records.read(RESULTS / f"{name}.csv")


def distinct(rows: Iterable[Row], column: str) -> list[Any]:
    """Return the different values of a column, in the order in which they first occur."""
    return list(dict.fromkeys(row[column] for row in rows))


def table(head: Sequence[object], lines: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    first, *rest = (f"| {' | '.join(map(str, cells))} |" for cells in [head, *lines])
    return "\n".join([first, f"|{'---|' * len(head)}", *rest])


def pivot(
    rows: Sequence[Row], line: str, column: str, cell: Callable[[Row], str]
) -> tuple[list[Any], list[list[Any]]]:
    """Return the values of a column, and the lines of a table that has a column for each of them.

    Every line begins with its value of ``line``. It is blank where there is no row.
    """
    names, cells = distinct(rows, column), {(row[line], row[column]): cell(row) for row in rows}
    lines = [[key, *(cells.get((key, name), "") for name in names)] for key in distinct(rows, line)]
    return names, lines
