"""Tables of results: printed, and as CSV files that grow while they are measured."""

from collections.abc import Iterable, Sequence
from math import log
from pathlib import Path
from statistics import linear_regression
from typing import Any

from catlog_experiments import records

RESULTS = Path(__file__).parents[1] / "results"
Row = dict[str, Any]


class Table:
    """A CSV file that is written after every measurement, so that an interrupted run resumes.

    Args:
        path: the file; None keeps the rows in memory only.
        key: the columns that say what was measured.
        digits: significant digits of numbers.
    """

    def __init__(self, path: Path | None, key: tuple[str, ...], digits: int = 4) -> None:
        self.path = path
        self.key = key
        self.digits = digits
        self.rows = records.read(path) if path is not None and path.exists() else []
        self.columns = list(self.rows[0]) if self.rows else []

    def __contains__(self, values: tuple[object, ...]) -> bool:
        return any(self._key(row) == values for row in self.rows)

    def add(self, rows: list[Row], title: str = "") -> None:
        """Add rows, in place of those that measured the same, and write the file.

        With a title they are printed as well.
        """
        replaced = {self._key(row) for row in rows}
        self.rows = [row for row in self.rows if self._key(row) not in replaced] + rows
        if self.path is not None:
            self.columns += [name for row in rows for name in row if name not in self.columns]
            ordered = [{name: row.get(name) for name in self.columns} for row in self.rows]
            records.write(ordered, self.path, digits=self.digits)
        if title:
            show(title, rows)

    def _key(self, row: Row) -> tuple[object, ...]:
        cells = (row.get(column) for column in self.key)
        return tuple("" if cell is None else cell for cell in cells)


def selected(rows: Iterable[Row], **cells: object) -> list[Row]:
    """Return the rows that have these cells.

    >>> selected([{"seed": 0, "loss": 2.0}, {"seed": 1, "loss": 3.0}], seed=1)
    [{'seed': 1, 'loss': 3.0}]
    """
    return [row for row in rows if all(row.get(name) == cell for name, cell in cells.items())]


def grouped(rows: Iterable[Row], *columns: str) -> dict[Any, list[Row]]:
    """Return the rows by the value of a column, or by a tuple of the values of several."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        key = tuple(row[column] for column in columns)
        groups.setdefault(key if len(columns) > 1 else key[0], []).append(row)
    return groups


def keyed(rows: Iterable[Row], *columns: str) -> dict[tuple[Any, ...], Row]:
    """Return the rows by the values of these columns, which no two rows share."""
    return {tuple(row[column] for column in columns): row for row in rows}


def exponent(sizes: Iterable[float], costs: Iterable[float]) -> float:
    """Return e of cost = constant * size^e, by least squares on the logarithms.

    >>> round(exponent([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    return linear_regression(list(map(log, sizes)), list(map(log, costs))).slope


def columns_with_values(rows: Sequence[Row]) -> list[str]:
    """Return the columns that are not empty in every row."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if any(row.get(name) is not None for row in rows)]


def show(title: str, rows: list[Row]) -> None:
    """Print rows as a table."""
    names = columns_with_values(rows)
    lines = [names, *([cell_text(row.get(name)) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    print(f"\n{title}")
    for line in lines:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(padded).rstrip())
    print(flush=True)


def cell_text(value: object) -> str:
    """Return a number with three significant digits, and other values as they are."""
    if not isinstance(value, float):
        return "" if value is None else str(value)
    if 0 < abs(value) < 1e-3:
        return f"{value:.1e}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
