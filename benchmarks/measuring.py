"""What the benchmarks share: tables, the command line, times in turn and moments of gradients."""

import argparse
import ast
import csv
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributions import Distribution

RESULTS = Path(__file__).parents[1] / "results"
Row = dict[str, Any]
Rows = Iterator[list[Row]]
Key = TypeVar("Key")


def value_of(cell: str) -> Any:
    """Return the number, the text or, for an empty cell, the None that a cell stands for."""
    if cell == "":
        return None
    try:
        return ast.literal_eval(cell)
    except (ValueError, SyntaxError):
        return cell


def cell_of(value: Any, digits: int) -> str:
    if value is None:
        return ""
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


class Table:
    """A CSV file that is written after every measurement, so that an interrupted run resumes.

    Args:
        path: the file; None keeps the rows in memory only.
        key: the columns that say what was measured.
        digits: significant digits of numbers.
    """

    def __init__(self, path: Path | None, key: tuple[str, ...], digits: int = 4) -> None:
        self.path, self.key, self.digits = path, key, digits
        self.rows: list[Row] = []
        if path is not None and path.exists():
            with path.open(newline="", encoding="utf-8") as file:
                lines = csv.DictReader(file)
                self.rows = [
                    {name: value_of(cell) for name, cell in line.items()} for line in lines
                ]

    def __contains__(self, values: tuple[object, ...]) -> bool:
        return any(self._key(row) == values for row in self.rows)

    def add(self, rows: list[Row]) -> None:
        """Print rows, put them in place of those that measured the same, and write the file."""
        show(rows)
        replaced = {self._key(row) for row in rows}
        self.rows = [row for row in self.rows if self._key(row) not in replaced] + rows
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            columns = dict.fromkeys(name for row in self.rows for name in row)
            with self.path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(columns)
                for row in self.rows:
                    writer.writerow(cell_of(row.get(name), self.digits) for name in columns)

    def _key(self, row: Row) -> tuple[object, ...]:
        return tuple(row.get(column) for column in self.key)


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


def show(rows: list[Row]) -> None:
    """Print rows as a table, without columns that are empty in every row."""
    names = list(dict.fromkeys(name for row in rows for name in row if row[name] is not None))
    lines = [names, *([cell_text(row.get(name)) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
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


Args = argparse.Namespace
Measure = Callable[[Args, Table], Rows]  # yields rows; it may skip those of the table


@dataclass(frozen=True)
class Section:
    """A table of a page: its file in results/, the columns that say what was measured."""

    place: str
    key: tuple[str, ...]
    digits: int
    measure: Measure


class Page:
    """What a page shows: sections by name, and the command that measures them.

    ``options`` are further flags by their defaults; a list takes several values.
    """

    def __init__(self, doc: str | None, **options: Any) -> None:
        self.doc, self.options = doc, options
        self.sections: dict[str, Section] = {}

    def section(self, place: str, *key: str, digits: int = 4) -> Callable[[Measure], Measure]:
        """Add the function below as a section; "{device}" in its place is that of --device."""

        def add(measure: Measure) -> Measure:
            self.sections[measure.__name__] = Section(place, key, digits, measure)
            return measure

        return add

    def run(self, arguments: Sequence[str] | None = None) -> None:
        """Measure the sections with one thread, and write their tables."""
        parser = argparse.ArgumentParser(
            description=self.doc, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        names = list(self.sections)
        parser.add_argument("--only", nargs="+", choices=names, default=names)
        parser.add_argument(
            "--quick", action="store_true", help="small sizes; writes to --output only"
        )
        parser.add_argument("--output", type=Path, help="a folder in place of results/")
        parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
        for name, default in self.options.items():
            is_list = isinstance(default, list)
            kind = type(next(iter(default), "") if is_list else default)
            nargs = "+" if is_list else None
            parser.add_argument(f"--{name}", type=kind, nargs=nargs, default=default)
        args = parser.parse_args(arguments)
        torch.set_num_threads(1)
        folder = args.output or (None if args.quick else RESULTS)
        for name in args.only:
            section = self.sections[name]
            path = folder and folder / section.place.format_map(vars(args))
            table = Table(path, section.key, section.digits)
            torch.manual_seed(0)
            for rows in section.measure(args, table):
                table.add(rows)


def seconds_in_turns(
    calls: Mapping[Key, Callable[[], object]],
    rounds: int,
    *,
    warm_up: int = 1,
    clock: Callable[[], float] = time.perf_counter,
    least: float = 0.0,
) -> dict[Key, list[float]]:
    """Return the seconds of every call in each round, after rounds that do not count.

    Calls take turns, so that other work on the machine slows all of them alike. A measurement of a
    short call makes as many calls as fit into ``least`` seconds, at most 100, and is their mean.
    """
    times: dict[Key, list[float]] = {key: [] for key in calls}
    counts = dict.fromkeys(calls, 1)
    for turn in range(-warm_up, rounds):
        for key, call in calls.items():
            synchronise()
            start = clock()
            for _ in range(counts[key] if turn >= 0 else 1):
                call()
            synchronise()
            seconds = clock() - start
            if turn >= 0:
                times[key].append(seconds / counts[key])
            else:
                counts[key] = max(1, min(100, int(least / max(1e-6, seconds))))
    return times


def randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def synchronise() -> None:
    """Wait for the GPU, if it is used."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def spread(times: list[float]) -> dict[str, float]:
    """Return the median, the shortest and the longest of some seconds, in milliseconds."""
    ms = [1000 * seconds for seconds in times]
    return {"ms": median(ms), "ms_min": min(ms), "ms_max": max(ms)}


def median_ratio(times: list[float], reference: list[float]) -> float:
    """Return the median over rounds of how many times as long as the reference a call took."""
    return median(a / b for a, b in zip(times, reference, strict=True))


@dataclass(frozen=True)
class Moments:
    """The moments of independent gradients.

    Attributes:
        mean, variances: of every entry.
        error: the relative standard error of the total variance.
        count: the number of gradients.
    """

    mean: Tensor
    variances: Tensor
    error: float
    count: int

    @property
    def variance(self) -> float:
        return float(self.variances.sum())


def moments_of(vectors: Tensor) -> Moments:
    """Return the moments of vectors, one per row."""
    vectors = vectors.double().flatten(1)
    squares = (vectors - vectors.mean(0)).square()
    count, distances = len(vectors), squares.sum(1)
    error = float(distances.std() / count**0.5 / distances.mean().clamp(min=1e-300))
    return Moments(vectors.mean(0), squares.sum(0) / (count - 1), error, count)


def moments(
    E: Callable[..., Tensor],
    f: Callable[[Tensor], Tensor],
    make_q: Callable[..., Distribution],
    parameters: Sequence[Tensor],
    repeats: int,
    together: int = 100,
) -> Moments:
    """Return the moments of E's gradients in the parameters; each is a batch element of q."""
    generator, parts = torch.Generator().manual_seed(1), []
    for first in range(0, repeats, together):
        lead = min(together, repeats - first)
        leaves = [p.detach().expand(lead, *p.shape).clone().requires_grad_() for p in parameters]
        value = E(f, make_q(*leaves), generator=generator)
        found = torch.autograd.grad(value.sum(), leaves)
        parts.append(torch.cat([part.flatten(1) for part in found], 1))
    return moments_of(torch.cat(parts))
