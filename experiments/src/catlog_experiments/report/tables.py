"""The numbers of a report: tables of every experiment, and a short summary of the runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .. import EXPERIMENTS
from .runs import SWITCHES, TEXTS, Evidence, Methods, Repeats, at_common_end, enough
from .statistics import format_number

Rows = list[dict[str, str]]


@dataclass(frozen=True)
class Table:
    """Numbers with a caption.

    Attributes:
        caption: What the numbers are.
        rows: The cells of each row, by column.
    """

    caption: str
    rows: Rows

    @property
    def header(self) -> list[str]:
        """The columns that are not empty throughout."""
        return [name for name in self.rows[0] if any(row.get(name) for row in self.rows)]


def _cell(runs: Repeats, column: str) -> str:
    """Return the cell of a column, as texts.toml describes columns."""
    quantity, _, form = column.partition(": ")
    if quantity in WORDS:
        return WORDS[quantity](runs)
    is_published = quantity.startswith("published ")
    stat = (runs.beside() if is_published else runs).stat(quantity.removeprefix("published "))
    if is_published:
        return str(stat) if stat.seeds else ""
    if form == "%":
        return f"{100 * stat.mean:.1f} %"
    if form.startswith("."):
        return format(stat.mean, form)
    if form:
        digits, error = form.rstrip("±"), stat.error if form.endswith("±") else float("nan")
        return format_number(stat.mean, error, digits=int(digits))
    return str(stat)


def _iterations(runs: Repeats) -> str:
    """Return the number of iterations, or the range if the runs differ."""
    lengths = {run.length for run in runs}
    return " to ".join(map(str, sorted({min(lengths), max(lengths)})))


def _published_accuracy(runs: Repeats) -> str:
    stat = runs.beside().at("accuracy", min(runs.end("epoch"), 100.0), "epoch")
    return str(stat) if stat.seeds else ""


WORDS: Mapping[str, Callable[[Repeats], str]] = {
    "seeds": lambda runs: str(len(runs)),
    "iterations": _iterations,
    "epochs": lambda runs: format_number(runs.end("epoch")),
    "solved": lambda runs: (
        f"{sum(run.reduced('final solved') == 1 for run in runs)} of {len(runs)}"
    ),
    "published accuracy": _published_accuracy,
}


def _rows(methods: Methods, columns: Mapping[str, str]) -> Rows:
    return [
        {"method": method, **{name: _cell(runs, column) for name, column in columns.items()}}
        for method, runs in methods.items()
    ]


def summary(evidence: Evidence) -> list[Table]:
    """Return a short table per experiment: the result of every method in every setting.

    A setting that all runs share is in the caption.
    """
    tables = []
    for experiment, cls in EXPERIMENTS.items():
        metric, _ = cls.headline
        columns = {"seeds": "seeds", "iterations": "iterations"}
        columns[TEXTS["metrics"][metric]] = f"final {metric}"
        sizes = [size for size in cls.sizes if size not in SWITCHES]  # which methods' labels show
        constant = [size for size in sizes if len(evidence.sizes(experiment, size)) == 1]
        caption, rows = [experiment], []
        for size in evidence.sizes(experiment, *sizes):
            caption[1:] = [f"{name}={size[name]}" for name in constant]
            cells = {name: str(size[name]) for name in sizes if name not in constant}
            rows += [cells | row for row in _rows(evidence.methods(experiment, **size), columns)]
        if rows:
            tables.append(Table(", ".join(caption), rows))
    return tables


def tables(evidence: Evidence) -> list[Table]:
    """Return the tables of every experiment that was run, one or more per size."""
    found = []
    for spec in TEXTS["tables"]:
        for size in evidence.sizes(spec["experiment"], *spec["sizes"]):
            methods, digits = evidence.methods(spec["experiment"], **size), size.get("digits", 0)
            context = {
                **size,
                "images": TEXTS["data"].get(size.get("data")),
                "moved": TEXTS["updates"].get(size.get("update")),
                "reader": 0.99**digits,
                "enough": enough(digits),
            }
            for name in spec["columns"]:
                columns = TEXTS["columns"].get(name)
                rows = _rows(methods, columns) if columns else SPECIAL[name](methods)
                found.append(Table(spec["caption"].format(**context, columns=name), rows))
    return [table for table in found if table.rows]


def _at_equal_work(methods: Methods) -> Rows:
    """Compare the methods at the last iteration, and at the last second, that all reached."""
    rows = {method: {"method": method} for method in methods}
    for x, unit, digits in (("iteration", "iterations", 7), ("seconds", "s", 3)):
        for metric in ("train", "test"):
            position, stats = at_common_end(methods, metric, x)
            column = f"{metric}, nats, after {format_number(position, digits=digits)} {unit}"
            for method in methods if stats else ():
                rows[method][column] = str(stats.get(method, "-"))
    return list(rows.values()) if len(methods) > 1 else []


def _beside_published(methods: Methods) -> Rows:
    """Compare with the published curves, at the first and at the last point within reach."""
    rows = []
    for method, runs in methods.items():
        known, until = runs.beside(), runs.end("iteration")
        reached = [x for run in known for x in run.column("iteration") if x <= until]
        for x in dict.fromkeys([*reached[:1], *reached[-1:]]):
            row = {"method": method, "iteration": f"{x:.0f}"}
            for metric in ("train", "test"):
                measured, value = runs.at(metric, x), known.at(metric, x)
                difference = f"{measured.mean - value.mean:+.1f}" if value.seeds else ""
                row[metric] = str(measured)
                row[f"published {metric}"] = str(value) if value.seeds else ""
                row[f"{metric}: ours minus theirs"] = difference
            rows.append(row)
    return rows


SPECIAL: Mapping[str, Callable[[Methods], Rows]] = {
    "at equal iterations, and at equal time": _at_equal_work,
    "beside the published curves (5 runs, read off a picture)": _beside_published,
}
