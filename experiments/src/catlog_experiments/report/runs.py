"""Logged rows as runs, grouped by method: the evidence of figures, tables and verdicts."""

import math
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from .. import EXPERIMENTS
from ..dvae import PAPER_RATE
from ..records import Row, cell, read
from .statistics import Array, Series, Stat, statistic

Times = Mapping[str, Mapping[str, float]]  # milliseconds per step, by problem and method

TEXTS = tomllib.loads(Path(__file__).with_name("texts.toml").read_text(encoding="utf-8"))
ORDER = list(TEXTS["looks"])  # in which methods are listed; others follow, by name
MAXIMUM = 0.501**2  # of the function that is optimised

# Settings that make another method of the same estimator. Its label shows those that are not the
# default.
SWITCHES = (
    "samples", "options", "learning_rate", "batch", "clip", "reads", "anneal", "network",
    "sequences", "decay", "value_samples", "shift", "restart", "floor", "whole", "double_softmax",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One run of an experiment.

    Attributes:
        method: The estimator, with the settings that differ from the paper's.
        config: The first logged row, which holds the settings.
        points: The logged rows, by iteration.
        step_ms: Milliseconds per step, NaN if they are not known.
        is_timed: Whether they were measured separately.
    """

    method: str
    config: Row
    points: list[Row]
    step_ms: float = math.nan
    is_timed: bool = False

    def __getitem__(self, field: str) -> Any:
        """Return a setting, or its default."""
        return setting(self.config, field)

    def column(self, metric: str) -> Array:
        """Return the metric at each point, NaN where it was not logged."""
        if metric in DERIVED:
            return DERIVED[metric](self)
        values = [point.get(metric) for point in self.points]
        return np.array([math.nan if value is None else value for value in values], np.float64)

    def reduced(self, quantity: str, until: float = math.inf) -> float:
        """Return a quantity such as "late gradient_spread": a reduction, and a metric.

        Only finite values up to the iteration ``until`` count.
        """
        if quantity == "step_ms":
            return self.step_ms
        reduction, metric = quantity.split(" ")
        iteration, values = self.column("iteration"), self.column(metric)
        counted = np.isfinite(values) & (iteration <= until)
        if not counted.any():
            return math.nan
        return float(REDUCTIONS[reduction](iteration[counted], values[counted]))

    @property
    def length(self) -> int:
        """The number of iterations."""
        return int(self.points[-1]["iteration"])

    @property
    def section(self) -> str:
        """The section of a report: the experiment, or an autoencoder with categories."""
        is_categorical = self["experiment"] == "dvae" and self["categories"] > 2
        return "categorical" if is_categorical else str(self["experiment"])

    @property
    def name(self) -> str:
        """The experiment, the method and the sizes, as a note names them."""
        sizes = [f"{size}={self[size]}" for size in EXPERIMENTS[self["experiment"]].sizes]
        return f"{self['experiment']} {self.method} ({', '.join(sizes)})"

    @property
    def problem(self) -> str:
        """The problem under which step times are listed.

        Such as dvae (200 bits), "dvae, 10 categories", "addition, 16 digits", optimisation.
        """
        sizes = []
        if self["experiment"] == "addition":
            sizes.append(f"{self['digits']} digits")
        if self["experiment"] in ("dvae", "optimisation") and self["variables"] != 200:
            sizes.append(f"{self['variables']} variables")
        if self.section == "categorical":
            sizes.append(f"{self['categories']} categories")
        return ", ".join([self["experiment"], *sizes])

    def timed(self, times: Times) -> "Run":
        """Return the run with step times, and a clock that follows them.

        If only other methods were measured on its problem, the clock is not known.
        """
        step_ms = math.nan
        if self.length > 1:  # the clock does not count the first step
            step_ms = 1000 * float(self.column("seconds")[-1]) / (self.length - 1)
        if self.problem not in times:
            return replace(self, step_ms=step_ms)
        measured = times[self.problem].get(self.method, math.nan)
        points = [{**row, "seconds": row["iteration"] * measured / 1000} for row in self.points]
        is_timed = not math.isnan(measured)
        return replace(
            self, points=points, step_ms=measured if is_timed else step_ms, is_timed=is_timed
        )


def enough(digits: int) -> float:
    """Return the accuracy from which sums count as solved.

    It is nine tenths of what a reader of single digits with 99 % gets.

    >>> round(enough(16), 3), round(enough(32), 3)
    (0.766, 0.652)
    """
    return 0.9 * 0.99**digits


def _covered(run: Run) -> Array:
    """Return the share of the distance from the start to the maximum."""
    value = run.column("value")
    return (value - value[0]) / (MAXIMUM - value[0])


def _first(iteration: Array, share: Array) -> float:
    """Return the first iteration at which 90 % are covered."""
    reached = np.flatnonzero(share >= 0.9)
    return float(iteration[reached[0]]) if reached.size else math.inf


def _milliseconds_per_estimate(run: Run) -> Array:
    """Return the milliseconds of one estimate; the clock does not count the first batch of them."""
    timed = run.column("estimates") - run["together"]
    return 1000 * run.column("seconds") / np.where(timed > 0, timed, math.nan)


# Metrics that follow from logged ones. `noise` is the bias that noise alone gives.
DERIVED: Mapping[str, Callable[[Run], Array]] = {
    "covered": _covered,
    "solved": lambda run: (run.column("accuracy") >= enough(run["digits"])).astype(np.float64),
    "solution": lambda run: run.column("accuracy") / enough(run["digits"]),
    "work": lambda run: run.column("relative_variance") * run.column("evaluations"),
    "noise": lambda run: np.sqrt(
        np.maximum(0.0, run.column("relative_variance")) / run.column("estimates")
    ),
    "ms_per_estimate": _milliseconds_per_estimate,
}
REDUCTIONS: Mapping[str, Callable[[Array, Array], Any]] = {
    "final": lambda iteration, values: values[-1],
    "mean": lambda iteration, values: values.mean(),
    "min": lambda iteration, values: values.min(),
    "max": lambda iteration, values: values.max(),
    "rise": lambda iteration, values: values[-1] - values.min(),
    "late": lambda iteration, values: values[iteration >= 0.75 * iteration[-1]].mean(),
    "first": _first,
}


class Repeats(tuple[Run, ...]):
    """The runs of one method in one setting, which differ in their seeds."""

    def stat(self, quantity: str, until: float = math.inf) -> Stat:
        """Return the mean of a quantity of each run; see :meth:`Run.reduced`."""
        # Step times that were measured separately are those of all seeds.
        runs = self[:1] if quantity == "step_ms" and self and self[0].is_timed else self
        return statistic(run.reduced(quantity, until) for run in runs)

    def series(self, metric: str, x: str = "iteration") -> Series | None:
        """Return the curve of one method's runs, or None if there is nothing to draw."""
        curves: list[dict[float, tuple[float, float]]] = []  # of each run: (x, y) by iteration
        for run in self:
            points = zip(run.column("iteration"), run.column(x), run.column(metric), strict=True)
            curve = {i: (a, y) for i, a, y in points if math.isfinite(a) and math.isfinite(y)}
            curves += [curve] if curve else []
        shared = sorted(set(curves[0]).intersection(*curves)) if curves else []
        if not shared:
            return None
        table = np.array([[curve[i] for i in shared] for curve in curves])  # [seed, point, (x, y)]
        error = np.full(len(shared), math.nan)
        if len(curves) > 1:
            error = table[:, :, 1].std(0, ddof=1) / math.sqrt(len(curves))
        return Series(table[:, :, 0].mean(0), table[:, :, 1].mean(0), error)

    def at(self, metric: str, position: float, x: str = "iteration") -> Stat:
        """Return the metric at a position of x, interpolated between logged points.

        Seeds that did not reach the position do not count.
        """
        samples = []
        for run in self:
            a, y = run.column(x), run.column(metric)
            finite = np.isfinite(a) & np.isfinite(y)
            # The tolerance is for step times: iterations x milliseconds are rounded.
            if finite.any() and a[finite][0] <= position <= a[finite][-1] * (1 + 1e-9):
                samples.append(float(np.interp(position, a[finite], y[finite])))
        return statistic(samples)

    def end(self, x: str) -> float:
        """Return how far all runs of a method got on the axis, NaN if that is not known."""
        ends = [float(run.column(x)[-1]) for run in self]
        return math.nan if not ends or any(map(math.isnan, ends)) else min(ends)

    def beside(self) -> "Repeats":
        """Return the published numbers of the same method, in the same setting."""
        return Repeats(run for run in published().runs if run.name == self[0].name)


Methods = Mapping[str, Repeats]


def common_end(methods: Methods, x: str) -> float:
    """Return how far all methods got on the axis, apart from methods without a known end."""
    ends = [runs.end(x) for runs in methods.values()]
    return min((position for position in ends if not math.isnan(position)), default=math.nan)


def at_common_end(methods: Methods, metric: str, x: str) -> tuple[float, dict[str, Stat]]:
    """Return the farthest position that all methods reached, and the metric of each there.

    Methods whose step times were not measured are left out.
    """
    position = common_end(methods, x)
    known = {name: runs for name, runs in methods.items() if not math.isnan(runs.end(x))}
    return position, {name: runs.at(metric, position, x) for name, runs in known.items()}


@dataclass(frozen=True)
class Evidence:
    """What figures, tables and verdicts are made from.

    Attributes:
        runs: The runs.
        times: Step times measured separately; without them the clocks of the runs count.
        notes: What was left out or cut, a sentence each.
    """

    runs: Sequence[Run]
    times: Times
    notes: Sequence[str] = ()

    @classmethod
    def from_rows(cls, rows: Iterable[Row], step_times: Iterable[Row] = ()) -> Self:
        """Return the evidence in logged rows. All seeds of a method have the same length.

        - Of several runs of one method, size and seed, the longest counts.
        - Runs that got to different iterations are cut to the shortest. A run that did not get
          half as far as the longest is left out.

        Args:
            rows: Of any experiments.
            step_times: Rows with the columns problem, method and ms. One without a problem belongs
                to the autoencoder with bits, unless another row names it.
        """
        notes: list[str] = []
        by_name: dict[str, list[Run]] = {}
        for run in _collected(rows, notes):
            by_name.setdefault(run.name, []).append(run)
        times = _step_times(step_times)
        runs = [run for group in by_name.values() for run in _of_equal_length(group, notes)]
        return cls([run.timed(times) for run in runs], times, tuple(notes))

    def section(self, key: str) -> Self:
        """Return the evidence in one section's runs."""
        return replace(self, runs=[run for run in self.runs if run.section == key])

    def methods(self, experiment: str, **settings: Any) -> Methods:
        """Return the runs of an experiment with these settings by method, the paper's first."""
        settings["experiment"] = experiment
        groups: dict[str, list[Run]] = {}
        for run in sorted(self.runs, key=lambda run: rank(run.method)):
            if all(run[name] == value for name, value in settings.items()):
                groups.setdefault(run.method, []).append(run)
        return {method: Repeats(runs) for method, runs in groups.items()}

    def sizes(self, experiment: str, *names: str) -> list[dict[str, Any]]:
        """Return the combinations of settings that occur in an experiment, sorted."""
        runs, data = [run for run in self.runs if run["experiment"] == experiment], [*TEXTS["data"]]
        values = sorted(
            {tuple(run[name] for name in names) for run in runs},
            key=lambda value: [data.index(part) if part in data else part for part in value],
        )
        return [dict(zip(names, value, strict=True)) for value in values]


@cache
def published() -> Evidence:
    """Return the numbers that the paper's code reported, as runs of one seed.

    The paper has no table of results. Its public repository, ML-KULeuven/catlog at 367a4d0, holds
    notebooks with some of the pictures, from which the curves (means of 5 runs) were read. Every
    row of the file names its source and its error. Not available anywhere are the autoencoder with
    bits on MNIST and Fashion-MNIST, the addition of 4 and 8 digits, IndeCateR with shared draws
    and RLOO-S on addition, the synthetic gradients of D=12 and D=6, and the optimisation beyond 145
    steps of one run, which has the mistaken update.

    The source cell of Omniglot says MNIST, but the limits and the number of iterations are
    Omniglot's. RLOO-S is above that test picture's upper limit, 160, at 10K. The legend of the
    addition's picture and the order in its source differ; this is the reading that agrees with the
    paper's text. With 20 digits one run of five of IndeCateR-D fails after epoch 87; with 24, its
    last value dips between 0.62 and 0.775. Times are those of one GTX 1080 Ti.
    """
    return Evidence.from_rows(read(Path(__file__).with_name("published.csv")))


def setting(row: Mapping[str, Any], field: str) -> Any:
    """Return a field of the row's configuration, or the default if the row does not have it.

    >>> setting({"experiment": "addition"}, "digits")
    4
    """
    value = row.get(field)
    return getattr(EXPERIMENTS[row["experiment"]], field, None) if value is None else value


def method_label(row: Mapping[str, Any]) -> str:
    """Return the run's estimator with the settings that differ from the paper's.

    >>> method_label({"experiment": "dvae", "estimator": "GS-F", "samples": 20, "anneal": False})
    'GS-F samples=20 anneal=False'
    """
    parts = [str(row["estimator"])]
    has_temperature = parts[0].startswith(("GS", "Gumbel"))
    for field in SWITCHES:
        value, default = row.get(field), setting({"experiment": row["experiment"]}, field)
        if field == "learning_rate" and row["experiment"] == "dvae":
            default = PAPER_RATE  # for which the setting's default, None, stands
        if value in (None, "", (), [], default) or (field == "anneal" and not has_temperature):
            continue
        if field == "options":
            parts += [value] if isinstance(value, str) else map(str, value)
        else:
            parts.append(f"{field}={value}")
    return " ".join(parts)


def estimator_of(method: str) -> str:
    """Return the estimator of a method's label."""
    return method.split(" ")[0]


def rank(method: str) -> tuple[int, str]:
    estimator = estimator_of(method)
    return ORDER.index(estimator) if estimator in ORDER else len(ORDER), method


def _collected(rows: Iterable[Row], notes: list[str]) -> list[Run]:
    """Return a run for every configuration in the rows."""
    groups: dict[tuple[str, ...], dict[int, Row]] = {}
    ignored = other_protocols = 0
    for row in rows:
        name = row.get("experiment")
        if row.get("protocol") not in (None, "paper"):
            other_protocols += 1
        elif name not in EXPERIMENTS or row.get("iteration") is None or not row.get("estimator"):
            ignored += 1
        else:
            key = (name, *(cell(row.get(field.name)) for field in fields(EXPERIMENTS[name])))
            groups.setdefault(key, {})[int(row["iteration"])] = row
    if ignored:
        notes.append(f"{ignored} rows are left out: they are not of a run of a known experiment.")
    if other_protocols:
        notes.append(f"{other_protocols} rows are left out: they follow other protocols.")
    runs = []
    for group in groups.values():
        points = [group[iteration] for iteration in sorted(group)]
        run = Run(method_label(points[0]), points[0], points)
        experiment = EXPERIMENTS[run["experiment"]]
        experiment(**{size: run[size] for size in experiment.sizes})  # raises if one is wrong
        runs.append(run)
    return runs


def _of_equal_length(runs: list[Run], notes: list[str]) -> list[Run]:
    """Return one run per seed of a method in one setting, cut to the iteration that all reached."""
    by_seed: dict[int, Run] = {}
    for run in runs:
        rival = by_seed.setdefault(run["seed"], run)
        if rival is not run:
            dropped, by_seed[run["seed"]] = sorted((rival, run), key=lambda run: run.length)
            notes.append(
                f"{run.name}, seed {run['seed']}: a run of {dropped.length} iterations is left "
                f"out, because one of {by_seed[run['seed']].length} counts."
            )
    longest = max(run.length for run in by_seed.values())
    kept = [run for run in by_seed.values() if 2 * run.length >= longest]
    notes += [
        f"{run.name}, seed {run['seed']}: left out, because it got to iteration {run.length} of "
        f"{longest}."
        for run in by_seed.values()
        if 2 * run.length < longest
    ]
    shortest = min(run.length for run in kept)
    if shortest == longest:
        return kept
    seeds = ", ".join(f"seed {run['seed']}: {run.length}" for run in kept)
    notes.append(
        f"{kept[0].name}: the runs differ in length ({seeds}), so all are read up to iteration "
        f"{shortest}."
    )
    return [
        replace(run, points=[point for point in run.points if point["iteration"] <= shortest])
        for run in kept
    ]


def _step_times(rows: Iterable[Row]) -> Times:
    times: dict[str, dict[str, float]] = {}
    for row in rows:
        if not row.get("method") or not isinstance(row.get("ms"), int | float):
            raise ValueError(
                "--step-times: the columns method and ms (a number) are needed, "
                f"but a line has {row}."
            )
        times.setdefault(row.get("problem") or "", {})[str(row["method"])] = float(row["ms"])
    unnamed = times.pop("", {})
    return {**times, "dvae": unnamed | times.get("dvae", {})} if unnamed else times
