"""Logged rows as runs, grouped by method: the evidence of figures, tables and verdicts."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from .. import EXPERIMENTS
from ..dvae import PAPER_RATE
from ..records import Row, cell
from .step_times import NO_STEP_TIMES, StepTimes

Array = NDArray[np.float64]

# The order in which methods are listed; others follow, by name.
ORDER = (
    "IndeCateR", "IndeCateR-D", "IndeCateR-Latin", "IndeCateR-D-Latin", "IndeCateR-Taylor",
    "REINFORCE", "RLOO", "RLOO-F", "RLOO-S", "GS", "GS-F", "GS-S",
)  # fmt: skip

# Settings that make another method of the same estimator. Its label shows those that are not the
# default.
SWITCHES = (
    "samples", "options", "learning_rate", "batch", "clip", "reads", "anneal", "network",
    "sequences", "decay", "value_samples", "shift", "restart", "floor",
)  # fmt: skip
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
        key = (name, *(cell(row.get(field)) for field in settings[name]))
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
            if cell(setting(kept.config, name)) != cell(setting(dropped.config, name))
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
    experiment(**{size: setting(row, size) for size in experiment.sizes})


def require_runs(evidence: Evidence, path: Path | str) -> None:
    """Raise if there is nothing to write to ``path``."""
    if not evidence.runs:
        consequence = f"There is no run to report, so {path} was not written."
        raise ValueError(" ".join([consequence, *evidence.notes]))


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


def section_of(run: Run) -> str:
    """Return the section of a report that a run belongs to.

    This is its experiment, but ``categorical`` for an autoencoder with more than two categories.
    """
    is_categorical = run.experiment == "dvae" and setting(run.config, "categories") > 2
    return "categorical" if is_categorical else run.experiment
