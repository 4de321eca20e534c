"""Claims about synthetic gradients (Section 6.1)."""

import math
from collections.abc import Callable, Mapping, Sequence

from ..formatting import format_number
from ..runs import Evidence, Run, setting
from ..statistics import Stat, final, statistic
from .verdicts import Verdict, all_of, claim, decided, listing, trivially, within_factor

RIVALS = ("REINFORCE", "RLOO", "GS")
SIZES = ((12, 3), (6, 10), (3, 100))  # of the paper: variables, categories

Methods = Mapping[str, list[Run]]


def at_every_size(
    evidence: Evidence, function: str, judge: Callable[[Methods], Verdict]
) -> Verdict:
    """Judge the methods at each of the paper's sizes."""
    verdicts = {}
    for d, k in SIZES:
        methods = evidence.methods("gradients", function=function, variables=d, categories=k)
        verdicts[f"D={d}, K={k}"] = judge(methods)
    return all_of(verdicts)


@claim("gradients")
def additive_gradients(evidence: Evidence) -> Verdict:
    verdict = at_every_size(
        evidence, "additive", lambda methods: _much_lower(methods, "cosine_variance")
    )
    return trivially(verdict, "f is additive, so one draw gives IndeCateR the exact gradient.")


@claim("gradients-pairwise")
def pairwise_gradients(evidence: Evidence) -> Verdict:
    return at_every_size(
        evidence, "pairwise", lambda methods: _much_lower(methods, "relative_variance")
    )


def _much_lower(methods: Methods, variance: str) -> Verdict:
    """Judge whether IndeCateR has the lowest bias and at most a tenth of the others' variance."""
    rivals = [name for name in RIVALS if name in methods]
    if "IndeCateR" not in methods or not rivals:
        return Verdict("not run", "no run with IndeCateR and another estimator")
    if (estimates := final(methods["IndeCateR"], "estimates").mean) < 100:
        return Verdict("not testable", f"{estimates:.0f} estimates are too few")
    lowest = final(methods["IndeCateR"], variance).mean
    ratios = {
        name: final(methods[name], variance).mean / lowest if lowest > 0 else math.inf
        for name in rivals
    }
    distance = final(methods["IndeCateR"], "cosine_distance").mean
    nearer = [name for name in rivals if final(methods[name], "cosine_distance").mean < distance]
    numbers = listing({name: _multiple(ratio) for name, ratio in ratios.items()})
    why = f"variance of {numbers} that of IndeCateR"
    if nearer:
        return Verdict("does not hold", f"{why}; {', '.join(nearer)} nearer to the exact gradient")
    if min(ratios.values()) < 10:
        return Verdict("does not hold", why)
    missing = [name for name in RIVALS if name not in methods]
    if missing:
        return Verdict("not testable", f"{', '.join(missing)} not run; {why}")
    return Verdict("holds", why)


def _multiple(ratio: float) -> str:
    return "over a million times" if ratio > 1e6 else f"{format_number(ratio, digits=2)} times"


@claim("gradients-work")
def variance_by_work(evidence: Evidence) -> Verdict:
    return at_every_size(evidence, "pairwise", _least_work)


def _least_work(methods: Methods) -> Verdict:
    names = ("IndeCateR", "REINFORCE", "RLOO")
    if not methods.keys() >= set(names):
        return Verdict("not run", "IndeCateR, REINFORCE and RLOO were not all run")
    products = {name: work(methods[name]).mean for name in names}
    why = listing({name: format_number(product, digits=3) for name, product in products.items()})
    return decided(min(products, key=lambda name: products[name]) == "IndeCateR", why)


def work(runs: Sequence[Run]) -> Stat:
    """Return relative variance times evaluations of f."""
    return statistic(run.last("relative_variance") * run.last("evaluations") for run in runs)


@claim("gradients-rloo")
def rloo_next(evidence: Evidence) -> Verdict:
    return at_every_size(evidence, "additive", _rloo_nearest)


def _rloo_nearest(methods: Methods) -> Verdict:
    if not methods.keys() >= set(RIVALS):
        return Verdict("not run", "REINFORCE, RLOO and GS were not all run")
    stats = {name: final(methods[name], "cosine_distance") for name in RIVALS}
    return decided(min(stats, key=lambda name: stats[name].mean) == "RLOO", listing(stats))


@claim("gradients-time")
def gradients_time(evidence: Evidence) -> Verdict:
    return at_every_size(evidence, "additive", _similar_time)


def _similar_time(methods: Methods) -> Verdict:
    stats = {
        name: estimate_time(methods[name]) for name in ("IndeCateR", *RIVALS) if name in methods
    }
    times = {name: stat.mean for name, stat in stats.items() if stat.seeds}
    return within_factor(times, 10, "ms per estimate")


def estimate_time(runs: Sequence[Run]) -> Stat:
    """Return the milliseconds of one estimate when ``together`` estimates are made at once.

    The clock does not count the first batch of them.
    """
    times = []
    for run in runs:
        timed = run.points[-1].get("estimates", 0) - setting(run.config, "together")
        times.append(1000 * run.points[-1]["seconds"] / timed if timed > 0 else math.nan)
    return statistic(times)
