"""The numbers of a report: tables of every experiment, and a short summary of the runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import EXPERIMENTS
from .claims import covered, enough, iterations_to, solved
from .runs import SWITCHES, TEXTS, Evidence, Methods, Repeats, at_common_end
from .statistics import Array, Stat, format_number, statistic

DATA, METRICS = TEXTS["data"], TEXTS["metrics"]
Columns = Mapping[str, Callable[[Repeats], object]]


@dataclass(frozen=True)
class Table:
    """Numbers with a caption.

    Attributes:
        caption: What the numbers are.
        rows: The cells of each row, by column.
    """

    caption: str
    rows: list[dict[str, str]]

    @property
    def header(self) -> list[str]:
        """The columns that are not empty throughout."""
        return [name for name in self.rows[0] if any(row.get(name) for row in self.rows)]


def _rounded(value: Callable[[Repeats], Stat], digits: int = 3) -> Callable[[Repeats], str]:
    return lambda runs: format_number(value(runs).mean, digits=digits)


def _final(metric: str) -> Callable[[Repeats], Stat]:
    return lambda runs: runs.final(metric)


def _late(metric: str) -> Callable[[Repeats], Stat]:
    return lambda runs: runs.late(metric)


def _reduced(metric: str, reduce: Callable[[Array], Any]) -> Callable[[Repeats], Stat]:
    return lambda runs: runs.reduced(metric, reduce)


def _published(metric: str) -> Callable[[Repeats], object]:
    return lambda runs: _known(runs.beside().final(metric))


def _known(stat: Stat) -> object:
    return stat if stat.seeds else ""


def _iterations(runs: Repeats) -> str:
    """Return the number of iterations, or the range if the runs differ."""
    lengths = {run.length for run in runs}
    return " to ".join(map(str, sorted({min(lengths), max(lengths)})))


SIZE: Columns = {"seeds": len, "iterations": _iterations}
EPOCHS: Columns = {
    "seeds": len,
    "epochs": lambda runs: format_number(runs.end("epoch")),
    "iterations": _iterations,
}
COLUMNS: Mapping[str, Columns] = {
    "the paper's metrics": {
        "problems": len,
        "estimates": lambda runs: f"{runs.final('estimates').mean:.0f}",
        "mean (1 - cos)": _final("cosine_distance"),
        "published mean": _published("cosine_distance"),
        "var (cos)": _final("cosine_variance"),
        "published var": _published("cosine_variance"),
    },
    "true bias and variance, and their cost": {
        "relative bias": _final("relative_bias"),
        "relative variance": _final("relative_variance"),
        "evaluations": lambda runs: f"{runs.final('evaluations').mean:.0f}",
        "variance x evaluations": Repeats.work,
        "ms per estimate": _rounded(Repeats.estimate_time),
        "published ms": _published("ms"),
    },
    "optimisation": {
        **SIZE,
        "value at the end": lambda runs: format_number(
            runs.final("value").mean, runs.final("value").error, digits=7
        ),
        "of the way": lambda runs: (
            f"{100 * statistic(float(covered(run)[-1]) for run in runs).mean:.1f} %"
        ),
        "iterations to 90\u00a0%": lambda runs: statistic(map(iterations_to, runs)),
        "variance over draws": _reduced("gradient_variance", np.mean),
        "the paper's “variance” at the end": _late("gradient_spread"),
        "ms per step": _rounded(Repeats.milliseconds),
    },
    "where each method ended": {
        **EPOCHS,
        METRICS["train"]: _final("train"),
        METRICS["test"]: _final("test"),
        "lowest test": _reduced("test", np.min),
        "variance over draws": _late("gradient_variance"),
        METRICS["gradient_spread"]: _late("gradient_spread"),
        "ms per step": _rounded(Repeats.milliseconds),
        "published ms": _published("ms"),
    },
    "addition": {
        **EPOCHS,
        METRICS["accuracy"]: _final("accuracy"),
        "published": lambda runs: _known(
            runs.beside().at("accuracy", min(runs.end("epoch"), 100.0), "epoch")
        ),
        "best in the run": _reduced("accuracy", np.max),
        "digits read": _final("digit_accuracy"),
        "runs that solved it": lambda runs: "{} of {}".format(*solved(runs)),
        "ms per step": _rounded(Repeats.milliseconds),
    },
    "programs": {
        **SIZE,
        "examples right": _final("accuracy"),
        "results right": _final("result_accuracy"),
        "digits read": _final("digit_accuracy"),
    },
}


def _rows(methods: Methods, columns: Columns) -> list[dict[str, str]]:
    return [
        {"method": method, **{name: str(column(runs)) for name, column in columns.items()}}
        for method, runs in methods.items()
    ]


def summary(evidence: Evidence) -> list[Table]:
    """Return a short table per experiment: the result of every method in every setting.

    A setting that all runs share is in the caption.
    """
    tables = []
    for experiment, cls in EXPERIMENTS.items():
        metric, _ = cls.headline
        sizes = [size for size in cls.sizes if size not in SWITCHES]  # which methods' labels show
        constant = [size for size in sizes if len(evidence.sizes(experiment, size)) == 1]
        caption, rows = [experiment], []
        for size in evidence.sizes(experiment, *sizes):
            caption[1:] = [f"{name}={size[name]}" for name in constant]
            cells = {name: str(size[name]) for name in sizes if name not in constant}
            methods = evidence.methods(experiment, **size)
            columns: Columns = {**SIZE, METRICS[metric]: _final(metric)}
            rows += [{**cells, **row} for row in _rows(methods, columns)]
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
                "images": DATA.get(size.get("data")),
                "moved": TEXTS["updates"].get(size.get("update")),
                "reader": 0.99**digits,
                "enough": enough(digits),
            }
            for columns in spec["columns"]:
                special = SPECIAL.get(columns)
                rows = special(methods) if special else _rows(methods, COLUMNS[columns])
                found.append(Table(spec["caption"].format(**context, columns=columns), rows))
    return [table for table in found if table.rows]


def _at_equal_work(methods: Methods) -> list[dict[str, str]]:
    """Compare the methods at the last iteration, and at the last second, that all reached."""
    if len(methods) < 2:
        return []
    rows = {method: {"method": method} for method in methods}
    for x, unit, digits in (("iteration", "iterations", 7), ("seconds", "s", 3)):
        for metric in ("train", "test"):
            position, stats = at_common_end(methods, metric, x)
            column = f"{metric}, nats, after {format_number(position, digits=digits)} {unit}"
            for method in methods if stats else ():
                rows[method][column] = str(stats.get(method, "-"))
    return list(rows.values())


def _beside_published(methods: Methods) -> list[dict[str, str]]:
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
                row[f"published {metric}"] = str(_known(value))
                row[f"{metric}: ours minus theirs"] = difference
            rows.append(row)
    return rows


SPECIAL: Mapping[str, Callable[[Methods], list[dict[str, str]]]] = {
    "at equal iterations, and at equal time": _at_equal_work,
    "beside the published curves (5 runs, read off a picture)": _beside_published,
}
