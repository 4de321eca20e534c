"""The claims of the paper, with the rules by which logged runs decide them.

A claim of texts.toml is a sentence and one or more comparisons, which hold or not in every case.
Runs with other settings than the paper's (such as fewer draws) are shown in a report, but they
decide nothing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from .runs import TEXTS, Evidence, Methods, Stat, number

Outcome = Literal["holds", "does not hold", "not testable"]
DECIDED = ("holds", "does not hold")
ANY = (-math.inf, math.inf)
UNITS = {"seconds": "s", "iteration": "iterations", "epoch": "epochs"}


class UndecidedError(Exception):
    """What the runs lack to decide a claim."""


@dataclass(frozen=True)
class Comparison:
    """A quantity of several methods, means over seeds, and what must hold for it.

    Attributes:
        of: The quantity (see :meth:`.Run.reduced`), or the metric at the end of ``at``.
        noun: What it is, in words.
        at: An axis. Methods are compared at its last position that all of them reached.
        lead: The methods that lead; the others are rivals. (): whichever has the highest value.
        clearly: Each leader lies below each rival by more than two standard errors of the
            difference. Of one method alone: above zero by more than two standard errors.
        ratios: The range of a rival's value divided by a leader's; "*": of every other rival.
        value: The range of the leader's value.
        least: What every method needs to decide something: seeds, or how far an axis goes.
        some: What at least one method needs where they are compared.
        deny: What every method needs to deny the claim.
    """

    of: str
    noun: str
    at: str = ""
    lead: Sequence[str] = ("IndeCateR",)
    clearly: bool = False
    ratios: Mapping[str, Sequence[float]] = field(default_factory=dict)
    value: Sequence[float] = ANY
    least: Mapping[str, float] = field(default_factory=dict)
    some: Mapping[str, float] = field(default_factory=dict)
    deny: Mapping[str, float] = field(default_factory=dict)

    def decide(self, methods: Methods) -> tuple[bool, str]:
        """Return whether it holds, and the numbers behind it; raise if the runs decide nothing."""
        x, position, until = self.at or "iteration", math.nan, math.inf
        if self.at:  # as far as all methods got whose end is known
            position = until = np.nanmin([math.inf, *(runs.end(x) for runs in methods.values())])
        is_metric = " " not in self.of
        stats = {
            name: runs.at(self.of, position, x) if is_metric else runs.stat(self.of, until)
            for name, runs in methods.items()
        }
        known = {name: stat for name, stat in stats.items() if stat.seeds}
        numbers = f"{self.noun}: " + ", ".join(f"{name} {stat}" for name, stat in known.items())
        if self.at:
            numbers = f"after {number(position, 3)} {UNITS[self.at]}, {numbers}"
        _require(self.least, methods, numbers)
        for column, least in self.some.items():
            reached = [
                runs.at(column, position, x).mean if is_metric else runs.end(column)
                for runs in methods.values()
            ]
            if (most := max(np.nan_to_num(reached))) < least:
                raise UndecidedError(f"only {most:.3g} {UNITS[column]} ({numbers})")
        if failures := self._failures(known):
            _require(self.deny, methods, numbers)
            return False, f"{', '.join(failures)} ({numbers})"
        if missing := [name for name in methods if name not in known]:
            raise UndecidedError(f"not measured: {', '.join(missing)} ({numbers})")
        return True, numbers

    def _failures(self, stats: Mapping[str, Stat]) -> list[str]:
        """Return what does not hold, nothing if all does."""
        leaders = self.lead or [max(stats, key=lambda name: stats[name].mean, default="")]
        rivals = [name for name in stats if name not in leaders]
        if not {*leaders} <= {*stats} or not (rivals or self.value is not ANY):
            raise UndecidedError("fewer than two methods were measured")
        failures = []
        for name in leaders:
            stat, (low, high) = stats[name], self.value
            if stat.mean == math.inf:
                raise UndecidedError(f"{name} did not get so far")
            is_clear = not self.clearly or bool(rivals) or clearly_lower(Stat(0.0), stat)
            if not (low <= stat.mean <= high and is_clear):
                failures.append(f"{name} not {'clearly ' * self.clearly}in {[low, high]}")
            for rival in rivals:
                low, high = self.ratios.get(rival, self.ratios.get("*", ANY))
                ratio = stats[rival].mean / stat.mean if stat.mean > 0 else math.inf
                if not low <= ratio <= high:
                    failures.append(f"{rival} {number(ratio, 3)} times {name}")
                if self.clearly and not clearly_lower(stat, stats[rival]):
                    is_ahead = clearly_lower(stats[rival], stat)
                    failures.append(f"{rival} ahead" if is_ahead else f"level with {rival}")
        return list(dict.fromkeys(failures))


def _require(needs: Mapping[str, float], methods: Methods, numbers: str) -> None:
    """Raise if a method has too few seeds, or did not get far enough on an axis."""
    for column, least in needs.items():
        short = [
            name
            for name, runs in methods.items()
            if not (len(runs) if column == "seeds" else runs.end(column)) >= least
        ]
        if short:
            unit = UNITS.get(column, column)
            raise UndecidedError(f"under {least:g} {unit}: {', '.join(short)} ({numbers})")


def clearly_lower(a: Stat, b: Stat) -> bool:
    """Return whether a lies below b by more than two standard errors of their difference.

    >>> clearly_lower(Stat(1.0, 0.1, 3), Stat(2.0, 0.1, 3))
    True
    >>> clearly_lower(Stat(1.0, 0.1, 3), Stat(1.2, 0.1, 3))
    False
    """
    if b.mean == math.inf:
        return a.mean < b.mean
    errors = [0.0 if math.isnan(stat.error) else stat.error for stat in (a, b)]
    return b.mean - a.mean > 2 * math.hypot(*errors)


@dataclass(frozen=True)
class Verdict:
    """What the runs say about a claim.

    Attributes:
        outcome: The verdict.
        why: The numbers behind it, a line per size or data set.
    """

    outcome: Outcome
    why: str


@dataclass(frozen=True)
class Claim:
    """A claim of the paper.

    Attributes:
        key: A short name that begins with the experiment.
        where: Where the claim stands in the paper.
        says: The claim, in our words.
        rule: How it is decided, in words.
        cases: The name of the settings in each of which the comparisons must hold.
        decide: The comparisons.
        methods: The methods that are compared. Without one the claim does not hold.
        needs: The methods without which there is nothing to judge.
        trivial: Why the claim holds trivially, if it holds; "": it does not.
    """

    key: str
    where: str
    says: str
    rule: str
    cases: str
    decide: Sequence[Mapping[str, Any]]
    methods: Sequence[str] = ()
    needs: Sequence[str] = ()
    trivial: str = ""

    def judge(self, evidence: Evidence) -> Verdict:
        """Apply the comparisons to every case: all must hold, and one that fails denies it."""
        parts = {case["name"]: self._judge(evidence, case) for case in TEXTS["cases"][self.cases]}
        outcomes = {part.outcome for part in parts.values()}
        outcome = min(outcomes, key=("does not hold", "not testable", "holds").index)
        answers = {"holds": "yes, ", "does not hold": "no, ", "not testable": ""}
        lines = [f"{name}: {answers[part.outcome]}{part.why}" for name, part in parts.items()]
        why = parts[""].why if "" in parts else "\n".join(lines)
        if outcome == "holds" and self.trivial:
            why = f"but trivially: {self.trivial}\n{why}"
        return Verdict(outcome, why)

    def _judge(self, evidence: Evidence, case: Mapping[str, str]) -> Verdict:
        """Apply the comparisons to the runs of one case, such as a data set."""
        settings = {name: case[name] for name in case if name not in ("name", "method")}
        compared = [case["method"]] if "method" in case else self.methods
        methods = evidence.methods(**settings)
        chosen = {name: methods[name] for name in methods if name in compared or not compared}
        missing = ", ".join(name for name in compared if name not in methods)
        try:
            if not chosen or not {*self.needs} <= {*chosen}:
                raise UndecidedError(f"not run: {missing}")
            answers = [Comparison(**settings).decide(chosen) for settings in self.decide]
            why = "; ".join(dict.fromkeys(numbers for _, numbers in answers))
            if not all(holds for holds, _ in answers):
                return Verdict("does not hold", why)
            if missing:
                raise UndecidedError(f"not run: {missing} ({why})")
            return Verdict("holds", why)
        except UndecidedError as error:
            return Verdict("not testable", str(error))


def judge(evidence: Evidence) -> list[tuple[Claim, Verdict]]:
    """Return every claim with its verdict."""
    return [(claim, claim.judge(evidence)) for claim in CLAIMS]


CLAIMS = [Claim(key, **texts) for key, texts in TEXTS["claims"].items()]
