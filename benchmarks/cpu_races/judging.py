"""The best estimator of every race, and the picks of `catlog.advise` beside it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median

from catlog import ESTIMATORS

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
        race, advice, biased: what was decided, by which version ("old", "new").
        picks: the pick of every seed.
        ratios: how many times the seconds of the best estimator each pick takes; a lower limit if
            it did not reach the target (see `is_bound`), None if it was not raced.
        is_bound: whether the ratio is a lower limit only, by pick.
        best: the fastest of all estimators.
        best_allowed: the fastest of those that the pilot was allowed to pick.
    """

    race: str
    advice: str
    biased: bool
    picks: tuple[str, ...]
    ratios: tuple[float | None, ...]
    is_bound: tuple[bool, ...]
    best: Standing
    best_allowed: Standing

    @property
    def ratio(self) -> float | None:
        """The median over seeds, relative to the fastest of all; None if a pick was not raced."""
        if None in self.ratios:
            return None
        return median(ratio for ratio in self.ratios if ratio is not None)

    @property
    def allowed_ratio(self) -> float | None:
        """The same, relative to the fastest that the pilot was allowed to pick."""
        if self.ratio is None:
            return None
        return self.ratio * self.best.seconds / self.best_allowed.seconds


def verdicts(ranking: dict[str, list[Standing]], picks: Sequence[Row]) -> list[Verdict]:
    """Return a verdict per race, version and permission of bias."""
    results = []
    for (race, advice, biased), rows in grouped(picks, "race", "advice", "biased").items():
        chosen = [row["pick"] for row in rows]
        entries = {entry.method: entry for entry in ranking.get(race, [])}
        reached = [entry for entry in entries.values() if entry.seconds < inf]
        allowed = [entry for entry in reached if biased or not entry.is_biased]
        if not allowed:
            continue
        best = reached[0]
        raced = [entries.get(name) for name in chosen]
        ratios = [None if entry is None else entry.at_least / best.seconds for entry in raced]
        results.append(
            Verdict(
                race=race,
                advice=advice,
                biased=biased,
                picks=tuple(chosen),
                ratios=tuple(ratios),
                is_bound=tuple(entry is not None and entry.seconds == inf for entry in raced),
                best=best,
                best_allowed=allowed[0],
            )
        )
    return results


def ratio_text(verdict: Verdict, ratio: float | None) -> str:
    """Return a ratio as text; "over" if a pick did not reach the target."""
    if ratio is None:
        return "not raced"
    return f"{'over ' if any(verdict.is_bound) else ''}{ratio:.2f}"


def judgement(ranking: dict[str, list[Standing]], picks: Sequence[Row]) -> str:
    """Return the judgement as text: the best of each race, the picks, and how many are good."""
    lines = []
    for race, entries in ranking.items():
        lines.append(f"{race}: the best is {entries[0].method}, {entries[0].seconds:.1f} s")
    found = verdicts(ranking, picks)
    lines += [
        f"{verdict.race}, {verdict.advice} advice, biased={verdict.biased}: "
        f"{', '.join(dict.fromkeys(verdict.picks))}: {ratio_text(verdict, verdict.ratio)} "
        f"times the best ({ratio_text(verdict, verdict.allowed_ratio)} of the best allowed)"
        for verdict in found
    ]
    for advice in dict.fromkeys(verdict.advice for verdict in found):
        ratios = [verdict.ratio for verdict in found if verdict.advice == advice]
        good = sum(ratio is not None and ratio <= 1.3 for ratio in ratios)
        bad = sum(ratio is not None and ratio > 2 for ratio in ratios)
        lines.append(
            f"{advice} advice: {good} of {len(ratios)} decisions within 1.3 times the best, "
            f"{bad} beyond 2"
        )
    return "\n".join(lines)
