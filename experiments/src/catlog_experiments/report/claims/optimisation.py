"""Claims about synthetic optimisation (Section 6.2)."""

import math
from collections.abc import Mapping

import numpy as np

from ..runs import Array, Evidence, Run
from ..statistics import Stat, milliseconds, statistic
from .verdicts import (
    Verdict,
    claim,
    clearly_lower,
    decided,
    leads,
    listing,
    trivially,
    within_factor,
)

RIVALS = ("RLOO-F", "RLOO-S", "GS-F")
MAXIMUM = 0.501**2  # of the function


def optimisers(evidence: Evidence) -> dict[str, list[Run]]:
    """Return the runs at the paper's size, each variable moved by its gradient, by method."""
    return evidence.methods("optimisation", update="own", variables=200)


def covered(run: Run) -> Array:
    """Return the share of the distance from the start to the maximum, at each logged point."""
    value = run.column("value")
    return (value - value[0]) / (MAXIMUM - value[0])


@claim("optimisation-variance")
def lowest_variance(evidence: Evidence) -> Verdict:
    stats = {
        name: statistic(float(np.nanmean(run.column("gradient_variance"))) for run in runs)
        for name, runs in optimisers(evidence).items()
        if any(run.finite("gradient_variance").size for run in runs)
    }
    verdict = leads("IndeCateR", stats, RIVALS)
    return trivially(verdict, "f is additive, so IndeCateR's gradient is exact.")


@claim("optimisation-speed")
def fewest_iterations(evidence: Evidence) -> Verdict:
    methods = optimisers(evidence)
    stats = {name: statistic(map(iterations_to, runs)) for name, runs in methods.items()}
    if stats.get("IndeCateR", Stat()).mean == math.inf:
        return Verdict("not testable", "IndeCateR did not cover 90 %: too few iterations")
    return leads("IndeCateR", stats, RIVALS)


def iterations_to(run: Run, share: float = 0.9) -> float:
    """Return the first logged iteration at which that share of the distance is covered."""
    reached = np.flatnonzero(covered(run) >= share)
    return float(run.column("iteration")[reached[0]]) if reached.size else math.inf


@claim("optimisation-relaxation")
def relaxation_struggles(evidence: Evidence) -> Verdict:
    methods = optimisers(evidence)
    if not methods.keys() >= {"GS-F", "IndeCateR"}:
        return Verdict("not run", "GS-F and IndeCateR were not both run")
    if (length := min(run.length for run in methods["GS-F"])) < 1000:
        return Verdict("not testable", f"GS-F ran for {length} iterations of 2000")
    shares = {
        name: statistic(float(covered(run)[-1]) for run in runs)
        for name, runs in _of_the_paper(methods).items()
    }
    numbers = listing({name: f"{100 * share.mean:.0f} %" for name, share in shares.items()})
    relaxation = shares.pop("GS-F")
    is_last = all(clearly_lower(relaxation, share) for share in shares.values())
    return decided(is_last and relaxation.mean < 0.5, f"{numbers} of the distance")


@claim("optimisation-time")
def optimisation_time(evidence: Evidence) -> Verdict:
    stats = {name: milliseconds(runs) for name, runs in _of_the_paper(optimisers(evidence)).items()}
    times = {name: stat.mean for name, stat in stats.items() if stat.seeds}
    return within_factor(times, 2, "ms per step")


def _of_the_paper(methods: Mapping[str, list[Run]]) -> dict[str, list[Run]]:
    return {name: runs for name, runs in methods.items() if name in ("IndeCateR", *RIVALS)}
