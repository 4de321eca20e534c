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
        values = [point.get(metric) for point in self.points]
        return np.array([math.nan if value is None else value for value in values], np.float64)

    def finite(self, metric: str) -> Array:
        """Return the logged values of the metric that are finite, or one NaN."""
        column = self.column(metric)
        column = column[np.isfinite(column)]
        return column if column.size else np.array([math.nan])

    def last(self, metric: str) -> float:
        """Return the metric at the last point, NaN where it was not logged."""
        return float(self.column(metric)[-1])

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
        experiment, size = str(self["experiment"]), ""
        if experiment == "addition":
            size = f", {self['digits']} digits"
        if experiment in ("dvae", "optimisation") and self["variables"] != 200:
            size = f", {self['variables']} variables"
        if self.section == "categorical":
            size += f", {self['categories']} categories"
        return experiment + size

    def timed(self, times: Times) -> "Run":
        """Return the run with step times, and a clock that follows them.

        If only other methods were measured on its problem, the clock is not known.
        """
        step_ms = math.nan
        if self.length > 1:  # the clock does not count the first step
            step_ms = 1000 * self.last("seconds") / (self.length - 1)
        if self.problem not in times:
            return replace(self, step_ms=step_ms)
        measured = times[self.problem].get(self.method, math.nan)
        points = [{**row, "seconds": row["iteration"] * measured / 1000} for row in self.points]
        if math.isnan(measured):
            return replace(self, points=points, step_ms=step_ms)
        return replace(self, points=points, step_ms=measured, is_timed=True)


class Repeats(tuple[Run, ...]):
    """The runs of one method in one setting, which differ in their seeds."""

    def each(self, value: Callable[[Run], float]) -> Stat:
        """Return the mean of a value of each run."""
        return statistic(value(run) for run in self)

    def reduced(self, metric: str, reduce: Callable[[Array], Any]) -> Stat:
        """Return the mean of a summary of each run's values, such as their lowest."""
        return self.each(lambda run: float(reduce(run.finite(metric))))

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

    def final(self, metric: str) -> Stat:
        """Return the mean of each run's last value."""
        return self.reduced(metric, lambda values: values[-1])

    def late(self, metric: str, until: float = math.inf) -> Stat:
        """Return the mean over the last quarter of each run, of its iterations up to ``until``."""
        samples = []
        for run in self:
            iteration, y = run.column("iteration"), run.column(metric)
            counted = np.isfinite(y) & (iteration <= until)
            if counted.any():
                quarter = counted & (iteration >= 0.75 * iteration[counted][-1])
                samples.append(float(y[quarter].mean()))
        return statistic(samples)

    def end(self, x: str) -> float:
        """Return how far all runs of a method got on the axis, NaN if that is not known."""
        ends = [run.last(x) for run in self]
        return math.nan if not ends or any(map(math.isnan, ends)) else min(ends)

    def milliseconds(self) -> Stat:
        """Return the milliseconds of one step: measured, or by the clocks of the runs."""
        return statistic(run.step_ms for run in (self[:1] if self[0].is_timed else self))

    def estimate_time(self) -> Stat:
        """Return the milliseconds of one estimate when ``together`` estimates are made at once.

        The clock does not count the first batch of them.
        """
        return statistic(
            1000 * run.last("seconds") / timed
            for run in self
            if (timed := run.last("estimates") - run["together"]) > 0
        )

    def work(self) -> Stat:
        """Return relative variance times evaluations of f."""
        return self.each(lambda run: run.last("relative_variance") * run.last("evaluations"))

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
        notes: What was left out, cut or shown separately, a sentence each.
    """

    runs: Sequence[Run]
    times: Times
    notes: Sequence[str] = ()

    @classmethod
    def from_rows(cls, rows: Iterable[Row], step_times: Iterable[Row] = ()) -> Self:
        """Return the evidence in logged rows. All seeds of a method have the same length.

        - A run whose configured length is below the longest of its method is another method.
        - Of several runs of one method, size and seed, the longest counts.
        - Runs that got to different iterations are cut to the shortest. A run that did not get
          half as far as the longest is left out.

        Args:
            rows: Of any experiments.
            step_times: Rows with the columns problem, method and ms. One without a problem belongs
                to the autoencoder with bits, unless another row names it.
        """
        notes: list[str] = []
        runs = [
            run
            for group in _by_name(_collected(rows, notes))
            for method in _by_name(_split_by_length(group, notes))
            for run in _cut_to_shortest(_longest_of_each_seed(method, notes), notes)
        ]
        times = _step_times(step_times)
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
    defaults = {"experiment": row["experiment"]}
    ordinary: dict[str, Any] = {field: setting(defaults, field) for field in SWITCHES}
    if row["experiment"] == "dvae":
        ordinary["learning_rate"] = PAPER_RATE  # for which the setting's default, None, stands
    parts = [str(row["estimator"])]
    for field in SWITCHES:
        value = row.get(field)
        has_temperature = parts[0].startswith(("GS", "Gumbel"))
        if value in (None, "", (), [], ordinary[field]) or (
            field == "anneal" and not has_temperature
        ):
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


def _settings(experiment: str) -> list[str]:
    return [field.name for field in fields(EXPERIMENTS[experiment])]


def _collected(rows: Iterable[Row], notes: list[str]) -> list[Run]:
    """Return a run for every configuration in the rows."""
    groups: dict[tuple[str, ...], dict[int, Row]] = {}
    settings = {name: _settings(name) for name in EXPERIMENTS}
    ignored = other_protocols = 0
    for row in rows:
        name = row.get("experiment")
        if row.get("protocol") not in (None, "paper"):
            other_protocols += 1
        elif name not in settings or row.get("iteration") is None or row.get("estimator") is None:
            ignored += 1
        else:
            key = (name, *(cell(row.get(field)) for field in settings[name]))
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


def _by_name(runs: Iterable[Run]) -> list[list[Run]]:
    """Group the runs by experiment, method and sizes."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.name, []).append(run)
    return list(groups.values())


def _split_by_length(runs: list[Run], notes: list[str]) -> list[Run]:
    """Make another method of the runs that are configured to be shorter than the longest."""
    field = EXPERIMENTS[runs[0]["experiment"]].length
    longest = max(run[field] for run in runs)
    if lengths := sorted({run[field] for run in runs} - {longest}):
        notes.append(
            f"{runs[0].name}: runs with {field}={', '.join(map(str, lengths))} are shown as "
            f"methods apart from those with {field}={longest}."
        )
    return [
        replace(run, method=f"{run.method} {field}={run[field]}") if run[field] < longest else run
        for run in runs
    ]


def _longest_of_each_seed(runs: list[Run], notes: list[str]) -> list[Run]:
    longest: dict[int, Run] = {}
    for run in runs:
        rival = longest.setdefault(run["seed"], run)
        if rival is run:
            continue
        dropped, kept = sorted((rival, run), key=lambda run: run.length)
        longest[run["seed"]] = kept
        different = [
            name for name in _settings(run["experiment"]) if cell(kept[name]) != cell(dropped[name])
        ]
        notes.append(
            f"{run.name}, seed {run['seed']}: a run of {dropped.length} iterations is left "
            f"out, because one of {kept.length} counts (they differ in {', '.join(different)})."
        )
    return list(longest.values())


def _cut_to_shortest(runs: list[Run], notes: list[str]) -> list[Run]:
    """Cut the runs of a method to the iteration that all reached."""
    longest = max(run.length for run in runs)
    kept = [run for run in runs if 2 * run.length >= longest]
    notes += [
        f"{run.name}, seed {run['seed']}: left out, because it got to iteration {run.length} of "
        f"{longest}."
        for run in runs
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
    named: dict[str, dict[str, float]] = {}
    unnamed: dict[str, float] = {}
    for row in rows:
        if not row.get("method") or not isinstance(row.get("ms"), int | float):
            raise ValueError(
                "--step-times: the columns method and ms (a number) are needed, "
                f"but a line has {row}."
            )
        table = named.setdefault(str(row["problem"]), {}) if row.get("problem") else unnamed
        table[str(row["method"])] = float(row["ms"])
    return {**named, "dvae": unnamed | named.get("dvae", {})} if unnamed else named
