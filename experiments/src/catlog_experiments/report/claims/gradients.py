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


@claim(
    key="gradients",
    where="Section 6.1 and its figure",
    says="One draw gives IndeCateR gradients close to the exact ones, with a variance orders of "
    "magnitude below that of REINFORCE, RLOO and Gumbel-Softmax with 1000 draws, at all three "
    "sizes.",
    rule="The paper's metrics and its additive f: at every size the lowest mean cosine distance, "
    "and at most a tenth of the variance of the cosine of every other estimator, from at least 100 "
    "estimates.",
)
def additive_gradients(evidence: Evidence) -> Verdict:
    verdict = at_every_size(
        evidence, "additive", lambda methods: _much_lower(methods, "cosine_variance")
    )
    return trivially(verdict, "f is additive, so one draw gives IndeCateR the exact gradient.")


@claim(
    key="gradients-pairwise",
    where="not in the paper: the same with a coupling between every two variables",
    says="The same, one draw against 1000, where it is not trivial: f has interactions, and "
    "IndeCateR is no longer exact.",
    rule="At every size the lowest mean cosine distance, and at most a tenth of the true variance "
    "of every other estimator.",
)
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


@claim(
    key="gradients-work",
    where="not in the paper: with interactions, for equal work",
    says="For an equal number of evaluations of f, IndeCateR has a lower variance than REINFORCE "
    "and RLOO.",
    rule="With the pairwise f at every size: the lowest true variance times evaluations. (More "
    "draws do not change this product.)",
)
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


@claim(
    key="gradients-rloo",
    where="Section 6.1",
    says="Of the other estimators, RLOO is nearest to the exact gradient.",
    rule="At every size the lowest mean cosine distance of REINFORCE, RLOO and GS. (The distance "
    "is that of single estimates, so noise counts.)",
)
def rloo_next(evidence: Evidence) -> Verdict:
    return at_every_size(evidence, "additive", _rloo_nearest)


def _rloo_nearest(methods: Methods) -> Verdict:
    if not methods.keys() >= set(RIVALS):
        return Verdict("not run", "REINFORCE, RLOO and GS were not all run")
    stats = {name: final(methods[name], "cosine_distance") for name in RIVALS}
    return decided(min(stats, key=lambda name: stats[name].mean) == "RLOO", listing(stats))


@claim(
    key="gradients-time",
    where="Section 6.1",
    says="All estimators take times of the same order of magnitude.",
    rule="At every size the slowest takes less than ten times as long as the fastest, per "
    "estimate, with many estimates made together.",
)
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
