"""Means and standard errors over the seeds of a method: curves, values and step times."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .formatting import format_number
from .runs import Array, Run, setting


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
