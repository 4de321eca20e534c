"""Runs as one tidy table: a row per logged point, with the fields of its configuration."""

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .files import write_atomically
from .named_estimators import parse_literal
from .run_folder import Folder

Row = dict[str, Any]


def read(source: Path | str) -> list[Row]:
    """Return the rows of all runs below a folder, or of a CSV file written by :func:`write`."""
    source = Path(source)
    if source.suffix == ".csv":
        return _read_csv(source)
    if not source.is_dir():
        raise ValueError(f"{source} is neither a folder of runs nor a CSV file.")
    paths = sorted({path.parent for path in source.rglob("*.jsonl") if path.is_file()})
    rows = []
    for folder in map(Folder, paths):
        config, points = folder.config(), folder.rows()
        if points and config is None:
            raise ValueError(f"{folder.path}: its sessions.jsonl is lost or damaged.")
        rows += [{**(config or {}), **point} for point in points]
    return rows


def _read_csv(path: Path) -> list[Row]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets write a mark
            columns, *lines = filter(None, csv.reader(file, strict=True))
            return [
                {name: parse_literal(cell) if cell else None for name, cell in pairs}
                for pairs in (zip(columns, line, strict=True) for line in lines)
            ]
    except (csv.Error, ValueError) as error:  # also of text that is not UTF-8
        raise ValueError(f"{path} is damaged, or no CSV file: {error}.") from error


def read_all(sources: Iterable[Path | str]) -> list[Row]:
    """Return the rows of several sources; see :func:`read`. Raise ValueError if there is no row."""
    sources = list(sources)
    if rows := [row for source in sources for row in read(source)]:
        return rows
    raise ValueError(f"No run in {', '.join(map(str, sources))}. Nothing was written.")


def write(rows: list[Row], path: Path | str, *, digits: int = 6) -> None:
    """Write rows as CSV, numbers with ``digits`` significant digits, without empty columns."""
    keys = dict.fromkeys(key for row in rows for key in row)
    columns = [key for key in keys if any(row.get(key) not in (None, [], ()) for row in rows)]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([cell(row.get(key), digits) for key in columns] for row in rows)
    write_atomically(path, file.getvalue())


def cell(value: Any, digits: int = 6) -> str:
    """Return a value as the cell of a CSV file."""
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return "" if value is None else str(value)
