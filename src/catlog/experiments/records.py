"""Runs as one tidy table: a row per logged point, with the fields of its configuration; read from folders or from CSV."""

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .folder import Folder
from .methods import parsed

Row = dict[str, Any]


def read(source: Path | str) -> list[Row]:
    """The rows of all runs below a folder, or of a CSV file written by :func:`write`."""
    source = Path(source)
    if source.suffix == ".csv":
        with source.open(newline="") as file:
            return [{key: _cell(value) for key, value in row.items()} for row in csv.DictReader(file)]
    if not source.is_dir():
        raise ValueError(f"{source} is neither a folder of runs nor a CSV file.")
    rows: list[Row] = []
    for path in sorted(source.rglob("config.json")):
        rows += read_run(path.parent)
    return rows


def read_run(path: Path) -> list[Row]:
    """The rows of the run in this folder; none where there is no run."""
    folder = Folder(path)
    metrics = folder.metrics()
    config = folder.config() if metrics else {}
    return [{**config, **row} for row in metrics]


def read_all(sources: Iterable[Path | str]) -> list[Row]:
    return [row for source in sources for row in read(source)]


def write(rows: list[Row], path: Path | str, *, digits: int = 6, leave_out: Iterable[str] = ()) -> None:
    """Write rows as CSV: no column that never varies away from None, numbers with so many significant digits."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    columns = [key for key in columns if key not in set(leave_out) and any(row.get(key) not in (None, [], ()) for row in rows)]
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow([_text(row.get(key), digits) for key in columns])


def _text(value: Any, digits: int) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _cell(value: str) -> Any:
    return None if value == "" else parsed(value)


def thinned(rows: list[Row], step: int) -> list[Row]:
    """Every ``step``-th point of each run, and its last."""
    kept: list[Row] = []
    count = 0
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        count = 0 if row["iteration"] == 0 else count + 1
        if count % step == 0 or following is None or following["iteration"] <= row["iteration"]:
            kept.append(row)
    return kept
