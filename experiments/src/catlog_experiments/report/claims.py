"""The claims of the paper, with the rules by which logged runs decide them.

Rules compare means over seeds. "Clearly" lower means by more than two standard errors of the
difference. Runs with other settings than the paper's (such as fewer draws) are shown in a report,
but they decide nothing. texts.toml says the claims and the rules in words.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from .runs import TEXTS, Evidence, Methods, Repeats, Run, at_common_end, common_end
from .statistics import Array, Stat, format_number

Outcome = Literal["holds", "does not hold", "not testable", "not run"]
DECIDED = ("holds", "does not hold")
Answer = tuple[bool, str]  # whether a claim holds, and the numbers behind it
Rule = Callable[[Methods], Answer]

FEW_EPOCHS = 20  # of an autoencoder: the curves are in their first descent up to here
EPOCHS = 50  # that a run of the addition needs to decide something
MAXIMUM = 0.501**2  # of the function that is optimised


class UndecidedError(Exception):
    """What the runs lack to decide a claim."""

    outcome: Outcome = "not testable"


class NotRunError(UndecidedError):
    """None of the runs are about the claim."""

    outcome = "not run"


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
        applies: The rule, applied to the methods in one case.
        where: Where the claim stands in the paper.
        says: The claim, in our words.
        rule: How it is decided.
        cases: The name of the settings in each of which the rule must hold.
        methods: The methods that are compared; (): all. Without one the claim does not hold.
        needs: The methods without which there is nothing to judge.
        trivial: Why the claim holds trivially, if it holds; "": it does not.
        timed: The problem whose step times decide, if they were measured; "": no time decides.
    """

    key: str
    applies: Rule
    where: str
    says: str
    rule: str
    cases: str
    methods: Sequence[str] = ()
    needs: Sequence[str] = ()
    trivial: str = ""
    timed: str = ""

    @property
    def section(self) -> str:
        """The section of the report that the claim belongs to."""
        return self.key.partition("-")[0]

    def goes_by_clocks(self, evidence: Evidence) -> bool:
        """Return whether the clocks of the runs decide, for lack of separate step times."""
        return bool(self.timed) and self.timed not in evidence.times

    def judge(self, evidence: Evidence) -> Verdict:
        """Apply the rule. Without runs of the paper's sizes the claim is "not run"."""
        parts = {}
        for case in TEXTS["cases"][self.cases]:
            settings = {name: case[name] for name in case if name not in ("name", "method")}
            compared = [case["method"]] if "method" in case else self.methods
            parts[case["name"]] = self._judge(evidence.methods(**settings), compared)
        verdict = parts[""] if "" in parts else _all_of(parts)
        if verdict.outcome == "holds" and self.trivial:
            return Verdict("holds", f"but trivially: {self.trivial}\n{verdict.why}")
        return verdict

    def _judge(self, methods: Methods, compared: Sequence[str]) -> Verdict:
        if compared:
            methods = {name: methods[name] for name in methods if name in compared}
        missing = [name for name in self.needs if name not in methods]
        if missing or not methods:
            return Verdict("not run", f"not run: {', '.join(missing or compared or ['all'])}")
        try:
            holds, why = self.applies(methods)
        except UndecidedError as error:
            return Verdict(error.outcome, str(error))
        missing = [name for name in compared if name not in methods]
        if holds and missing:
            return Verdict("not testable", f"not run: {', '.join(missing)} ({why})")
        return Verdict("holds" if holds else "does not hold", why)


def judge(evidence: Evidence) -> list[tuple[Claim, Verdict]]:
    """Return every claim with its verdict.

    A claim is "not testable" if its experiment was run, but not with the paper's sizes and methods.
    """
    sections = {run.section for run in evidence.runs}
    judged = []
    for claim in CLAIMS:
        verdict = claim.judge(evidence)
        if verdict.outcome == "not run" and claim.section in sections:
            verdict = Verdict("not testable", f"at this size: {verdict.why}")
        judged.append((claim, verdict))
    return judged


def _all_of(parts: Mapping[str, Verdict]) -> Verdict:
    """Join verdicts: the claim holds if every part does, and does not if one part does not."""
    outcomes = {part.outcome for part in parts.values()}
    missing = [name for name, part in parts.items() if part.outcome == "not run"]
    if outcomes == {"not run"}:
        return Verdict("not run", f"{next(iter(parts.values())).why} ({'; '.join(parts)})")
    answers = {"holds": "yes, ", "does not hold": "no, "}
    lines = [
        f"{name}: {answers.get(part.outcome, '')}{part.why}"
        for name, part in parts.items()
        if name not in missing
    ]
    if "does not hold" in outcomes:
        return Verdict("does not hold", "\n".join(lines))
    lines += [f"not run: {', '.join(missing)}"] if missing else []
    return Verdict("holds" if outcomes == {"holds"} else "not testable", "\n".join(lines))


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


def enough(digits: int) -> float:
    """Return the accuracy from which sums count as solved.

    It is nine tenths of what a reader of single digits with 99 % gets.

    >>> round(enough(16), 3), round(enough(32), 3)
    (0.766, 0.652)
    """
    return 0.9 * 0.99**digits


def solved(runs: Repeats) -> tuple[int, int]:
    """Return in how many runs the last accuracy is high enough, and the number of runs."""
    accuracies = [run.finite("accuracy")[-1] for run in runs]
    return sum(accuracy >= enough(runs[0]["digits"]) for accuracy in accuracies), len(runs)


def covered(run: Run) -> Array:
    """Return the share of the distance from the start to the maximum, at each logged point."""
    value = run.column("value")
    return (value - value[0]) / (MAXIMUM - value[0])


def iterations_to(run: Run, share: float = 0.9) -> float:
    """Return the first logged iteration at which that share of the distance is covered."""
    reached = np.flatnonzero(covered(run) >= share)
    return float(run.column("iteration")[reached[0]]) if reached.size else math.inf


def _listing(values: Mapping[str, object], digits: int = 3) -> str:
    """Return names and values in one line, and numbers rounded."""
    texts = {
        name: format_number(value, digits=digits) if isinstance(value, float) else value
        for name, value in values.items()
    }
    return ", ".join(f"{name} {text}" for name, text in texts.items())


def _leads(stats: Mapping[str, Stat]) -> Answer:
    """Judge whether IndeCateR is clearly lower than each of its rivals."""
    rivals = {name: stat for name, stat in stats.items() if stat.seeds}
    lead = rivals.pop("IndeCateR", Stat())
    if not lead.seeds or not rivals:
        raise NotRunError("IndeCateR and another method were not both run")
    numbers = f"IndeCateR {lead}; {_listing(rivals)}"
    if any(stat.seeds < 2 for stat in (lead, *rivals.values())):
        raise UndecidedError(f"one seed is no evidence ({numbers})")
    if ahead := [name for name, stat in rivals.items() if clearly_lower(stat, lead)]:
        return False, f"{' and '.join(ahead)} ahead ({numbers})"
    if level := [name for name, stat in rivals.items() if not clearly_lower(lead, stat)]:
        return False, f"level with {' and '.join(level)} ({numbers})"
    if missing := [name for name, stat in stats.items() if not stat.seeds]:
        raise UndecidedError(f"not measured: {', '.join(missing)} ({numbers})")
    return True, numbers


def _similar(methods: Methods, time: Callable[[Repeats], Stat], factor: float, unit: str) -> Answer:
    """Judge whether the slowest method takes less than ``factor`` times as long as the fastest."""
    stats = {name: time(runs) for name, runs in methods.items()}
    times = {name: stat.mean for name, stat in stats.items() if stat.seeds}
    if len(times) < 2:
        raise NotRunError("fewer than two methods were timed")
    fastest = min(times, key=lambda name: times[name])
    ratio = max(times.values()) / max(times[fastest], 1e-12)
    text = f"a factor of {format_number(ratio, digits=3)}, {fastest} fastest"
    return ratio < factor, f"{_listing(times)} ms per {unit}: {text}"


def _much_lower(methods: Methods, variance: str) -> Answer:
    """Judge whether IndeCateR has the lowest bias and at most a tenth of the others' variance."""
    rivals = dict(methods)
    own = rivals.pop("IndeCateR")
    if not rivals:
        raise NotRunError("no run with another estimator than IndeCateR")
    if (estimates := own.final("estimates").mean) < 100:
        raise UndecidedError(f"{estimates:.0f} estimates are too few")
    least, distance = (own.final(metric).mean for metric in (variance, "cosine_distance"))
    ratios = {
        name: runs.final(variance).mean / least if least > 0 else math.inf
        for name, runs in rivals.items()
    }
    multiples = [
        f"{name} {'over a million' if ratio > 1e6 else format_number(ratio, digits=2)} times"
        for name, ratio in ratios.items()
    ]
    why = f"variance of {', '.join(multiples)} that of IndeCateR"
    nearer = [name for name in rivals if rivals[name].final("cosine_distance").mean < distance]
    if nearer:
        return False, f"{why}; {', '.join(nearer)} nearer to the exact gradient"
    return min(ratios.values()) >= 10, why


def _least_work(methods: Methods) -> Answer:
    products = {name: runs.work().mean for name, runs in methods.items()}
    return min(products, key=lambda name: products[name]) == "IndeCateR", _listing(products)


def _rloo_nearest(methods: Methods) -> Answer:
    stats = {name: runs.final("cosine_distance") for name, runs in methods.items()}
    return min(stats, key=lambda name: stats[name].mean) == "RLOO", _listing(stats)


def _lowest_variance(methods: Methods) -> Answer:
    return _leads(
        {name: runs.reduced("gradient_variance", np.mean) for name, runs in methods.items()}
    )


def _fewest_iterations(methods: Methods) -> Answer:
    stats = {name: runs.each(iterations_to) for name, runs in methods.items()}
    if stats["IndeCateR"].mean == math.inf:
        raise UndecidedError("IndeCateR did not cover 90 %: too few iterations")
    return _leads(stats)


def _relaxation_struggles(methods: Methods) -> Answer:
    if (length := min(run.length for run in methods["GS-F"])) < 1000:
        raise UndecidedError(f"GS-F ran for {length} iterations of 2000")
    shares = {
        name: runs.each(lambda run: float(covered(run)[-1])) for name, runs in methods.items()
    }
    numbers = _listing({name: f"{100 * share.mean:.0f} %" for name, share in shares.items()})
    share = shares.pop("GS-F")
    is_last = all(clearly_lower(share, other) for other in shares.values())
    return is_last and share.mean < 0.5, f"{numbers} of the distance"


def _clock(runs: Repeats) -> str:
    return "measured separately" if runs[0].is_timed else "by the clocks of the runs"


def _require_epochs(methods: Methods, position: float, x: str) -> None:
    """Raise if no method has done enough epochs at a position of x."""
    stats = [runs.at("epoch", position, x) for runs in methods.values()]
    epochs = max((stat.mean for stat in stats if stat.seeds), default=0.0)
    if epochs < FEW_EPOCHS:
        text = format_number(epochs, digits=2)
        raise UndecidedError(f"only {text} epochs when the first method ends")


def _lowest_train(methods: Methods) -> Answer:
    seconds, stats = at_common_end(methods, "train", "seconds")
    _require_epochs(methods, seconds, "seconds")
    holds, why = _leads(dict.fromkeys(methods, Stat()) | stats)
    clock = _clock(methods["IndeCateR"])
    return holds, f"after {format_number(seconds, digits=3)} s ({clock}): {why}"


def _near_rloo(methods: Methods) -> Answer:
    iteration, stats = at_common_end(methods, "train", "iteration")
    _require_epochs(methods, iteration, "iteration")
    gap = stats["IndeCateR"].mean / stats["RLOO-F"].mean - 1
    why = f"after {iteration:.0f} iterations {_listing(stats)} ({100 * gap:+.1f} %)"
    return abs(gap) < 0.03, why


def _overfits(methods: Methods) -> Answer:
    (runs,) = methods.values()
    if (curve := runs.series("test")) is None:
        raise NotRunError("no test bound was logged")
    best = int(curve.mean.argmin())
    first, last = (Stat(float(curve.mean[i]), float(curve.error[i]), len(runs)) for i in (best, -1))
    why = f"best {format_number(first.mean)} at iteration {curve.x[best]:.0f}, "
    why += f"{format_number(last.mean)} at the end"
    if last.mean - first.mean > 0.5 and clearly_lower(first, last):
        return True, why
    if (epochs := runs.end("epoch")) < 500:
        raise UndecidedError(f"{why}: no rise in {format_number(epochs)} epochs (the paper: 1000)")
    return False, why


def _best_on_omniglot(methods: Methods) -> Answer:
    stats = {name: runs.reduced("test", np.min) for name, runs in methods.items()}
    if (epochs := common_end(methods, "epoch")) < 500:
        raise UndecidedError(
            f"the shortest run has {format_number(epochs)} epochs of 1000, so these are not the "
            f"lowest yet: {_listing(stats)}"
        )
    pair = ("IndeCateR", "RLOO-F")
    is_lower = [clearly_lower(stats[a], stats[b]) for a in pair for b in methods if b not in pair]
    return all(is_lower), _listing(stats)


def _comparable(methods: Methods, metric: str) -> Answer:
    until = common_end(methods, "iteration")
    stats = {name: runs.late(metric, until) for name, runs in methods.items()}
    if missing := [name for name, stat in stats.items() if not stat.seeds]:
        raise UndecidedError(f"not measured: {', '.join(missing)}")
    own = methods["IndeCateR"]
    _require_epochs({"IndeCateR": own}, own.end("iteration"), "iteration")
    variance = stats.pop("IndeCateR").mean
    ratios = {name: stat.mean / variance for name, stat in stats.items()}
    is_lowest = all(ratios.get(name, math.inf) >= 1 for name in ("RLOO-S", "GS-S"))
    holds = 0.5 <= ratios["RLOO-F"] <= 2 and is_lowest and ratios.get("GS-F", 0.0) < 1
    return holds, f"{_listing(ratios, digits=2)} times that of IndeCateR"


def _relaxation_slower(methods: Methods) -> Answer:
    slow, fast = (methods[name].milliseconds().mean for name in ("GS-F", "IndeCateR"))
    if math.isnan(slow + fast):
        raise NotRunError("GS-F and IndeCateR were not both timed with 200 bits")
    numbers = " against ".join(format_number(ms, digits=3) for ms in (slow, fast))
    clock = _clock(methods["GS-F"])
    return slow / fast >= 1.6, f"{numbers} ms, a ratio of {slow / fast:.2f}, {clock}"


def _categorical_order(methods: Methods) -> Answer:
    seconds, stats = at_common_end(methods, "test", "seconds")
    if untimed := [name for name in methods if name not in stats]:
        raise UndecidedError(f"step times not measured: {', '.join(untimed)}")
    _require_epochs(methods, seconds, "seconds")
    why = f"after {format_number(seconds, digits=3)} s: {_listing(stats)}"
    if any(stat.seeds < 2 for stat in stats.values()):
        raise UndecidedError(f"one seed is no evidence ({why})")
    order = sorted(stats, key=lambda name: stats[name].mean)
    return order[:2] == ["IndeCateR-D", "IndeCateR"], why


def _accuracies(methods: Methods) -> str:
    parts = {}
    for name, runs in methods.items():
        successes, total = solved(runs)
        parts[name] = f"{runs.final('accuracy')} ({successes} of {total} runs)"
    return _listing(parts)


def _require_long_runs(methods: Methods, numbers: str) -> None:
    """Raise if a method has one seed, or too few epochs."""
    short = [
        name for name, runs in methods.items() if len(runs) < 2 or not runs.end("epoch") >= EPOCHS
    ]
    if short:
        reason = f"one seed or fewer than {EPOCHS} epochs: {', '.join(short)}"
        raise UndecidedError(f"{reason} ({numbers})")


def _only_per_variable(methods: Methods) -> Answer:
    numbers = _accuracies(methods)
    solvers = [name for name, runs in methods.items() if len(set(solved(runs))) == 1]
    rivals = [name for name in solvers if name != "IndeCateR-D" and len(methods[name]) > 1]
    if rivals:
        return False, f"{', '.join(rivals)} also solved it every time: {numbers}"
    _require_long_runs(methods, numbers)
    return "IndeCateR-D" in solvers, numbers


def _per_variable_beats_shared(methods: Methods) -> Answer:
    stats = {name: runs.final("accuracy") for name, runs in methods.items()}
    _require_long_runs(methods, _listing(stats))
    return clearly_lower(stats["IndeCateR"], stats["IndeCateR-D"]), _listing(stats)


def _solved_by_any(methods: Methods) -> Answer:
    numbers = _accuracies(methods)
    repeated = [runs for runs in methods.values() if len(runs) > 1]
    if any(runs.final("accuracy").mean >= enough(runs[0]["digits"]) for runs in repeated):
        return True, numbers
    _require_long_runs(methods, numbers)
    return False, numbers


RULES: dict[str, Rule] = {
    "gradients": partial(_much_lower, variance="cosine_variance"),
    "gradients-pairwise": partial(_much_lower, variance="relative_variance"),
    "gradients-work": _least_work,
    "gradients-rloo": _rloo_nearest,
    "gradients-time": partial(_similar, time=Repeats.estimate_time, factor=10, unit="estimate"),
    "optimisation-variance": _lowest_variance,
    "optimisation-speed": _fewest_iterations,
    "optimisation-relaxation": _relaxation_struggles,
    "optimisation-time": partial(_similar, time=Repeats.milliseconds, factor=2, unit="step"),
    "dvae-time": _lowest_train,
    "dvae-iterations": _near_rloo,
    "dvae-overfitting": _overfits,
    "dvae-omniglot": _best_on_omniglot,
    "dvae-spread": partial(_comparable, metric="gradient_spread"),
    "dvae-variance": partial(_comparable, metric="gradient_variance"),
    "dvae-relaxation-time": _relaxation_slower,
    "categorical": _categorical_order,
    "addition": _only_per_variable,
    "addition-shared": _per_variable_beats_shared,
    "addition-beyond": _solved_by_any,
}
CLAIMS = [Claim(key, rule, **TEXTS["claims"][key]) for key, rule in RULES.items()]
