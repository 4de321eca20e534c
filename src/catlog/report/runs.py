"""Logged rows as runs, methods, and means with standard errors.

Figures, tables and verdicts are made of these.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..experiments import EXPERIMENTS
from ..experiments.dvae import PAPER_RATE
from ..experiments.ranges import annotations, check
from ..experiments.records import Row
from .formatting import format_number
from .step_times import NO_STEP_TIMES, StepTimes

Array = NDArray[np.float64]

# The order in which methods are listed; others follow, by name.
ORDER = (
    "IndeCateR", "IndeCateR-D", "IndeCateR-Latin", "IndeCateR-D-Latin", "IndeCateR-Taylor",
    "REINFORCE", "RLOO", "RLOO-F", "RLOO-S", "GS", "GS-F", "GS-S",
)  # fmt: skip

# Settings that make another method of the same estimator. Its label shows those that are not the
# default.
SWITCHES = ("samples", "options", "learning_rate", "batch", "clip", "reads", "anneal")
PAPER_RATES = {"dvae": PAPER_RATE}  # where the setting's default, None, stands for a number


@dataclass(frozen=True)
class Run:
    """One run of an experiment.

    Attributes:
        experiment: The name of the experiment.
        method: The estimator, with the settings that differ from the paper's.
        seed: The seed.
        config: The first logged row, which holds the settings.
        points: The logged rows, by iteration.
        step_times: Step times measured separately, which replace the run's clock.
    """

    experiment: str
    method: str
    seed: int
    config: Row
    points: list[Row]
    step_times: StepTimes = NO_STEP_TIMES

    def column(self, metric: str) -> Array:
        """Return the metric at each point, NaN where it was not logged."""
        values = [point.get(metric) for point in self.points]
        return np.array([math.nan if value is None else value for value in values], np.float64)

    def finite(self, metric: str) -> Array:
        """Return the logged values of the metric that are finite."""
        column = self.column(metric)
        return column[np.isfinite(column)]

    def last(self, metric: str) -> float:
        """Return the metric at the last point, NaN where it was not logged."""
        return self.points[-1].get(metric, math.nan)

    @property
    def length(self) -> int:
        """The number of iterations."""
        return int(self.points[-1]["iteration"])


@dataclass(frozen=True)
class Stat:
    """A mean over seeds.

    Attributes:
        mean: The mean.
        error: The standard error (sample standard deviation / sqrt(seeds)), NaN for one seed.
        seeds: The number of seeds.
    """

    mean: float = math.nan
    error: float = math.nan
    seeds: int = 0

    def __str__(self) -> str:
        return format_number(self.mean, self.error)


@dataclass(frozen=True)
class Series:
    """A metric of one method against x, at the points that all of its seeds reached.

    Attributes:
        method: The method.
        x: The positions.
        mean: The mean over seeds at each position.
        error: Its standard error, NaN for one seed.
        seeds: The number of seeds.
    """

    method: str
    x: Array
    mean: Array
    error: Array
    seeds: int


@dataclass(frozen=True)
class Evidence:
    """What figures, tables and verdicts are made from.

    Attributes:
        runs: The runs.
        step_times: Step times measured separately; without them the clocks of the runs count.
        notes: What was left out, cut or shown separately, a sentence each.
    """

    runs: Sequence[Run]
    step_times: StepTimes = NO_STEP_TIMES
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        timed = [replace(run, step_times=self.step_times) for run in self.runs]
        object.__setattr__(self, "runs", timed)

    @classmethod
    def from_rows(cls, rows: Iterable[Row], step_times: StepTimes = NO_STEP_TIMES) -> Self:
        """Return the evidence in logged rows. All seeds of a method have the same length.

        - A run whose configured length is below the longest of its method is another method.
        - Of several runs of one method, size and seed, the longest counts.
        - Runs that got to different iterations are cut to the shortest. A run that did not get
          half as far as the longest is left out.
        """
        notes: list[str] = []
        runs = _runs(rows, notes)
        runs = [run for group in _by_size(runs) for run in _split_by_length(group, notes)]
        runs = _longest_of_each_seed(runs, notes)
        runs = [run for group in _by_size(runs) for run in _cut_to_shortest(group, notes)]
        return cls(runs, step_times, tuple(notes))

    def methods(self, experiment: str, **settings: Any) -> dict[str, list[Run]]:
        """Return the runs of an experiment with these settings, by method."""
        return by_method(pick(self.runs, experiment, **settings))


def setting(row: Mapping[str, Any], field: str) -> Any:
    """Return a field of the row's configuration, or the default if the row does not have it.

    >>> setting({"experiment": "addition"}, "digits")
    4
    """
    if row.get(field) is not None:
        return row[field]
    known = {
        known_field.name: known_field for known_field in fields(EXPERIMENTS[row["experiment"]])
    }
    if field not in known or known[field].default is MISSING:
        return None
    return known[field].default


def method_label(row: Mapping[str, Any]) -> str:
    """Return the run's estimator with the settings that differ from the paper's.

    >>> method_label({"experiment": "dvae", "estimator": "GS-F", "samples": 20, "anneal": False})
    'GS-F samples=20 anneal=False'
    """
    defaults = {"experiment": row["experiment"]}
    parts = [str(row["estimator"])]
    for field in SWITCHES:
        value = row.get(field)
        if value in (None, "", (), []) or value == setting(defaults, field):
            continue
        if field == "learning_rate" and value == PAPER_RATES.get(row["experiment"]):
            continue
        if field == "anneal" and not parts[0].startswith(("GS", "Gumbel")):
            continue
        if field == "options":
            parts += [value] if isinstance(value, str) else map(str, value)
        else:
            parts.append(f"{field}={value}")
    return " ".join(parts)


def estimator_of(method: str) -> str:
    """Return the estimator of a method's label."""
    return method.split(" ")[0]


def collect(rows: Iterable[Row]) -> list[Run]:
    """Return the runs in the rows; see :meth:`Evidence.from_rows`."""
    return list(Evidence.from_rows(rows).runs)


def _runs(rows: Iterable[Row], notes: list[str]) -> list[Run]:
    """Return a run for every configuration in the rows."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    settings = {name: _settings(name) for name in EXPERIMENTS}
    ignored = other_protocols = 0
    for row in rows:
        name = row.get("experiment")
        if row.get("protocol") not in (None, "paper"):
            other_protocols += 1
            continue
        if name not in settings or row.get("iteration") is None or row.get("estimator") is None:
            ignored += 1
            continue
        key = (name, *(str(row.get(field)) for field in settings[name]))
        groups.setdefault(key, []).append(row)
    if ignored:
        notes.append(f"{ignored} rows are left out: they are not of a run of a known experiment.")
    if other_protocols:
        notes.append(f"{other_protocols} rows are left out: they follow other protocols.")
    runs = []
    for group in groups.values():
        by_iteration = {int(row["iteration"]): row for row in group}
        points = [by_iteration[iteration] for iteration in sorted(by_iteration)]
        first = points[0]
        check_sizes(first)
        seed = int(setting(first, "seed") or 0)
        runs.append(Run(first["experiment"], method_label(first), seed, first, points))
    return runs


def _settings(experiment: str) -> list[str]:
    return [field.name for field in fields(EXPERIMENTS[experiment])]


def _name(run: Run) -> str:
    """Return the method and the sizes of a run, as a note names it."""
    sizes = [f"{size}={setting(run.config, size)}" for size in EXPERIMENTS[run.experiment].sizes]
    return f"{run.experiment} {run.method} ({', '.join(sizes)})"


def _by_size(runs: Iterable[Run]) -> list[list[Run]]:
    """Group the runs by experiment, method and sizes."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_name(run), []).append(run)
    return list(groups.values())


def _split_by_length(runs: list[Run], notes: list[str]) -> list[Run]:
    """Make another method of the runs that are configured to be shorter than the longest."""
    field = EXPERIMENTS[runs[0].experiment].length
    longest = max(setting(run.config, field) for run in runs)
    split = []
    for run in runs:
        length = setting(run.config, field)
        is_shorter = length < longest
        split.append(replace(run, method=f"{run.method} {field}={length}") if is_shorter else run)
    lengths = sorted({setting(run.config, field) for run in runs} - {longest})
    if lengths:
        notes.append(
            f"{_name(runs[0])}: runs with {field}={', '.join(map(str, lengths))} are shown as "
            f"methods apart from those with {field}={longest}."
        )
    return split


def _longest_of_each_seed(runs: Iterable[Run], notes: list[str]) -> list[Run]:
    longest: dict[tuple[str, int], Run] = {}
    for run in runs:
        key = (_name(run), run.seed)
        rival = longest.get(key)
        if rival is None:
            longest[key] = run
            continue
        kept, dropped = (run, rival) if rival.length <= run.length else (rival, run)
        longest[key] = kept
        names = [
            name
            for name in _settings(run.experiment)
            if setting(kept.config, name) != setting(dropped.config, name)
        ]
        notes.append(
            f"{_name(dropped)}, seed {dropped.seed}: a run of {dropped.length} iterations is left "
            f"out, because one of {kept.length} counts (they differ in {', '.join(names)})."
        )
    return list(longest.values())


def _cut_to_shortest(runs: list[Run], notes: list[str]) -> list[Run]:
    """Cut the runs of a method to the iteration that all reached."""
    longest = max(run.length for run in runs)
    kept = [run for run in runs if 2 * run.length >= longest]
    notes += [
        f"{_name(run)}, seed {run.seed}: left out, because it got to iteration {run.length} of "
        f"{longest}."
        for run in runs
        if 2 * run.length < longest
    ]
    shortest = min(run.length for run in kept)
    if shortest == longest:
        return kept
    seeds = ", ".join(f"seed {run.seed}: {run.length}" for run in kept)
    notes.append(
        f"{_name(kept[0])}: the runs differ in length ({seeds}), so all are read up to iteration "
        f"{shortest}."
    )
    return [
        replace(run, points=[point for point in run.points if point["iteration"] <= shortest])
        for run in kept
    ]


def check_sizes(row: Row) -> None:
    """Raise if a row has a size that its experiment does not allow.

    A file written by hand may hold one.
    """
    experiment = EXPERIMENTS[row["experiment"]]
    hints = annotations(experiment)
    for size in experiment.sizes:
        owner = f"{size} of a run of {experiment.name} with {row['estimator']}"
        check(owner, setting(row, size), hints[size])


def pick(runs: Iterable[Run], experiment: str, **settings: Any) -> list[Run]:
    """Return the runs of an experiment with these settings."""
    return [
        run
        for run in runs
        if run.experiment == experiment
        and all(setting(run.config, name) == value for name, value in settings.items())
    ]


def by_method(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Group the runs by method, the paper's methods first."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.method, []).append(run)

    def rank(method: str) -> tuple[int, str]:
        estimator = estimator_of(method)
        return ORDER.index(estimator) if estimator in ORDER else len(ORDER), method

    return {method: groups[method] for method in sorted(groups, key=rank)}


def values(runs: Iterable[Run], *names: str) -> list[tuple[Any, ...]]:
    """Return the combinations of settings that occur, sorted."""
    return sorted({tuple(setting(run.config, name) for name in names) for run in runs})


def statistic(samples: Iterable[float]) -> Stat:
    """Return mean and standard error of the samples that are not NaN.

    >>> statistic([1.0, 3.0])
    Stat(mean=2.0, error=1.0, seeds=2)
    """
    kept = [sample for sample in samples if not math.isnan(sample)]
    if not kept:
        return Stat()
    if math.inf in kept:
        return Stat(math.inf, math.nan, len(kept))
    mean = math.fsum(kept) / len(kept)
    if len(kept) == 1:
        return Stat(mean, math.nan, 1)
    variance = math.fsum((sample - mean) ** 2 for sample in kept) / (len(kept) - 1)
    return Stat(mean, math.sqrt(variance / len(kept)), len(kept))


def problem_of(run: Run) -> str:
    """Return the problem under which a run's step times are listed.

    Such as dvae (200 bits), "dvae, 10 categories", "addition, 16 digits", optimisation.
    """
    variables = setting(run.config, "variables")
    size = "" if variables == 200 else f", {variables} variables"
    if run.experiment == "addition":
        return f"addition, {setting(run.config, 'digits')} digits"
    if run.experiment == "dvae" and (categories := setting(run.config, "categories")) != 2:
        size += f", {categories} categories"
    return run.experiment + (size if run.experiment in ("dvae", "optimisation") else "")


def section_of(run: Run) -> str:
    """Return the section of a report that a run belongs to.

    This is its experiment, but ``categorical`` for an autoencoder with more than two categories.
    """
    is_categorical = run.experiment == "dvae" and setting(run.config, "categories") > 2
    return "categorical" if is_categorical else run.experiment


def axis(run: Run, x: str) -> Array:
    """Return a run's x: ``iteration``, ``epoch`` or ``seconds``.

    Seconds follow the step times if the problem has any. They are then NaN for a method without.
    """
    problem = problem_of(run)
    if x == "seconds" and run.step_times.covers(problem):
        step_ms = run.step_times.get(problem, run.method)
        return run.column("iteration") * (math.nan if step_ms is None else step_ms / 1000)
    return run.column(x)


def series(runs: Sequence[Run], metric: str, x: str = "iteration") -> Series | None:
    """Return the curve of one method's runs, or None if there is nothing to draw."""
    curves: list[dict[float, tuple[float, float]]] = []  # of each run: (x, y) by iteration
    for run in runs:
        points = zip(run.column("iteration"), axis(run, x), run.column(metric), strict=True)
        curve = {i: (a, y) for i, a, y in points if math.isfinite(a) and math.isfinite(y)}
        curves += [curve] if curve else []
    shared = sorted(set(curves[0]).intersection(*curves)) if curves else []
    if not shared:
        return None
    table = np.array([[curve[i] for i in shared] for curve in curves])  # [seed, point, (x, y)]
    seeds = len(curves)
    error = np.full(len(shared), math.nan)
    if seeds > 1:
        error = table[:, :, 1].std(0, ddof=1) / math.sqrt(seeds)
    return Series(runs[0].method, table[:, :, 0].mean(0), table[:, :, 1].mean(0), error, seeds)


def at(runs: Sequence[Run], metric: str, position: float, x: str = "iteration") -> Stat:
    """Return the metric at a position of x, interpolated between logged points.

    Seeds that did not reach the position do not count.
    """
    samples = []
    for run in runs:
        a, y = axis(run, x), run.column(metric)
        finite = np.isfinite(a) & np.isfinite(y)
        # The tolerance is for step times: iterations x milliseconds are rounded.
        if finite.any() and a[finite][0] <= position <= a[finite][-1] * (1 + 1e-9):
            samples.append(float(np.interp(position, a[finite], y[finite])))
    return statistic(samples)


def final(runs: Sequence[Run], metric: str) -> Stat:
    """Return the mean of each run's last value."""
    return statistic(float(column[-1]) for run in runs if (column := run.finite(metric)).size)


def late(runs: Sequence[Run], metric: str, until: float = math.inf) -> Stat:
    """Return the mean over the last quarter of each run, of its iterations up to ``until``."""
    samples = []
    for run in runs:
        iteration, y = run.column("iteration"), run.column(metric)
        counted = np.isfinite(y) & (iteration <= until)
        if counted.any():
            quarter = counted & (iteration >= 0.75 * iteration[counted][-1])
            samples.append(float(y[quarter].mean()))
    return statistic(samples)


def end(runs: Sequence[Run], x: str) -> float:
    """Return how far all runs of a method got on the axis, NaN if that is not known."""
    ends = [float(axis(run, x)[-1]) for run in runs]
    return math.nan if not ends or any(map(math.isnan, ends)) else min(ends)


def common_end(methods: Mapping[str, Sequence[Run]], x: str) -> float:
    """Return how far all methods got on the axis, apart from methods without a known end."""
    ends = [end(runs, x) for runs in methods.values()]
    return min((position for position in ends if not math.isnan(position)), default=math.nan)


def at_common_end(
    methods: Mapping[str, Sequence[Run]], metric: str, x: str
) -> tuple[float, dict[str, Stat]]:
    """Return the farthest position that all methods reached, and the metric of each there.

    Methods whose step times were not measured are left out.
    """
    position = common_end(methods, x)
    stats = {
        method: at(runs, metric, position, x)
        for method, runs in methods.items()
        if not math.isnan(end(runs, x))
    }
    return position, stats


def milliseconds(runs: Sequence[Run]) -> Stat:
    """Return the milliseconds of one step.

    They are the step times if the method has one, else the clock of the runs, which does not
    count the first step.
    """
    step_ms = runs[0].step_times.get(problem_of(runs[0]), runs[0].method)
    if step_ms is not None:
        return Stat(step_ms, math.nan, 1)
    timed = [run for run in runs if run.length > 1]
    return statistic(1000 * run.last("seconds") / (run.length - 1) for run in timed)
