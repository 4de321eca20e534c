"""Claims about the discrete autoencoder (Section 6.3), with bits and with ten categories."""

from collections.abc import Mapping, Sequence

import numpy as np

from ..formatting import format_number
from ..runs import Evidence, Run
from ..statistics import (
    Stat,
    at,
    at_common_end,
    common_end,
    end,
    late,
    milliseconds,
    series,
    statistic,
)
from ..step_times import StepTimes
from .verdicts import Verdict, all_of, claim, clearly_lower, decided, leads, listing

DATA = ("mnist", "fashion-mnist", "omniglot")
RIVALS = ("RLOO-F", "RLOO-S", "GS-F", "GS-S")
FEW_EPOCHS = 20  # the curves are in their first descent up to here

Methods = Mapping[str, list[Run]]


def autoencoders(evidence: Evidence, data: str) -> dict[str, list[Run]]:
    """Return the runs of the paper's methods with its 200 bits, by method."""
    methods = evidence.methods("dvae", data=data, variables=200, categories=2)
    return {name: runs for name, runs in methods.items() if name in ("IndeCateR", *RIVALS)}


def most_epochs(methods: Methods, position: float, x: str) -> float:
    """Return how many epochs the fastest method has done at a position of x."""
    stats = [at(runs, "epoch", position, x) for runs in methods.values()]
    return max((stat.mean for stat in stats if stat.seeds), default=0.0)


def _clock(times: StepTimes, method: str) -> str:
    is_measured = times.get("dvae", method) is not None
    return "measured separately" if is_measured else "by the clocks of the runs"


@claim("dvae-time")
def train_at_equal_time(evidence: Evidence) -> Verdict:
    times = evidence.step_times
    return all_of({data: _lowest_train(autoencoders(evidence, data), times) for data in DATA})


def _lowest_train(methods: Methods, times: StepTimes) -> Verdict:
    if "IndeCateR" not in methods:
        return Verdict("not run", "IndeCateR was not run with 200 bits")
    seconds, stats = at_common_end(methods, "train", "seconds")
    if too_short := _too_short(methods, seconds):
        return too_short
    verdict = leads("IndeCateR", stats, RIVALS)
    moment = f"after {format_number(seconds, digits=3)} s ({_clock(times, 'IndeCateR')})"
    return Verdict(verdict.outcome, f"{moment}: {verdict.why}")


def _too_short(methods: Methods, seconds: float) -> Verdict | None:
    epochs = most_epochs(methods, seconds, "seconds")
    if epochs >= FEW_EPOCHS:
        return None
    most = f"none did more than {format_number(epochs, digits=2)} epochs"
    return Verdict("not testable", f"in the time that all methods share, {most}")


@claim("dvae-iterations")
def near_rloo(evidence: Evidence) -> Verdict:
    return all_of({data: _near(autoencoders(evidence, data)) for data in DATA})


def _near(methods: Methods) -> Verdict:
    pair = {name: methods[name] for name in ("IndeCateR", "RLOO-F") if name in methods}
    if len(pair) < 2:
        return Verdict("not run", "IndeCateR and RLOO-F were not both run with 200 bits")
    iteration, stats = at_common_end(pair, "train", "iteration")
    if (epochs := most_epochs(pair, iteration, "iteration")) < FEW_EPOCHS:
        return Verdict("not testable", f"only {format_number(epochs, digits=2)} epochs in common")
    gap = stats["IndeCateR"].mean / stats["RLOO-F"].mean - 1
    why = f"after {iteration:.0f} iterations {listing(stats)} ({100 * gap:+.1f} %)"
    return decided(abs(gap) < 0.03, why)


@claim("dvae-overfitting")
def overfitting(evidence: Evidence) -> Verdict:
    verdicts = {}
    for data in ("mnist", "fashion-mnist"):
        methods = autoencoders(evidence, data)
        for name in ("IndeCateR", "RLOO-F"):
            verdicts[f"{data}, {name}"] = _overfits(methods.get(name, []))
    return all_of(verdicts)


def _overfits(runs: Sequence[Run]) -> Verdict:
    curve = series(runs, "test")
    if curve is None or curve.x.size < 3:
        return Verdict("not run", "not run with 200 bits")
    best = int(curve.mean.argmin())
    lowest = Stat(float(curve.mean[best]), float(curve.error[best]), curve.seeds)
    last = Stat(float(curve.mean[-1]), float(curve.error[-1]), curve.seeds)
    why = (
        f"best {format_number(lowest.mean)} at iteration {curve.x[best]:.0f}, "
        f"{format_number(last.mean)} at the end"
    )
    if last.mean - lowest.mean > 0.5 and clearly_lower(lowest, last):
        return Verdict("holds", why)
    if (epochs := end(runs, "epoch")) < 500:
        short = f"no rise in {format_number(epochs)} epochs (the paper: 1000)"
        return Verdict("not testable", f"{why}: {short}")
    return Verdict("does not hold", why)


@claim("dvae-omniglot")
def best_test_omniglot(evidence: Evidence) -> Verdict:
    methods = autoencoders(evidence, "omniglot")
    pair = {"IndeCateR", "RLOO-F"}
    if not methods.keys() > pair:
        return Verdict("not run", "IndeCateR, RLOO-F and a competitor were not all run on Omniglot")
    stats = {
        name: statistic(float(np.nanmin(run.column("test"))) for run in runs)
        for name, runs in methods.items()
    }
    if (epochs := common_end(methods, "epoch")) < 500:
        return Verdict(
            "not testable",
            f"the shortest run has {format_number(epochs)} epochs of 1000, so these are not the "
            f"lowest yet: {listing(stats)}",
        )
    competitors = methods.keys() - pair
    is_lower = all(clearly_lower(stats[a], stats[b]) for a in pair for b in competitors)
    return decided(is_lower, listing(stats))


@claim("dvae-spread")
def comparable_spread(evidence: Evidence) -> Verdict:
    return _comparable(evidence, "gradient_spread")


@claim("dvae-variance")
def comparable_variance(evidence: Evidence) -> Verdict:
    return _comparable(evidence, "gradient_variance")


def _comparable(evidence: Evidence, metric: str) -> Verdict:
    return all_of({data: _comparable_on(autoencoders(evidence, data), metric) for data in DATA})


def _comparable_on(methods: Methods, metric: str) -> Verdict:
    last = common_end(methods, "iteration")
    stats = {
        name: stat for name, runs in methods.items() if (stat := late(runs, metric, last)).seeds
    }
    if not stats.keys() >= {"IndeCateR", "RLOO-F"}:
        return Verdict("not run", "IndeCateR and RLOO-F were not both measured with 200 bits")
    if (epochs := end(methods["IndeCateR"], "epoch")) < FEW_EPOCHS:
        return Verdict("not testable", f"only {format_number(epochs, digits=2)} epochs")
    variance = stats.pop("IndeCateR").mean
    ratios = {name: stat.mean / variance for name, stat in stats.items()}
    numbers = listing({name: format_number(ratio, digits=2) for name, ratio in ratios.items()})
    why = f"{numbers} times that of IndeCateR"
    is_lowest = all(ratios[name] >= 1 for name in ("RLOO-S", "GS-S") if name in ratios)
    if not 0.5 <= ratios["RLOO-F"] <= 2 or not is_lowest or ratios.get("GS-F", 0.0) >= 1:
        return Verdict("does not hold", why)
    if "GS-F" not in ratios:
        return Verdict("not testable", f"GS-F not run; {why}")
    return Verdict("holds", why)


@claim("dvae-relaxation-time")
def relaxation_slower(evidence: Evidence) -> Verdict:
    methods = evidence.methods("dvae", variables=200, categories=2)
    times = {}
    for name in ("IndeCateR", "GS-F"):
        step_ms = evidence.step_times.get("dvae", name)
        if step_ms is None and name in methods and (stat := milliseconds(methods[name])).seeds:
            step_ms = stat.mean
        if step_ms is None:
            return Verdict("not run", "GS-F and IndeCateR were not both timed with 200 bits")
        times[name] = step_ms
    ratio = times["GS-F"] / times["IndeCateR"]
    slow, fast = (format_number(times[name], digits=3) for name in ("GS-F", "IndeCateR"))
    clock = _clock(evidence.step_times, "GS-F")
    return decided(ratio >= 1.6, f"{slow} against {fast} ms, a ratio of {ratio:.2f}, {clock}")


@claim("categorical")
def categorical(evidence: Evidence) -> Verdict:
    verdicts = {}
    for data in ("fashion-mnist", "mnist", "omniglot"):
        methods = evidence.methods("dvae", data=data, variables=200, categories=10)
        names = ("IndeCateR", "IndeCateR-D", "RLOO-F", "GS-F")
        methods = {name: runs for name, runs in methods.items() if name in names}
        if methods:
            verdicts[data] = _categorical_order(methods)
    if not verdicts:
        return Verdict("not run", "no run with 200 variables of 10 categories")
    return all_of(verdicts)


def _categorical_order(methods: Methods) -> Verdict:
    if not methods.keys() >= {"IndeCateR", "IndeCateR-D", "RLOO-F"}:
        return Verdict("not run", "IndeCateR, IndeCateR-D and RLOO-F were not all run")
    seconds, stats = at_common_end(methods, "test", "seconds")
    if untimed := [name for name in methods if name not in stats]:
        return Verdict("not testable", f"step times not measured: {', '.join(untimed)}")
    if too_short := _too_short(methods, seconds):
        return too_short
    why = f"after {format_number(seconds, digits=3)} s: {listing(stats)}"
    if any(stat.seeds < 2 for stat in stats.values()):
        return Verdict("not testable", f"one seed is no evidence ({why})")
    order = sorted(stats, key=lambda name: stats[name].mean)
    return decided(order[:2] == ["IndeCateR-D", "IndeCateR"], why)
