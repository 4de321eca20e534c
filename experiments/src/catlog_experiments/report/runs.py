"""Logged rows as runs, grouped by method: the evidence of figures, tables and verdicts."""

import math
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd  # type: ignore[import-untyped]

from .. import EXPERIMENTS
from ..protocol import LIKELIHOODS
from ..records import Row, cell, read

TEXTS = tomllib.loads(Path(__file__).with_name("texts.toml").read_text(encoding="utf-8"))
ORDER = list(TEXTS["looks"])  # in which methods are listed; others follow, by name
PAPER = " (paper)"  # after the name of a method whose numbers are the published ones
MAXIMUM = 0.501**2  # of the function that is optimised

# Rounding in double precision leaves about (2e-16)^2 per entry of a variance that is zero.
# No measured quantity is as small as this.
ZERO = 1e-25

# Settings that make another method of the same estimator. Its label shows those that are not the
# default.
SWITCHES = (
    "samples", "options", "learning_rate", "batch", "clip", "anneal", "network",
    "sequences", "decay", "value_samples", "shift", "restart", "whole", "double_softmax",
)  # fmt: skip


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

    @classmethod
    def of(cls, samples: Iterable[float]) -> Self:
        """Return the statistic of the samples that are not NaN.

        >>> Stat.of([1.0, 3.0, math.nan])
        Stat(mean=2.0, error=1.0, seeds=2)
        """
        kept = pd.Series([*samples], dtype=float).dropna()
        error = math.nan if np.isinf(kept).any() else float(kept.sem())
        return cls(float(kept.mean()), error, len(kept))

    def __str__(self) -> str:
        """Return the mean, to the second digit of its error, and the error.

        >>> str(Stat(103.3217, 0.1234, 2)), str(Stat(0.25)), str(Stat(math.inf)), str(Stat(-7e-31))
        ('103.32 ± 0.12', '0.25', 'never', '0')
        """
        if not math.isfinite(self.mean) or abs(self.mean) < ZERO:
            return "-" if math.isnan(self.mean) else "never" if math.isinf(self.mean) else "0"
        if math.isnan(self.error) or self.error < 1e-9 * abs(self.mean):
            return number(self.mean)
        digits = 2 + math.floor(math.log10(abs(self.mean))) - math.floor(math.log10(self.error))
        return f"{number(self.mean, max(digits, 2))} ± {number(self.error, 2)}"


def number(value: float, digits: int = 4) -> str:
    """Return a number with so many significant digits, and with all digits of its integer part.

    >>> number(123456.0), number(0.123456), number(4.2e-7)
    ('123456', '0.1235', '4.2e-07')
    """
    return f"{value:.{max(digits, len(str(int(abs(value)))))}g}"


@dataclass(frozen=True)
class Run:
    """One run of an experiment.

    Attributes:
        method: The estimator, with the settings that differ from the paper's.
        settings: The experiment and its settings.
        points: The logged points, by iteration, with derived metrics.
    """

    method: str
    settings: Row
    points: pd.DataFrame

    def __getitem__(self, field: str) -> Any:
        """Return a setting."""
        return self.settings[field]

    def reduced(self, quantity: str, until: float = math.inf) -> float:
        """Return a quantity such as "late gradient_spread": a reduction, and a metric.

        Only values up to the iteration ``until`` count.
        """
        reduction, metric = quantity.split(" ")
        points = self.points[self.points.index <= until]
        values = points.get(metric, pd.Series(dtype=float)).dropna()
        return float(REDUCTIONS[reduction](values)) if len(values) else math.nan

    @property
    def length(self) -> int:
        """The number of iterations."""
        return int(self.points.index[-1])

    @property
    def name(self) -> str:
        """The experiment, the method and the sizes, as a note names them."""
        sizes = [f"{size}={self[size]}" for size in EXPERIMENTS[self["experiment"]].sizes]
        return f"{self['experiment']} {self.method} ({', '.join(sizes)})"


def enough(digits: Any) -> Any:
    """Return the accuracy from which sums count as solved.

    It is nine tenths of what a reader of single digits with 99 % gets.

    >>> round(enough(16), 3), round(enough(32), 3)
    (0.766, 0.652)
    """
    return 0.9 * 0.99**digits


# Metrics that follow from logged ones.
DERIVED: Mapping[str, Callable[[pd.DataFrame], pd.Series]] = {
    # the share of the distance from the start to the maximum
    "covered": lambda p: (p["value"] - p["value"].iloc[0]) / (MAXIMUM - p["value"].iloc[0]),
    "solved": lambda p: (p["accuracy"] >= enough(p["digits"])).astype(float),
    "solution": lambda p: p["accuracy"] / enough(p["digits"]),
    "work": lambda p: p["relative_variance"] * p["evaluations"],
    # the clock does not count the first step
    "ms_per_estimate": lambda p: 1000 * p["seconds"] / (p["estimates"] - p["together"]),
    "step_ms": lambda p: 1000 * p["seconds"] / (p["iteration"] - 1).where(p["iteration"] > 1),
}
REDUCTIONS: Mapping[str, Callable[[pd.Series], float]] = {
    "final": lambda values: values.iloc[-1],
    "mean": lambda values: values.mean(),
    "min": lambda values: values.min(),
    "max": lambda values: values.max(),
    "rise": lambda values: values.iloc[-1] - values.min(),
    "late": lambda values: values[values.index >= 0.75 * values.index[-1]].mean(),
    # the first iteration at which 90 % are covered
    "first": lambda values: min(values.index[values >= 0.9], default=math.inf),
}


class Repeats(tuple[Run, ...]):
    """The runs of one method in one setting, which differ in their seeds."""

    def stat(self, quantity: str, until: float = math.inf) -> Stat:
        """Return the mean of a quantity of each run; see :meth:`Run.reduced`."""
        return Stat.of(run.reduced(quantity, until) for run in self)

    def series(self, metric: str, x: str = "iteration") -> pd.DataFrame:
        """Return the curve of the runs, where all of them logged it: x, mean and error."""
        points = pd.concat([run.points.reindex(columns=[x, metric]) for run in self]).dropna()
        groups = points.set_axis(["x", "y"], axis=1).groupby(level=0)
        table = groups.agg(x=("x", "mean"), mean=("y", "mean"), error=("y", "sem"))
        return table[groups.size() == len(self)]

    def at(self, metric: str, position: float, x: str = "iteration") -> Stat:
        """Return the metric at a position of x, interpolated between logged points.

        Seeds that did not reach the position do not count.
        """
        samples = []
        for run in self:
            points = run.points.reindex(columns=[x, metric]).dropna()
            a, y = points.to_numpy(float).T
            # The tolerance is for step times: iterations x milliseconds are rounded.
            if len(a) and a[0] <= position <= a[-1] * (1 + 1e-9):
                samples.append(float(np.interp(position, a, y)))
        return Stat.of(samples)

    def end(self, x: str) -> float:
        """Return how far all runs of a method got on the axis, NaN if that is not known."""
        return float(np.min([run.reduced(f"final {x}") for run in self]))


Methods = Mapping[str, Repeats]


def with_published(methods: Methods) -> Methods:
    """Return the methods, and those of the paper with its numbers in the same setting."""
    known = {
        f"{name}{PAPER}": Repeats(run for run in published().runs if run.name == runs[0].name)
        for name, runs in methods.items()
    }
    return {**methods, **{name: runs for name, runs in known.items() if runs}}


@dataclass(frozen=True)
class Evidence:
    """What figures, tables and verdicts are made from.

    Attributes:
        runs: The runs.
        notes: What was left out or cut, a sentence each.
    """

    runs: Sequence[Run]
    notes: Sequence[str] = ()

    @classmethod
    def from_rows(cls, rows: Iterable[Row], step_times: Iterable[Row] = ()) -> Self:
        """Return the evidence in logged rows. All seeds of a method have the same length.

        - Of several runs of one method, size and seed, the longest counts.
        - Runs that got to different iterations are cut to the shortest. A run that did not get
          half as far as the longest is left out.

        Args:
            rows: Of any experiments.
            step_times: Rows with the columns problem, method and ms.
        """
        notes: list[str] = []
        times: dict[str, dict[str, float]] = {}
        for row in step_times:
            try:
                times.setdefault(row["problem"], {})[row["method"]] = float(row["ms"])
            except (KeyError, TypeError, ValueError) as error:
                needs = "--step-times: the columns problem, method and ms (a number) are needed"
                raise ValueError(f"{needs}, but a line has {row}.") from error
        groups: dict[str, list[Run]] = {}
        for run in _collected(rows, times, notes):
            groups.setdefault(run.name, []).append(run)
        runs = [run for group in groups.values() for run in _of_equal_length(group, notes)]
        return cls(runs, notes)

    def methods(self, experiment: str, **settings: Any) -> Methods:
        """Return the runs of an experiment with these settings by method, the paper's first."""
        settings["experiment"] = experiment
        groups: dict[str, list[Run]] = {}
        for run in sorted(self.runs, key=lambda run: rank(run.method)):
            if all(run.settings.get(name) == value for name, value in settings.items()):
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


def method_label(row: Mapping[str, Any]) -> str:
    """Return the run's estimator with the settings that differ from the paper's.

    >>> method_label({"experiment": "dvae", "estimator": "GS-F", "samples": 20, "anneal": False})
    'GS-F samples=20 anneal=False'
    """
    parts = [str(row["estimator"])]
    has_temperature = parts[0].startswith(("GS", "Gumbel"))
    for field in SWITCHES:
        value, default = row.get(field), getattr(EXPERIMENTS[row["experiment"]], field, None)
        if field == "learning_rate" and row["experiment"] == "dvae":
            default = LIKELIHOODS["paper"].rates["mnist"]  # the setting's default is None
        if value in (None, "", (), [], default) or (field == "anneal" and not has_temperature):
            continue
        parts.append(cell(value) if field == "options" else f"{field}={value}")
    return " ".join(parts)


def estimator_of(method: str) -> str:
    """Return the estimator of a method's label."""
    return method.split(" ")[0]


def rank(method: str) -> tuple[int, str]:
    estimator = estimator_of(method)
    return ORDER.index(estimator) if estimator in ORDER else len(ORDER), method


def _collected(
    rows: Iterable[Row], times: Mapping[str, Mapping[str, float]], notes: list[str]
) -> list[Run]:
    """Return a run for every configuration in the rows."""
    groups: dict[tuple[str, ...], dict[int, Row]] = {}
    ignored = 0
    for row in rows:
        name, is_of_a_run = row.get("experiment"), row.get("iteration") is not None
        if name not in EXPERIMENTS or not is_of_a_run or row.get("protocol") not in (None, "paper"):
            ignored += 1
        else:
            key = (name, *(cell(row.get(field.name)) for field in fields(EXPERIMENTS[name])))
            groups.setdefault(key, {})[int(row["iteration"])] = row
    if ignored:
        notes.append(f"{ignored} rows are left out: they are not of the experiments reported here.")
    return [_run([group[i] for i in sorted(group)], times) for group in groups.values()]


def _run(rows: Sequence[Row], times: Mapping[str, Mapping[str, float]]) -> Run:
    """Return the run that logged these rows.

    If the steps of other methods alone were measured on its problem, its clock is not known.
    """
    first, cls = rows[0], EXPERIMENTS[rows[0]["experiment"]]
    settings = {field.name: getattr(cls, field.name) for field in fields(cls)}
    settings |= {name: value for name, value in first.items() if value is not None}
    method, problem = method_label(first), _problem(settings)
    numbers = {name: settings[name] for name in ("digits", "together") if name in settings}
    columns = pd.DataFrame(rows).dropna(axis=1, how="all").assign(**numbers)
    points = columns.set_index("iteration", drop=False).rename_axis(None)
    if problem in times:
        ms = times[problem].get(method, math.nan)
        points["seconds"] = (points["iteration"] - 1).clip(lower=0) * ms / 1000
    for metric, formula in DERIVED.items():
        with suppress(KeyError):  # of the metrics of other experiments
            points[metric] = formula(points)
    return Run(method, settings, points)


def _problem(settings: Row) -> str:
    """Return the problem under which step times are listed.

    Such as dvae (200 bits), "dvae, 10 categories", "addition, 16 digits", optimisation.
    """
    usual = {"digits": None, "variables": 200, "categories": 2}
    sizes = [
        f"{settings[name]} {name}"
        for name in usual
        if settings.get(name, usual[name]) != usual[name]
    ]
    return ", ".join([settings["experiment"], *sizes])


def _of_equal_length(runs: Sequence[Run], notes: list[str]) -> list[Run]:
    """Return one run per seed of a method in one setting, cut to the iteration that all reached."""
    by_seed = {run["seed"]: run for run in sorted(runs, key=lambda run: run.length)}
    longest = max(run.length for run in runs)
    kept = [run for run in by_seed.values() if 2 * run.length >= longest]
    shortest = min(run.length for run in kept)
    if shortest == longest and len(kept) == len(runs):
        return kept
    lengths = ", ".join(f"seed {run['seed']}: {run.length}" for run in runs)
    notes.append(
        f"{runs[0].name}: the runs differ in length ({lengths}). {len(kept)} of {len(runs)} count, "
        f"up to iteration {shortest}."
    )
    return [replace(run, points=run.points.loc[:shortest]) for run in kept]
