"""The numbers of a report: tables of every experiment, and a short summary of the runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from .. import EXPERIMENTS
from . import published
from .claims import covered, enough, estimate_time, iterations_to, solved, work
from .formatting import format_number
from .looks import DATA, METRICS
from .runs import SWITCHES, Evidence, Run, pick, values
from .statistics import at, at_common_end, end, final, late, milliseconds, statistic

Cells = dict[str, str]  # a row of a table, by column


@dataclass(frozen=True)
class Table:
    """Numbers with a caption.

    Attributes:
        caption: What the numbers are.
        rows: The cells of each row.
    """

    caption: str
    rows: list[Cells]

    @property
    def header(self) -> list[str]:
        """The columns that are not empty throughout."""
        return [name for name in self.rows[0] if any(row.get(name) for row in self.rows)]


def summary(evidence: Evidence) -> list[Table]:
    """Return a short table per experiment: the result of every method in every setting.

    A setting that all runs share is in the caption.
    """
    tables = []
    for experiment, cls in EXPERIMENTS.items():
        metric, _ = cls.headline
        sizes = [size for size in cls.sizes if size not in SWITCHES]  # which methods' labels show
        runs = pick(evidence.runs, experiment)
        constant = [size for size in sizes if len(values(runs, size)) == 1]
        caption, rows = [experiment], []
        for size in values(runs, *sizes):
            settings = dict(zip(sizes, size, strict=True))
            caption[1:] = [f"{name}={settings[name]}" for name in constant]
            cells = {name: str(settings[name]) for name in sizes if name not in constant}
            for method, repeats in evidence.methods(experiment, **settings).items():
                result = {METRICS[metric]: str(final(repeats, metric))}
                rows.append({**cells, **_size(method, repeats), **result})
        if rows:
            tables.append(Table(", ".join(caption), rows))
    return tables


def gradients_tables(evidence: Evidence) -> list[Table]:
    """Return two tables per function and size: the paper's metrics, then bias, variance and cost.

    One table of all columns would be wider than a page.
    """
    sizes = values(evidence.runs, "function", "variables", "categories")
    tables = []
    for function, d, k in sorted(sizes, key=lambda size: (size[0], -size[1])):
        bars = published.GRADIENTS.get((d, k), {}) if function == "additive" else {}
        methods = evidence.methods("gradients", function=function, variables=d, categories=k)
        name = f"D = {d}, K = {k}, {function} f"
        cosines = [_cosine_row(method, methods[method], bars.get(method)) for method in methods]
        moments = [_moments_row(method, methods[method], bars.get(method)) for method in methods]
        tables.append(Table(f"{name}: the paper's metrics", cosines))
        tables.append(Table(f"{name}: true bias and variance, and their cost", moments))
    return tables


def _cosine_row(method: str, runs: Sequence[Run], bar: published.Bar | None) -> Cells:
    return {
        "method": method,
        "problems": str(len(runs)),
        "estimates": f"{final(runs, 'estimates').mean:.0f}",
        "mean (1 - cos)": str(final(runs, "cosine_distance")),
        "published mean": format_number(bar.cosine_distance) if bar else "",
        "var (cos)": str(final(runs, "cosine_variance")),
        "published var": format_number(bar.cosine_variance) if bar else "",
    }


def _moments_row(method: str, runs: Sequence[Run], bar: published.Bar | None) -> Cells:
    return {
        "method": method,
        "relative bias": str(final(runs, "relative_bias")),
        "relative variance": str(final(runs, "relative_variance")),
        "evaluations": f"{final(runs, 'evaluations').mean:.0f}",
        "variance x evaluations": str(work(runs)),
        "ms per estimate": format_number(estimate_time(runs).mean, digits=3),
        "published ms": format_number(bar.milliseconds) if bar else "",
    }


def optimisation_tables(evidence: Evidence) -> list[Table]:
    """Return a table per size and kind of update."""
    updates = {
        "own": "each variable by its own gradient",
        "published": "all by the first variable's gradient, as published",
    }
    tables = []
    for d, update in values(evidence.runs, "variables", "update"):
        methods = evidence.methods("optimisation", variables=d, update=update)
        rows = [_optimisation_row(method, runs) for method, runs in methods.items()]
        tables.append(Table(f"{d} bits, moved {updates[update]}", rows))
    return tables


def _optimisation_row(method: str, runs: Sequence[Run]) -> Cells:
    value = final(runs, "value")
    variance = statistic(float(np.nanmean(run.column("gradient_variance"))) for run in runs)
    return {
        **_size(method, runs),
        "value at the end": format_number(value.mean, value.error, digits=7),
        "of the way": f"{100 * statistic(float(covered(run)[-1]) for run in runs).mean:.1f} %",
        "iterations to 90\u00a0%": str(statistic(map(iterations_to, runs))),
        "variance over draws": str(variance),
        "the paper's “variance” at the end": str(late(runs, "gradient_spread")),
        "ms per step": format_number(milliseconds(runs).mean, digits=3),
    }


def dvae_tables(evidence: Evidence) -> list[Table]:
    """Return up to three tables per data set and size."""
    sizes = values(evidence.runs, "data", "variables", "categories")
    tables = []
    for data, d, k in sorted(sizes, key=lambda size: list(DATA).index(size[0])):
        methods = evidence.methods("dvae", data=data, variables=d, categories=k)
        name = f"{DATA[data]}, {d} variables of {k} categories"
        step_ms = published.DVAE_MS.get((data, k), {}) if d == 200 else {}
        rows = [_dvae_row(method, runs, step_ms.get(method)) for method, runs in methods.items()]
        tables.append(Table(f"{name}: where each method ended", rows))
        tables.append(_at_equal_work(name, methods))
        if d == 200 and (data, k, "train") in published.DVAE:
            tables.append(_beside_published(name, methods, data, k))
    return [table for table in tables if table.rows]


def _dvae_row(method: str, runs: Sequence[Run], published_ms: float | None) -> Cells:
    return {
        "method": method,
        "seeds": str(len(runs)),
        "epochs": format_number(end(runs, "epoch")),
        "iterations": _iterations(runs),
        METRICS["train"]: str(final(runs, "train")),
        METRICS["test"]: str(final(runs, "test")),
        "lowest test": str(statistic(float(np.nanmin(run.column("test"))) for run in runs)),
        "variance over draws": str(late(runs, "gradient_variance")),
        "the paper's “variance”": str(late(runs, "gradient_spread")),
        "ms per step": format_number(milliseconds(runs).mean, digits=3),
        "published ms": "" if published_ms is None else format_number(published_ms),
    }


def _at_equal_work(name: str, methods: Mapping[str, list[Run]]) -> Table:
    """Compare the methods at the last iteration, and at the last second, that all reached."""
    rows: dict[str, Cells] = {method: {"method": method} for method in methods}
    for x, unit, digits in (("iteration", "iterations", 7), ("seconds", "s", 3)):
        for metric in ("train", "test"):
            position, stats = at_common_end(methods, metric, x)
            column = f"{metric}, nats, after {format_number(position, digits=digits)} {unit}"
            for method in methods if stats else ():
                rows[method][column] = str(stats.get(method, "-"))
    compared = list(rows.values()) if len(methods) > 1 else []
    return Table(f"{name}: at equal iterations, and at equal time", compared)


def _beside_published(name: str, methods: Mapping[str, list[Run]], data: str, k: int) -> Table:
    """Compare with the published curves, at the first and at the last point within reach."""
    rows = []
    for method, runs in methods.items():
        curve = published.DVAE[data, k, "train"].get(method)
        reached = [x for x in curve.x if x <= end(runs, "iteration")] if curve else []
        for x in dict.fromkeys([*reached[:1], *reached[-1:]]):
            row = {"method": method, "iteration": f"{x:.0f}"}
            for metric in ("train", "test"):
                measured = at(runs, metric, x)
                value = published.DVAE[data, k, metric][method].at(x)
                difference = "" if value is None else f"{measured.mean - value:+.1f}"
                row[metric] = str(measured)
                row[f"published {metric}"] = "" if value is None else format_number(value)
                row[f"{metric}: ours minus theirs"] = difference
            rows.append(row)
    return Table(f"{name}: beside the published curves (5 runs, read off a picture)", rows)


def addition_tables(evidence: Evidence) -> list[Table]:
    """Return a table per data set and number of digits."""
    tables = []
    for data, digits in values(evidence.runs, "data", "digits"):
        curves = published.ADDITION.get(digits, {}) if data == "mnist" else {}
        methods = evidence.methods("addition", data=data, digits=digits)
        rows = [
            _addition_row(method, runs, digits, curves.get(method))
            for method, runs in methods.items()
        ]
        reader = f"0.99^{digits} is {0.99**digits:.3f}"
        caption = f"{digits} digits of {DATA[data]}: {reader}, solved from {enough(digits):.3f}"
        tables.append(Table(caption, rows))
    return tables


def programs_tables(evidence: Evidence) -> list[Table]:
    """Return a table per program and size: accuracy of examples, of results and of digits."""
    tables = []
    names = ("program", "digits", "data")
    for size in values(pick(evidence.runs, "programs"), *names):
        settings = dict(zip(names, size, strict=True))
        rows = []
        for whole, twice in product((False, True), repeat=2):
            more = {"whole": whole, "double_softmax": twice}
            for method, runs in evidence.methods("programs", **settings, **more).items():
                whole_text = ", all results at once" if whole else ""
                twice_text = ", softmax twice" if twice else ""
                rows.append(
                    {
                        **_size(method + whole_text + twice_text, runs),
                        "examples right": str(final(runs, "accuracy")),
                        "results right": str(final(runs, "result_accuracy")),
                        "digits read": str(final(runs, "digit_accuracy")),
                    }
                )
        tables.append(Table(", ".join(f"{name}={value}" for name, value in settings.items()), rows))
    return tables


def _addition_row(
    method: str, runs: Sequence[Run], digits: int, curve: published.Curve | None
) -> Cells:
    value = curve.at(min(end(runs, "epoch"), 100.0)) if curve else None
    successes, total = solved(runs, digits)
    return {
        "method": method,
        "seeds": str(len(runs)),
        "epochs": format_number(end(runs, "epoch")),
        "iterations": _iterations(runs),
        "test accuracy": str(final(runs, "accuracy")),
        "published": "" if value is None else format_number(value, digits=3),
        "best in the run": str(statistic(float(np.nanmax(run.column("accuracy"))) for run in runs)),
        "digits read": str(final(runs, "digit_accuracy")),
        "runs that solved it": f"{successes} of {total}",
        "ms per step": format_number(milliseconds(runs).mean, digits=3),
    }


def _size(method: str, runs: Sequence[Run]) -> Cells:
    return {"method": method, "seeds": str(len(runs)), "iterations": _iterations(runs)}


def _iterations(runs: Sequence[Run]) -> str:
    """Return the number of iterations, or the range if the runs differ."""
    lengths = [run.length for run in runs]
    low, high = min(lengths), max(lengths)
    return f"{low}" if low == high else f"{low} to {high}"
