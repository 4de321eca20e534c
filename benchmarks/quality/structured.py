"""Variance with dependent variables, at the evaluations of SCateR with one and with four samples.

The gradient in the distribution's parameters is estimated many times by every method. `variance` is
summed over the parameters, `relative_to_rloo` is its ratio to RLOO's, with a 95 % interval.
`largest_z` is the largest difference from RLOO's mean over parameters, in standard errors, beside
the limit that the largest of the whole table exceeds with probability 5 % (Bonferroni over
parameters, methods and budgets). `conditional_rows` counts, for one estimate, the conditionals
q(x_i | x_<i) that the distribution computes, once per point. `main_effects` is the share of f's
variance that the best sum of functions of single variables explains, on draws that it was not
fitted to.

--settings measures CritiCateR's settings instead, on the same draws for all of them (the intervals
ignore this, so they are too wide).
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from math import exp, log
from statistics import NormalDist, fmean

import torch
from catlog.sampling.draw import draw
from torch import Tensor
from torch.nn.functional import one_hot

import catlog
from catlog.diagnostics.moments import Moments
from catlog.diagnostics.task import Task
from catlog.distributions import Ordered
from catlog.problems import Problem

from ..command_line import output_of
from ..tables import Row, Table, selected
from .measuring import observe, variance_ratio
from .structured_problems import PROBLEMS

FOLDS, RIDGES = (4, 8, 16), (0.3, 1.0, 3.0, 10.0)


def methods(evaluations: int, samples: int) -> dict[str, catlog.Estimator]:
    """Return every method at the evaluations of SCateR(samples)."""
    return {
        "Reinforce": catlog.Reinforce(evaluations),
        "RLOO": catlog.RLOO(evaluations),
        "LEG": catlog.estimators.LEG(samples),
        "RAM": catlog.estimators.RAM(samples),
        "SCateR": catlog.SCateR(samples),
        "SCateR, common": catlog.SCateR(samples, suffix="common"),
        "CritiCateR": catlog.CritiCateR(evaluations),
    }


def settings(evaluations: int) -> dict[tuple[int, float], catlog.Estimator]:
    """Return CritiCateR in all settings, by folds and ridge."""
    return {
        (folds, ridge): catlog.CritiCateR(evaluations, folds=folds, ridge=ridge)
        for folds, ridge in product(FOLDS, RIDGES)
    }


def conditional_rows(E: catlog.Estimator, q: Ordered, f: Callable[[Tensor], Tensor]) -> int:
    """Count the conditionals of single variables that one estimate computes, without validation."""
    counted = 0
    conditional, step, raw_logits = q.conditional, q.step, q.raw_logits

    def counted_conditional(x: Tensor, block: int) -> Tensor:
        nonlocal counted
        counted += len(x) * len(q.blocks[block])
        return conditional(x, block)

    def counted_step(state: object, block: int, previous: Tensor | None) -> tuple[Tensor, object]:
        nonlocal counted
        raw, state = step(state, block, previous)
        counted += len(raw)
        return raw, state

    def counted_raw_logits(x: Tensor) -> list[Tensor]:
        nonlocal counted
        counted += len(x) * len(q.cardinalities)
        return raw_logits(x)

    q.conditional, q.step = counted_conditional, counted_step  # type: ignore[method-assign]
    if hasattr(getattr(q, "network", None), "all_logits"):
        q.raw_logits = counted_raw_logits  # type: ignore[method-assign]
    replace(E, validate=False)(f, q)  # type: ignore[type-var]
    return counted


def main_effects(task: Task, draws: int, generator: torch.Generator) -> float:
    """Return the share of f's variance that a sum of functions of single variables explains."""
    with torch.no_grad():
        x = draw(task.factors, 2 * draws, generator=generator)
        fx = task.f(x).double()
    features = one_hot(x, max(task.factors.cardinalities)).flatten(1)
    points = torch.cat([features, torch.ones(2 * draws, 1)], 1).double()
    gram = points[:draws].mT @ points[:draws] + torch.eye(points.shape[1])
    predicted = points[draws:] @ torch.linalg.solve(gram, points[:draws].mT @ fx[:draws])
    return 1 - ((fx[draws:] - predicted).square().mean() / fx[draws:].var()).item()


def largest_z(ours: Moments, theirs: Moments, comparisons: int) -> tuple[float, float]:
    """Return the largest |z| between two means, over parameters that vary, and its limit."""
    error = (ours.variances / ours.count + theirs.variances / theirs.count).sqrt()
    varies = error > 1e-9 * error.max()
    z = (ours.mean - theirs.mean)[varies] / error[varies]
    return z.abs().max().item(), NormalDist().inv_cdf(1 - 0.05 / (2 * len(z) * comparisons))


def variances(problem: Problem, samples: int, repeats: int, comparisons: int) -> list[Row]:
    """Return the rows of one problem with the evaluations of SCateR(samples)."""
    task = Task(problem.f, problem.distribution, problem.parameters)
    generator = torch.Generator().manual_seed(0)
    share = main_effects(task, 20 * repeats, generator)
    evaluations = catlog.SCateR(samples).evaluations(task.q)
    moments, seconds = {}, {}
    for name, E in methods(evaluations, samples).items():
        assert E.evaluations(task.q) == evaluations
        start = time.perf_counter()
        moments[name] = observe(task, E, repeats, generator)
        seconds[name] = time.perf_counter() - start
    rows = []
    for name, E in methods(evaluations, samples).items():
        ratio, low, high = variance_ratio(moments[name], moments["RLOO"])
        z, limit = largest_z(moments[name], moments["RLOO"], comparisons * (len(moments) - 1))
        rows.append(
            {
                "problem": problem.name,
                "method": name,
                "budget": samples,
                "evaluations": evaluations,
                "conditional_rows": conditional_rows(E, problem.q(), problem.f),
                "variance": moments[name].variance,
                "relative_to_rloo": ratio,
                "low_95": low,
                "high_95": high,
                "largest_z": z,
                "z_limit": limit,
                "repeats": repeats,
                "variables": task.factors.d,
                "parameters": problem.parameters[0].numel(),
                "main_effects": share,
                "seconds": seconds[name],
            }
        )
    return rows


def settings_rows(problem: Problem, samples: int, repeats: int) -> list[Row]:
    """Return CritiCateR's variance relative to RLOO's in every setting, on the same draws."""
    task = Task(problem.f, problem.distribution, problem.parameters)
    evaluations = catlog.SCateR(samples).evaluations(task.q)

    def measured(E: catlog.Estimator) -> Moments:
        return observe(task, E, repeats, torch.Generator().manual_seed(1))

    rloo = measured(catlog.RLOO(evaluations))
    rows = []
    for (folds, ridge), E in settings(evaluations).items():
        ratio, low, high = variance_ratio(measured(E), rloo)
        row = {"problem": problem.name, "budget": samples, "evaluations": evaluations}
        row |= {"folds": folds, "ridge": ridge, "relative_to_rloo": ratio}
        rows.append({**row, "low_95": low, "high_95": high, "repeats": repeats})
    return rows


def print_best_settings(rows: list[Row]) -> None:
    """Print the settings with their mean variance (geometric), best first."""
    means = {}
    for folds, ridge in product(FOLDS, RIDGES):
        same = selected(rows, folds=folds, ridge=ridge)
        means[folds, ridge] = exp(fmean(log(row["relative_to_rloo"]) for row in same))
    default = catlog.CritiCateR()
    for (folds, ridge), mean in sorted(means.items(), key=lambda item: item[1]):
        note = " (default)" if (folds, ridge) == (default.folds, default.ridge) else ""
        print(f"folds={folds}, ridge={ridge}: {mean:.3f} times RLOO's variance{note}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, help="at most this many estimates per method")
    parser.add_argument("--settings", action="store_true", help="CritiCateR's settings instead")


def main(args: argparse.Namespace) -> None:
    folder = output_of(args, "quality")
    budgets = (1,) if args.quick else (1, 4)
    name = "criticater_settings" if args.settings else "structured_variance"
    key = ("problem", "budget", "method", "folds", "ridge")
    table = Table(folder and folder / f"{name}.csv", key)
    most = args.repeats or (200 if args.quick else 1000)
    most_unbatched = 40 if args.quick else 200
    for problem, samples in product(PROBLEMS, budgets):
        if args.settings:
            repeats = min(most, 100 // samples if problem.name == "transformer" else 400)
            rows = settings_rows(problem, samples, repeats)
        else:
            repeats = min(most, most_unbatched if problem.name == "transformer" else 1000)
            rows = variances(problem, samples, repeats, len(PROBLEMS) * len(budgets))
        table.add(rows, f"{problem.name}, {rows[0]['evaluations']} evaluations")
    if args.settings:
        print_best_settings(table.rows)
