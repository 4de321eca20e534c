"""From logged rows to runs, methods, and means with standard errors: what figures, tables and verdicts are made of."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..experiments import EXPERIMENTS
from ..experiments.ranges import annotations, check
from ..experiments.records import Row

Array = NDArray[np.float64]

# The order in which methods are listed; others follow, by name.
ORDER = (
    "IndeCateR",
    "IndeCateR-D",
    "IndeCateR-Latin",
    "IndeCateR-D-Latin",
    "IndeCateR-Taylor",
    "REINFORCE",
    "RLOO",
    "RLOO-F",
    "RLOO-S",
    "GS",
    "GS-F",
    "GS-S",
)

# Fields that make another method of the same estimator, shown in its label where they are not the default.
SWITCHES = ("samples", "options", "learning_rate", "batch", "reads", "anneal")


@dataclass(frozen=True)
class Run:
    """One run: what was asked for, and its logged points in order."""

    experiment: str
    method: str
    seed: int
    config: Row
    points: list[Row]

    def column(self, metric: str) -> Array:
        """The metric at each point, NaN where it was not logged."""
        return np.array(
            [math.nan if point.get(metric) is None else point[metric] for point in self.points],
            dtype=np.float64,
        )

    @property
    def length(self) -> int:
        """Iterations done."""
        return int(self.points[-1]["iteration"])


@dataclass(frozen=True)
class Stat:
    """Mean over seeds, standard error (sample standard deviation over the root of their number; NaN for one), number of seeds."""

    mean: float
    error: float
    seeds: int

    def __str__(self) -> str:
        return text(self.mean, self.error)


@dataclass(frozen=True)
class Series:
    """A metric of one method against x: mean and standard error over its seeds, at the points that all of them reached."""

    method: str
    x: Array
    mean: Array
    error: Array
    seeds: int


def setting(row: Mapping[str, Any], field: str) -> Any:
    """A field of the row's configuration; the experiment's default where the row does not tell.

    >>> setting({"experiment": "addition"}, "digits")
    4
    """
    if row.get(field) is not None:
        return row[field]
    known = {each.name: each for each in fields(EXPERIMENTS[row["experiment"]])}
    if field not in known or known[field].default is MISSING:
        return None
    return known[field].default


def label(row: Mapping[str, Any]) -> str:
    """What the run is called: its estimator, and what was set differently from the paper.

    >>> label({"experiment": "dvae", "estimator": "GS-F", "samples": 20, "anneal": False})
    'GS-F samples=20 anneal=False'
    """
    defaults = {"experiment": row["experiment"]}
    parts = [str(row["estimator"])]
    for field in SWITCHES:
        value = row.get(field)
        if value in (None, "", (), []) or value == setting(defaults, field):
            continue
        if field == "anneal" and not parts[0].startswith(("GS", "Gumbel")):
            continue
        if field == "options":
            parts += [value] if isinstance(value, str) else map(str, value)
        else:
            parts.append(f"{field}={value}")
    return " ".join(parts)


def estimator(method: str) -> str:
    """The estimator of a method's label."""
    return method.split(" ")[0]


def collect(rows: Iterable[Row]) -> list[Run]:
    """The runs in the rows. Of several runs of one method, size and seed (a short trial, say) the longest counts."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    names: dict[str, tuple[str, ...]] = {}
    for row in rows:
        kind = row.get("experiment")
        if kind not in EXPERIMENTS or row.get("iteration") is None or row.get("estimator") is None:
            continue
        if kind not in names:
            names[kind] = tuple(field.name for field in fields(EXPERIMENTS[kind]))
        groups.setdefault((kind, *(str(row.get(name)) for name in names[kind])), []).append(row)
    longest: dict[tuple[str, ...], Run] = {}
    for group in groups.values():
        points = list(
            {
                int(row["iteration"]): row
                for row in sorted(group, key=lambda row: int(row["iteration"]))
            }.values()
        )
        first = points[0]
        run = Run(
            first["experiment"], label(first), int(setting(first, "seed") or 0), first, points
        )
        check_sizes(first)
        sizes = [str(setting(first, size)) for size in EXPERIMENTS[run.experiment].sizes]
        key = (run.experiment, run.method, str(run.seed), *sizes)
        if key not in longest or longest[key].length <= run.length:
            longest[key] = run
    return list(longest.values())


def check_sizes(row: Row) -> None:
    """Raise where a row has a size that its experiment does not have, such as a file written by hand may hold."""
    experiment = EXPERIMENTS[row["experiment"]]
    hints = annotations(experiment)
    for size in experiment.sizes:
        check(
            f"{size} of a run of {experiment.name} with {row['estimator']}",
            setting(row, size),
            hints[size],
        )


def pick(runs: Iterable[Run], experiment: str, **settings: Any) -> list[Run]:
    """The runs of an experiment with these settings."""
    return [
        run
        for run in runs
        if run.experiment == experiment
        and all(setting(run.config, name) == value for name, value in settings.items())
    ]


def by_method(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Runs by method, the paper's first."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.method, []).append(run)

    def place(method: str) -> tuple[int, str]:
        base = estimator(method)
        return ORDER.index(base) if base in ORDER else len(ORDER), method

    return {method: found[method] for method in sorted(found, key=place)}


def values(runs: Iterable[Run], *names: str) -> list[tuple[Any, ...]]:
    """The combinations of settings that occur, sorted."""
    return sorted({tuple(setting(run.config, name) for name in names) for run in runs})


def statistic(samples: Iterable[float]) -> Stat:
    """Mean and standard error, of those that are numbers.

    >>> statistic([1.0, 3.0])
    Stat(mean=2.0, error=1.0, seeds=2)
    """
    kept = [each for each in samples if not math.isnan(each)]
    if not kept:
        return Stat(math.nan, math.nan, 0)
    if math.inf in kept:
        return Stat(math.inf, math.nan, len(kept))
    mean = math.fsum(kept) / len(kept)
    if len(kept) == 1:
        return Stat(mean, math.nan, 1)
    variance = math.fsum((each - mean) ** 2 for each in kept) / (len(kept) - 1)
    return Stat(mean, math.sqrt(variance / len(kept)), len(kept))


def step_times(rows: Iterable[Row]) -> dict[str, float]:
    """Step times as the functions here take them, from a table with the columns problem (may be missing), method and ms.

    >>> step_times([{"problem": "addition, 16 digits", "method": "RLOO-F", "ms": 0.4}, {"method": "RLOO-F", "ms": 2.2}])
    {'addition, 16 digits/RLOO-F': 0.4, 'RLOO-F': 2.2}
    """
    rows = list(rows)
    for row in rows:
        if not row.get("method") or not isinstance(row.get("ms"), int | float):
            raise ValueError(
                f"--step-times: columns method and ms (a number) are needed, but a line has {row}."
            )
    return {
        "/".join(str(row[key]) for key in ("problem", "method") if row.get(key)): float(row["ms"])
        for row in rows
    }


def step_time(times: Mapping[str, float] | None, problem: str, method: str) -> float | None:
    """Milliseconds of one step, measured apart: under ``problem/method``, or ``method`` alone for the autoencoder with bits.

    >>> step_time({"RLOO-F": 2.2, "addition, 16 digits/RLOO-F": 0.4}, "addition, 16 digits", "RLOO-F")
    0.4
    """
    if not times:
        return None
    return times.get(f"{problem}/{method}", times.get(method) if problem == "dvae" else None)


def problem_of(run: Run) -> str:
    """What a run's step times are listed under: dvae (200 bits), "dvae, 10 categories", "addition, 16 digits", optimisation."""
    size = {name: setting(run.config, name) for name in ("variables", "categories", "digits")}
    if run.experiment == "addition":
        return f"addition, {size['digits']} digits"
    if run.experiment == "optimisation" and size["variables"] != 200:
        return f"optimisation, {size['variables']} variables"
    if run.experiment == "dvae":
        fewer = "" if size["variables"] == 200 else f", {size['variables']} variables"
        return (
            "dvae"
            + fewer
            + ("" if size["categories"] == 2 else f", {size['categories']} categories")
        )
    return run.experiment


def section_of(run: Run) -> str:
    """The part of a report that a run belongs to: its experiment, but ``categorical`` for a DVAE of more than two categories."""
    return (
        "categorical"
        if run.experiment == "dvae" and setting(run.config, "categories") > 2
        else run.experiment
    )


def timed_apart(times: Mapping[str, float] | None, problem: str) -> bool:
    """Whether there are step times for a problem."""
    return any(
        key.startswith(f"{problem}/") or (problem == "dvae" and "/" not in key)
        for key in times or ()
    )


def axis(run: Run, x: str, times: Mapping[str, float] | None = None) -> Array:
    """A run's x: ``iteration``, ``epoch`` or ``seconds``; the latter from step times where the problem has any (else all NaN)."""
    if x == "seconds" and timed_apart(times, problem_of(run)):
        each = step_time(times, problem_of(run), run.method)
        return run.column("iteration") * (math.nan if each is None else each / 1000)
    return run.column(x)


def series(
    runs: Sequence[Run], metric: str, x: str = "iteration", times: Mapping[str, float] | None = None
) -> Series | None:
    """The curve of one method's runs; None where there is nothing to draw."""
    columns = [
        dict(
            zip(
                run.column("iteration"),
                zip(axis(run, x, times), run.column(metric), strict=True),
                strict=True,
            )
        )
        for run in runs
    ]
    columns = [
        {i: (a, y) for i, (a, y) in each.items() if math.isfinite(a) and math.isfinite(y)}
        for each in columns
    ]
    columns = [each for each in columns if each]
    if not columns:
        return None
    shared = sorted(set.intersection(*(set(each) for each in columns)))
    if not shared:
        return None
    table = np.array([[each[i] for i in shared] for each in columns])  # [seed, point, (x, y)]
    n = len(columns)
    error = (
        table[:, :, 1].std(0, ddof=1) / math.sqrt(n) if n > 1 else np.full(len(shared), math.nan)
    )
    return Series(runs[0].method, table[:, :, 0].mean(0), table[:, :, 1].mean(0), error, n)


def at(
    runs: Sequence[Run],
    metric: str,
    where: float,
    x: str = "iteration",
    times: Mapping[str, float] | None = None,
) -> Stat:
    """The metric where x is ``where``, on the line between two logged points; seeds that did not get there do not count."""
    found = []
    for run in runs:
        a, y = axis(run, x, times), run.column(metric)
        good = np.isfinite(a) & np.isfinite(y)
        if good.any() and a[good][0] <= where <= a[good][-1] * (1 + 1e-9):
            found.append(float(np.interp(where, a[good], y[good])))
    return statistic(found)


def final(runs: Sequence[Run], metric: str) -> Stat:
    """The last value of each run."""
    return statistic(
        float(column[-1]) if (column := finite(run.column(metric))).size else math.nan
        for run in runs
    )


def late(runs: Sequence[Run], metric: str, share: float = 0.25) -> Stat:
    """The mean over the last quarter of each run."""
    return statistic(
        float(column[-max(1, round(share * column.size)) :].mean())
        if (column := finite(run.column(metric))).size
        else math.nan
        for run in runs
    )


def end(runs: Sequence[Run], x: str, times: Mapping[str, float] | None = None) -> float:
    """How far on the axis all of the method's runs got (NaN where that is not known)."""
    ends = [float(column[-1]) for run in runs if (column := axis(run, x, times)).size]
    return math.nan if not ends or any(map(math.isnan, ends)) else min(ends)


def milliseconds(runs: Sequence[Run], times: Mapping[str, float] | None = None) -> Stat:
    """Milliseconds of one step: measured apart where given, else by the runs' own clock (which leaves out the first step)."""
    given = step_time(times, problem_of(runs[0]), runs[0].method)
    if given is not None:
        return Stat(given, math.nan, 1)
    return statistic(
        1000 * run.points[-1].get("seconds", math.nan) / (run.length - 1)
        for run in runs
        if run.length > 1
    )


def finite(column: Array) -> Array:
    return column[np.isfinite(column)]


def text(mean: float, error: float = math.nan, digits: int = 4) -> str:
    """A number with its standard error, both to the error's second digit; a plain number has ``digits`` significant ones.

    >>> text(103.3217, 0.1234), text(0.00000123, 0.0000002), text(0.25), text(float("inf"))
    ('103.32 ± 0.12', '(1.23 ± 0.20)e-6', '0.25', 'never')
    """
    if math.isnan(mean):
        return "-"
    if math.isinf(mean):
        return "never"
    if mean == 0 or math.isnan(error) or error < 1e-9 * abs(mean):
        return _plain(mean, digits)
    if abs(mean) < 1e-2 or abs(mean) >= 1e6:
        power = math.floor(math.log10(max(abs(mean), error)))
        return f"({text(mean / 10.0**power, error / 10.0**power)})e{power}"
    decimals = min(9, max(0, 1 - math.floor(math.log10(error))))
    return f"{mean:.{decimals}f} ± {error:.{decimals}f}"


def _plain(value: float, digits: int) -> str:
    if value != 0 and (abs(value) < 1e-3 or abs(value) >= 1e6):
        mantissa, power = f"{value:.{digits - 1}e}".split("e")
        shortened = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{shortened}e{int(power)}"
    return f"{value:.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"
