"""The best estimator of every race, and the picks of `catlog.advise` beside it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median

from catlog.estimators import ESTIMATORS

from ..tables import Row, grouped


@dataclass(frozen=True)
class Standing:
    """An estimator in a race.

    Attributes:
        method: its label.
        seconds: median over seeds of the seconds to the target, infinite if most did not reach it.
        at_least: a lower limit of that median: runs that did not reach the target count with the
            seconds that they were trained for.
        seeds: how many seeds were run.
    """

    method: str
    seconds: float
    at_least: float
    seeds: int

    @property
    def is_biased(self) -> bool:
        return not is_unbiased(self.method)


def is_unbiased(method: str) -> bool:
    """Return whether the estimator of a label such as RLOO(4) is unbiased."""
    return bool(ESTIMATORS[method.partition("(")[0]]().unbiased)


def standings(runs: Iterable[Row]) -> dict[str, list[Standing]]:
    """Return the estimators of every race, the fastest first."""
    ranking: dict[str, list[Standing]] = {}
    for race, rows_of_race in grouped(runs, "race").items():
        entries = []
        for method, rows in grouped(rows_of_race, "method").items():
            reached = [row["seconds"] for row in rows if row["seconds"] is not None]
            trained = [row["trained"] for row in rows if row["seconds"] is None]
            seconds = median([*reached, *(inf for _ in trained)])
            entries.append(Standing(method, seconds, median([*reached, *trained]), len(rows)))
        ranking[race] = sorted(entries, key=lambda entry: (entry.seconds, entry.at_least))
    return ranking


@dataclass(frozen=True)
class Verdict:
    """A decision of `catlog.advise`: one race, with or without biased estimators.

    Attributes:
        race, biased: what was decided.
        picks: the different picks of all seeds.
        ratio: how many times the seconds of the fastest estimator the picks take, the median over
            seeds; None if a pick was not raced.
        allowed_ratio: the same, relative to the fastest that the pilot was allowed to pick.
        is_bound: whether a pick did not reach the target, so that the ratios are lower limits.
    """

    race: str
    biased: bool
    picks: tuple[str, ...]
    ratio: float | None
    allowed_ratio: float | None
    is_bound: bool


def verdicts(ranking: dict[str, list[Standing]], picks: Sequence[Row]) -> list[Verdict]:
    """Return a verdict per race, version and permission of bias."""
    results = []
    for (race, biased), rows in grouped(picks, "race", "biased").items():
        chosen = [row["pick"] for row in rows]
        entries = {entry.method: entry for entry in ranking.get(race, [])}
        reached = [entry for entry in entries.values() if entry.seconds < inf]
        allowed = [entry for entry in reached if biased or not entry.is_biased]
        if not allowed:
            continue
        raced = [entries[name] for name in chosen if name in entries]
        ratios: list[float | None] = [None, None]
        if len(raced) == len(chosen):
            seconds = median(entry.at_least for entry in raced)
            ratios = [seconds / best.seconds for best in (reached[0], allowed[0])]
        is_bound = any(entry.seconds == inf for entry in raced)
        names = tuple(dict.fromkeys(chosen))
        results.append(Verdict(race, biased, names, *ratios, is_bound))
    return results
