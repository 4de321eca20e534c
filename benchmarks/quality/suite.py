"""Every estimator on every problem at equal evaluations: bias, variance, time and variance x time.

`catlog.compare` measures, and describes the columns. Every estimator may spend as many evaluations
of f as IndeCateR needs for two draws. f is a black box, except for IndeCateR-Table, which uses the
table of a function that has one. `norm` is that of the reference gradient, `reference` its origin.
Slow estimators get fewer repeats and training steps (columns `repeats` and `trained`), see
--seconds.
"""

import argparse
import sys
from copy import deepcopy
from dataclasses import fields
from math import isnan
from typing import Any

import torch
from catlog.distributions.conditionals import view
from rich.progress import track

import catlog
from catlog import problems
from catlog.core.estimator import Estimator
from catlog.core.evaluator import Function
from catlog.diagnostics import Row, compare
from catlog.diagnostics.arms import Arm, within_budget
from catlog.diagnostics.task import Task
from catlog.estimators import ESTIMATORS

from ..command_line import add_options
from ..tables import RESULTS, Table

MEASURED = [column.name for column in fields(Row) if column.repr and column.name != "name"]
EXCLUDED = ("Exact", "VIMCO")  # the first is the reference, the second has another target


Entry = tuple[Estimator, Function]  # and the function that it is given


def entries(problem: problems.Problem) -> dict[str, Entry]:
    """Return the registry and settings that differ much from the defaults, by the name of a row."""
    d = view(problem.q(), validate=False).d
    options: dict[str, dict[str, Any]] = {
        "MAPO": {"max_variables": max(64, d)},
        "MemoryCateR": {"max_variables": max(64, d)},
        "GumbelSoftmax": {"temperature": 0.5},
        "GumbelRao": {"temperature": 0.5},
    }
    variants: dict[str, Estimator] = {
        name: cls(**options.get(name, {}))
        for name, cls in ESTIMATORS.items()
        if name not in EXCLUDED
    }
    variants["GumbelSoftmax-Hard"] = catlog.GumbelSoftmax(temperature=0.5, hard=True)
    variants["IndeCateR-Latin"] = catlog.IndeCateR(sampling="latin")
    variants["IndeCateR-Taylor"] = catlog.IndeCateR(sampling="latin", variables=max(1, d // 10))
    listed: dict[str, Entry] = {name: (E, problem.f) for name, E in variants.items()}
    if problem.structured is not None:
        listed["IndeCateR-Table"] = catlog.IndeCateR(sampling="latin"), problem.structured
    return listed


def budget(problem: problems.Problem) -> int:
    """Return the evaluations of f for two draws of IndeCateR."""
    cardinalities = view(problem.q(), validate=False).cardinalities
    return 2 * (1 + sum(cardinalities) - len(cardinalities))


def affordable(problem: problems.Problem, entry: Entry, seconds: float) -> int:
    """Return the number of steps that fit into ``seconds``, judged by the first step."""
    E, f = entry
    task = Task(f, problem.distribution, problem.parameters)
    try:
        E = within_budget(deepcopy(E), budget(problem), task.evaluations)
        return int(seconds / Arm(E, 0, task.generator(0)).observe(task))
    except (ValueError, TypeError, RuntimeError, NotImplementedError):
        return sys.maxsize  # measure_pair reports the reason


def measure_pair(
    problem: problems.Problem, name: str, entry: Entry, repeats: int, rounds: int, training: int
) -> dict[str, Any]:
    """Return the row of an estimator on a problem, with the reason where it cannot be used."""
    (E, f), reference = entry, problem.reference()
    row: dict[str, Any] = {
        "problem": problem.name,
        "size": problem.size,
        "seed": problem.seed,
        "estimator": name,
        "settings": None,
        "budget": budget(problem),
        "norm": torch.cat([tensor.flatten() for tensor in reference.gradient]).norm().item(),
        "reference": reference.how,
        **dict.fromkeys(MEASURED),
        "unbiased": E.unbiased,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    if E.differentiates_f and not problem.relaxable:
        return row | {"skipped": "f has no derivative in x"}
    try:
        (measured,) = compare(
            f,
            problem.distribution,
            {name: E},
            problem.parameters,
            budget=budget(problem),
            repeats=repeats,
            rounds=rounds,
            training=training,
            reference=reference,
            seed=1000,
            progress=False,
        ).rows
    except ValueError as error:
        return row | {"skipped": str(error).split(f"{name}: ")[-1]}
    if not isinstance(measured.estimator, torch.nn.Module):
        row["settings"] = str(measured.estimator)
    cells = {column: getattr(measured, column) for column in MEASURED}
    unknown = {column for column, cell in cells.items() if isinstance(cell, float) and isnan(cell)}
    return row | {column: cell for column, cell in cells.items() if column not in unknown}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, problems=list(problems.PROBLEMS), repeats=200, rounds=15)
    parser.add_argument("--size", choices=("small", "large"), default="large")
    parser.add_argument("--seed", type=int, default=0, help="of the problems")
    parser.add_argument("--estimators", nargs="+", default=[], help="default: all")
    parser.add_argument("--training", type=int, default=100, help="steps for estimators that learn")
    parser.add_argument(
        "--seconds",
        type=float,
        default=30.0,
        help="per estimator and problem; slow estimators get fewer repeats, at least 20",
    )


def main(args: argparse.Namespace) -> None:
    key = ("problem", "size", "seed", "estimator")
    table = Table(args.output or RESULTS / "quality" / "suite.csv", key, digits=6)
    for name in args.problems:
        problem = problems.make(name, args.size, args.seed)
        wanted = {
            label: entry
            for label, entry in entries(problem).items()
            if (not args.estimators or label in args.estimators)
            and (name, args.size, args.seed, label) not in table
        }
        for label, entry in track(wanted.items(), name, len(wanted)):
            steps = affordable(problem, entry, args.seconds)
            repeats = min(args.repeats, max(20, steps))
            training = min(args.training, max(5, steps // 3))
            table.add([measure_pair(problem, label, entry, repeats, args.rounds, training)])
    print(table.path)
