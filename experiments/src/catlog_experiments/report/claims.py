"""The claims of the paper, with the rules by which logged runs decide them.

A claim of texts.toml is a sentence and one or more comparisons, which hold or not in every case.
Runs with other settings than the paper's (such as fewer draws) are shown in a report, but they
decide nothing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from .runs import TEXTS, Evidence, Methods, Stat, number

Outcome = Literal["holds", "does not hold", "not testable", "not run"]
DECIDED = ("holds", "does not hold")
ANY = (-math.inf, math.inf)
UNITS = {"seconds": "s", "iteration": "iterations", "epoch": "epochs"}


class UndecidedError(Exception):
    """What the runs lack to decide a claim."""


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
class Comparison:
    """A quantity of several methods, means over seeds, and what must hold for it.

    Attributes:
        of: The quantity (see :meth:`.Run.reduced`), or the metric at the end of ``at``.
        noun: What it is, in words.
        at: An axis. Methods are compared at its last position that all of them reached.
        lead: The methods that lead; the others are rivals. (): whichever leads.
        clearly: Each leader lies below each rival by more than two standard errors of the
            difference. Of one method alone: above zero by more than two standard errors.
        ratios: The range of a rival's value divided by a leader's; "*": of every other rival.
        value: The range of the leader's value; without a named leader, of the highest one.
        factor: The highest value is less than this factor times the lowest.
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
    factor: float = math.inf
    least: Mapping[str, float] = field(default_factory=dict)
    some: Mapping[str, float] = field(default_factory=dict)
    deny: Mapping[str, float] = field(default_factory=dict)

    def decide(self, methods: Methods) -> tuple[bool, str]:
        """Return whether it holds, and the numbers behind it; raise if the runs decide nothing."""
        x, position, until = self.at or "iteration", math.nan, math.inf
        if self.at:  # as far as all methods got whose end is known
            position = until = np.nanmin([math.inf, *(runs.end(x) for runs in methods.values())])
        is_metric = bool(self.at) and " " not in self.of
        stats = {
            name: runs.at(self.of, position, x) if is_metric else runs.stat(self.of, until)
            for name, runs in methods.items()
        }
        known = {name: stat for name, stat in stats.items() if stat.seeds}
        numbers = f"{self.noun}: " + ", ".join(f"{name} {stat}" for name, stat in known.items())
        if self.at:
            numbers = f"after {number(position, 3)} {UNITS[self.at]}, {numbers}"
        if "seconds" in self.at or "ms" in self.of:
            is_timed = next(iter(methods.values()))[0].is_timed
            numbers += ", measured separately" if is_timed else ", by the clocks of the runs"
        self._require(self.least, methods, numbers)
        for column, least in self.some.items():
            reached = [
                runs.at(column, position, x).mean if is_metric else runs.end(column)
                for runs in methods.values()
            ]
            if (most := max(np.nan_to_num(reached))) < least:
                raise UndecidedError(f"only {most:.3g} {UNITS[column]} ({numbers})")
        if failures := self._failures(known):
            self._require(self.deny, methods, numbers)
            return False, f"{', '.join(dict.fromkeys(failures))} ({numbers})"
        if missing := [name for name in methods if name not in known]:
            raise UndecidedError(f"not measured: {', '.join(missing)} ({numbers})")
        return True, numbers

    def _require(self, needs: Mapping[str, float], methods: Methods, numbers: str) -> None:
        """Raise if a method has too few seeds, or did not get far enough."""
        for column, least in needs.items():
            short = [
                name
                for name, runs in methods.items()
                if not (len(runs) if column == "seeds" else runs.end(column)) >= least
            ]
            if short:
                name = UNITS.get(column, column)
                raise UndecidedError(f"under {least:g} {name}: {', '.join(short)} ({numbers})")

    def _failures(self, stats: Mapping[str, Stat]) -> list[str]:
        """Return what does not hold, nothing if all does."""
        means = [stat.mean for stat in stats.values()]
        leaders = self.lead or [max(stats, key=lambda name: stats[name].mean, default="")]
        is_alone = self.value is not ANY and len(stats) == 1
        rivals = [] if is_alone else [name for name in stats if name not in leaders]
        if any(name not in stats for name in leaders) or not (rivals or self.value is not ANY):
            raise UndecidedError("fewer than two methods were measured")
        failures = []
        ratio = max(means) / max(min(means), 1e-12)
        if ratio >= self.factor < math.inf:
            failures.append(f"a factor of {number(ratio, 3)}")
        for name in leaders:
            stat, (low, high) = stats[name], self.value
            is_clear = not self.clearly or bool(rivals) or clearly_lower(Stat(0.0), stat)
            if not (low <= stat.mean <= high and is_clear):
                bound = f"at most {high:g}" if low == -math.inf else f"at least {low:g}"
                failures.append(f"{name} not {'clearly ' * self.clearly}{bound}")
            if stat.mean == math.inf:
                raise UndecidedError(f"{name} did not get so far")
            for rival in rivals:
                low, high = self.ratios.get(rival, self.ratios.get("*", ANY))
                ratio = stats[rival].mean / stat.mean if stat.mean > 0 else math.inf
                if not low <= ratio <= high:
                    failures.append(f"{rival} {number(ratio, 3)} times {name}")
                if self.clearly and not clearly_lower(stat, stats[rival]):
                    is_ahead = clearly_lower(stats[rival], stat)
                    failures.append(f"{rival} ahead" if is_ahead else f"level with {rival}")
        return failures


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
    decide: Sequence[Mapping[str, object]]
    methods: Sequence[str] = ()
    needs: Sequence[str] = ()
    trivial: str = ""

    def judge(self, evidence: Evidence) -> Verdict:
        """Apply the comparisons. Without runs of the paper's sizes the claim is "not run"."""
        parts = {}
        for case in TEXTS["cases"][self.cases]:
            settings = {name: case[name] for name in case if name not in ("name", "method")}
            compared = [case["method"]] if "method" in case else self.methods
            methods = evidence.methods(**settings)
            chosen = {name: methods[name] for name in methods if name in compared or not compared}
            parts[case["name"]] = self._judge(chosen, compared)
        verdict = parts[""] if "" in parts else _all_of(parts)
        if verdict.outcome == "holds" and self.trivial:
            return Verdict("holds", f"but trivially: {self.trivial}\n{verdict.why}")
        return verdict

    def _judge(self, methods: Methods, compared: Sequence[str]) -> Verdict:
        missing = [name for name in compared if name not in methods]
        if not methods or set(self.needs) & set(missing):
            return Verdict("not run", f"not run: {', '.join(missing)}")
        try:
            comparisons = [Comparison(**settings) for settings in self.decide]  # type: ignore[arg-type]
            answers = [comparison.decide(methods) for comparison in comparisons]
        except UndecidedError as error:
            outcome: Outcome = (
                "not testable" if len(methods) > 1 or len(compared) == 1 else "not run"
            )
            return Verdict(outcome, str(error))
        why = "; ".join(dict.fromkeys(numbers for _, numbers in answers))
        holds = all(is_right for is_right, _ in answers)
        if holds and missing:
            return Verdict("not testable", f"not run: {', '.join(missing)} ({why})")
        return Verdict("holds" if holds else "does not hold", why)


def judge(evidence: Evidence) -> list[tuple[Claim, Verdict]]:
    """Return every claim with its verdict.

    A claim is "not testable" if its experiment was run, but not with the paper's sizes and methods.
    """
    run = {run["experiment"] for run in evidence.runs}
    judged = []
    for claim in CLAIMS:
        verdict = claim.judge(evidence)
        if verdict.outcome == "not run" and claim.key.partition("-")[0] in run:
            verdict = Verdict("not testable", f"at this size: {verdict.why}")
        judged.append((claim, verdict))
    return judged


def _all_of(parts: Mapping[str, Verdict]) -> Verdict:
    """Join verdicts: the claim holds if every part does, and does not if one part does not."""
    outcomes = {part.outcome for part in parts.values()}
    if outcomes == {"not run"}:
        return Verdict("not run", f"{next(iter(parts.values())).why} ({'; '.join(parts)})")
    answers = {"holds": "yes, ", "does not hold": "no, "}
    lines = [f"{name}: {answers.get(part.outcome, '')}{part.why}" for name, part in parts.items()]
    outcome: Outcome = "holds" if outcomes == {"holds"} else "not testable"
    return Verdict("does not hold" if "does not hold" in outcomes else outcome, "\n".join(lines))


CLAIMS = [Claim(key, **texts) for key, texts in TEXTS["claims"].items()]
