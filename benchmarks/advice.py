"""How good is the advice of `catlog.advise`, compared with everything it could have chosen?

    python -m benchmarks.advice     # hours of one quiet core; writes results/quality/advise.csv
    python -m benchmarks.advice --sizes small --repeats 50 --rounds 5 --output advise.csv  # minutes

On every problem, three pilots with seeds 500, 501 and 502 choose an estimator. Then
`catlog.compare` measures, with another seed, every candidate of the pilots and, unless
--candidates-only is given, every unbiased estimator of the registry except MemoryCateR: with 2, 4
and 16 draws and with as many as the budget allows. `ratio` is the score of the choice relative to
the lowest (`best`), with a 95 % interval from that of variance x time. The score is that of
`catlog.advise`, the expected time to train: (10 |g|^2 + noise of the minibatch + variance) x
seconds; all estimators are unbiased. `variance_ratio` is the variance x time of the choice
relative to the lowest, which an exact estimator always wins, however slow it is. Small problems
have a budget of 64 evaluations, large ones the default. An f that also exists as a function with a
table is a separate problem ("with table"). `measured` counts the estimators.

`pilot_steps` is the pilot's time in steps with the chosen estimator (the gradient without an
optimiser). Problems that the file has are not repeated.
"""

import argparse
import time
from collections.abc import Sequence
from itertools import product
from math import exp, hypot, inf, log
from statistics import median_low

import torch

import catlog
from catlog.estimators import ESTIMATORS
from catlog import problems
from catlog.diagnostics import CANDIDATES, Row
from catlog.diagnostics.gradient_samples import GradientSampler
from catlog.diagnostics.pilot_settings import MOMENTUM_STEPS
from catlog.diagnostics.sizing import why_over_budget, why_unsuitable, with_samples, within_budget
from catlog.diagnostics.structure import Structure, probe
from catlog.diagnostics.trials import shortlist
from catlog.core.settings import label
from catlog.problems.problem import Size

from . import tables
from .command_line import table_parser

# MemoryCateR assumes that f never changes, and may know f completely where there are few points.
EXCLUDED = (catlog.estimators.MemoryCateR,)
DRAWS = (2, 4, 16)
MEASURING_SEED = 20_000
PILOT_SEEDS = (500, 501, 502)  # seeds up to 416 were used in the development of the pilot


def rivals(
    task: GradientSampler, structure: Structure, candidates_only: bool
) -> dict[str, catlog.Estimator]:
    """Return what could have been chosen, with several numbers of draws within the budget."""
    trials = shortlist(task, structure, CANDIDATES, biased=False)[0]
    prototypes = [trial.estimator for trial in trials]
    for cls in () if candidates_only else ESTIMATORS.values():
        E = cls()
        if (
            E.unbiased
            and cls not in EXCLUDED
            and (structure.has_slope or not E.differentiates_f)
            and why_unsuitable(E, task.kind) is None
            and why_over_budget(E, structure.budget, task.evaluations) is None
        ):
            prototypes.append(E)
    listed: dict[str, catlog.Estimator] = {}
    for E in prototypes:
        for sized in sizes(E, task, structure.budget):
            listed.setdefault(label(sized), sized)
    return listed


def sizes(E: catlog.Estimator, task: GradientSampler, budget: int) -> list[catlog.Estimator]:
    """Return E with a few draws and with as many as the budget allows."""
    if not hasattr(E, "samples"):
        return [E]
    options = [E]
    if why_over_budget(E, budget, task.evaluations) is None:
        options.append(within_budget(E, budget, task.evaluations))
    for samples in DRAWS:
        try:
            sized = with_samples(E, samples)
        except ValueError:  # E does not accept this number of draws
            continue
        if sized.evaluations(task.q) <= budget:
            options.append(sized)
    return options


def scores(comparison: catlog.Comparison, minibatch: float) -> dict[str, float]:
    """Return the expected time to train with every estimator, up to a factor."""
    noisy = [row for row in comparison.rows if 0 < row.variance < inf]
    precise = min(noisy, key=lambda row: row.variance, default=None)
    if precise is None:
        return {row.name: row.seconds for row in comparison.rows}
    floor = MOMENTUM_STEPS * precise.snr**2 * precise.variance + minibatch
    return {row.name: (floor + row.variance) * row.seconds for row in comparison.rows}


def score_ratio(chosen: Row, best: Row, scores: dict[str, float]) -> tuple[float, float, float]:
    """Return how many times worse the choice is, with a 95 % interval."""
    ratio = scores[chosen.name] / scores[best.name]
    if chosen is best:
        return 1.0, 1.0, 1.0
    noisy = [row for row in (chosen, best) if row.merit > 0]
    spread = exp(hypot(*(log(row.merit_high / row.merit) for row in noisy)))
    return ratio, ratio / spread, ratio * spread


def variance_ratio(chosen: Row, rows: Sequence[Row]) -> float:
    """Return the variance x time of the choice, relative to the lowest."""
    best = min(rows, key=lambda row: (row.merit, row.seconds))
    if best.variance == 0:
        return chosen.seconds / best.seconds if chosen.variance == 0 else inf
    return chosen.merit / best.merit


def measure(name: str, size: Size, with_table: bool, args: argparse.Namespace) -> list[tables.Row]:
    """Return a row for every pilot on one problem."""
    problem = problems.make(name, size)
    f = problem.structured if with_table else problem.f
    assert f is not None
    budget = 64 if size == "small" else None
    clock = time.process_time if args.cpu_time else time.perf_counter

    def advise(seed: int) -> catlog.Advice:
        options = {"budget": budget, "seed": seed, "clock": clock}
        return catlog.advise(f, problem.distribution, problem.parameters, **options)

    advise(99)  # to warm up: the first calls in a process are slow
    pilots = [advise(seed) for seed in PILOT_SEEDS]
    task = GradientSampler(f, problem.distribution, problem.parameters, clock=clock)
    structure = probe(task, budget)
    choices = {advice.trials[0].name: advice.estimator for advice in pilots}
    comparison = catlog.compare(
        f,
        problem.distribution,
        rivals(task, structure, args.candidates_only) | choices,
        problem.parameters,
        repeats=args.repeats,
        rounds=args.rounds,
        limit=1,
        seed=MEASURING_SEED,
        clock=clock,
    )
    by_name = scores(comparison, median_low(advice.minibatch_variance for advice in pilots))
    place = {"problem": name, "size": size, "table": "with table" if with_table else None}
    place["budget"] = structure.budget
    return [
        {**place, "pilot": pilot, **judged(advice, comparison, by_name)}
        for pilot, advice in enumerate(pilots)
    ]


def judged(
    advice: catlog.Advice, comparison: catlog.Comparison, scores: dict[str, float]
) -> tables.Row:
    """Return how good one advice is beside the best of the comparison."""
    best = min(comparison.rows, key=lambda row: scores[row.name])
    chosen = comparison[advice.trials[0].name]
    ratio, low, high = score_ratio(chosen, best, scores)
    return {
        "chosen": chosen.name,
        "best": best.name,
        "ratio": ratio,
        "ratio_low": low,
        "ratio_high": high,
        "variance_ratio": variance_ratio(chosen, comparison.rows),
        "variance": chosen.variance,
        "seconds": chosen.seconds,
        "best_variance": best.variance,
        "best_seconds": best.seconds,
        "pilot_seconds": advice.seconds,
        "step_seconds": advice.step_seconds,
        "pilot_steps": advice.seconds / advice.step_seconds,
        "measured": len(comparison.rows),
    }


def median_ratios(rows: list[tables.Row]) -> list[float]:
    """Return, per problem, the ratio of the median pilot."""
    problems = tables.grouped(rows, "problem", "size", "table").values()
    return [median_low(row["ratio"] for row in pilots) for pilots in problems]


def main() -> None:
    scope = {"problems": list(problems.PROBLEMS), "sizes": ["small", "large"]}
    parser = table_parser(__doc__, quick=False, **scope, repeats=200, rounds=15)
    parser.add_argument(
        "--candidates-only", action="store_true", help="compare with the pilot's candidates only"
    )
    parser.add_argument(
        "--cpu-time", action="store_true", help="CPU seconds, for a machine that is not quiet"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    path = args.output or tables.RESULTS / "quality" / "advise.csv"
    table = tables.Table(path, ("problem", "size", "table"), digits=5)
    for size, name in product(args.sizes, args.problems):
        has_table = problems.make(name, size).structured is not None
        for with_table in (False, True) if has_table else (False,):
            if (name, size, "with table" if with_table else "") not in table:
                rows = measure(name, size, with_table, args)
                table.add(rows)
                shown = ("problem", "size", "table", "chosen", "best", "ratio", "pilot_steps")
                tables.show(name, [{key: row[key] for key in shown} for row in rows])


if __name__ == "__main__":
    main()
