"""Claims, verdicts, and the comparisons that rules are made of.

Rules compare means over seeds. "Clearly" lower means by more than two standard errors of the
difference, which :func:`leads` judges only with two seeds of each method. Runs with other settings
than the paper's (such as fewer draws) are shown in a report, but they decide nothing.
"""

import math
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..formatting import format_number
from ..runs import Evidence
from ..statistics import Stat

TEXTS = tomllib.loads((Path(__file__).parents[1] / "texts.toml").read_text(encoding="utf-8"))
Outcome = Literal["holds", "does not hold", "not testable", "not run"]


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
        key: A short name that begins with the claim's section of the report.
        where: Where the claim stands in the paper.
        says: The claim, in our words.
        rule: How it is decided.
        judge: The function that applies the rule.
        timed: The problem whose step times decide, if they were measured; "": no time decides.
    """

    key: str
    where: str
    says: str
    rule: str
    judge: Callable[[Evidence], Verdict]
    timed: str = ""

    def goes_by_clocks(self, evidence: Evidence) -> bool:
        """Return whether the clocks of the runs decide, for lack of separate step times."""
        return bool(self.timed) and not evidence.step_times.covers(self.timed)

    @property
    def section(self) -> str:
        """The section of the report that the claim belongs to."""
        return self.key.partition("-")[0]


def claim(key: str) -> Callable[[Callable[[Evidence], Verdict]], Claim]:
    """Make a claim of the function that judges it; texts.toml says what it claims."""
    return lambda judge: Claim(key=key, judge=judge, **TEXTS["claims"][key])


def decided(holds: bool, why: str) -> Verdict:
    """Return the verdict on a claim that the runs can decide."""
    return Verdict("holds" if holds else "does not hold", why)


def trivially(verdict: Verdict, reason: str) -> Verdict:
    """Return the verdict, with the reason why it holds trivially if it holds."""
    if verdict.outcome != "holds":
        return verdict
    return Verdict("holds", f"but trivially: {reason}\n{verdict.why}")


def listing(values: Mapping[str, object]) -> str:
    """Return names and values in one line.

    >>> listing({"RLOO": 1, "GS": 2})
    'RLOO 1, GS 2'
    """
    return ", ".join(f"{name} {value}" for name, value in values.items())


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


def leads(leader: str, stats: Mapping[str, Stat], rivals: Collection[str]) -> Verdict:
    """Judge whether a method is clearly lower than each of its rivals."""
    lead = stats.get(leader, Stat())
    if not lead.seeds:
        return Verdict("not run", f"{leader} was not run")
    compared = {name: stats[name] for name in rivals if name in stats and stats[name].seeds}
    if not compared:
        return Verdict("not run", f"nothing to compare {leader} with")
    numbers = f"{leader} {lead}; {listing(compared)}"
    if lead.seeds < 2 or any(stat.seeds < 2 for stat in compared.values()):
        return Verdict("not testable", f"one seed is no evidence ({numbers})")
    ahead = [name for name, stat in compared.items() if clearly_lower(stat, lead)]
    if ahead:
        return Verdict("does not hold", f"{' and '.join(ahead)} ahead ({numbers})")
    level = [name for name, stat in compared.items() if not clearly_lower(lead, stat)]
    if level:
        return Verdict("does not hold", f"level with {' and '.join(level)} ({numbers})")
    missing = [name for name in rivals if name not in compared]
    if missing:
        return Verdict("not testable", f"{', '.join(missing)} not run ({numbers})")
    return Verdict("holds", numbers)


def all_of(parts: Mapping[str, Verdict]) -> Verdict:
    """Join verdicts: the claim holds if every part does, and does not if one part does not."""
    outcomes = {part.outcome for part in parts.values()}
    if outcomes == {"not run"}:
        reason = next(part.why for part in parts.values())
        return Verdict("not run", f"{reason} ({'; '.join(parts)})")
    answers = {"holds": "yes, ", "does not hold": "no, "}
    lines = [
        f"{name}: {answers.get(part.outcome, '')}{part.why}"
        for name, part in parts.items()
        if part.outcome != "not run"
    ]
    if "does not hold" in outcomes:
        return Verdict("does not hold", "\n".join(lines))
    missing = [name for name, part in parts.items() if part.outcome == "not run"]
    lines += [f"not run: {', '.join(missing)}"] if missing else []
    return Verdict("holds" if outcomes == {"holds"} else "not testable", "\n".join(lines))


def within_factor(times: Mapping[str, float], factor: float, unit: str) -> Verdict:
    """Judge whether the slowest method takes less than ``factor`` times as long as the fastest."""
    if len(times) < 2:
        return Verdict("not run", "fewer than two methods were timed")
    ratio = max(times.values()) / max(min(times.values()), 1e-12)
    fastest = min(times, key=lambda name: times[name])
    numbers = listing({name: format_number(ms, digits=3) for name, ms in times.items()})
    comparison = f"a factor of {format_number(ratio, digits=3)}, {fastest} fastest"
    return decided(ratio < factor, f"{numbers} {unit}: {comparison}")
