"""Variance, bias and time of every estimator on two random networks, at about 40 evaluations.

f is a random network with one hidden layer. q has random logits: of 20 bits, and of 8 one-hot
variables of 5 categories. `variance` is summed over logits, relative to the squared norm of the
exact gradient (by enumeration of all 2^20 or 5^8 points). `bias` is the distance of the mean
estimate from the exact gradient, corrected for its noise, relative to the gradient's norm;
`bias_noise` is that noise. `ms` is the time per estimate in calls with a batch of 200
distributions, the median over rounds in which all estimators take turns. `merit` is variance x
evaluations. Estimators with parameters or a memory had `trained` calls, of the same batch, to learn
before. VIMCO estimates a bound, so it has no bias here, and its variance is relative to its own
mean.
"""

import argparse
import statistics
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import catlog
from catlog.diagnostics.arms import Arm
from catlog.diagnostics.moments import Moments
from catlog.diagnostics.task import Task
from catlog.estimators import ESTIMATORS
from catlog.problems.problem import Problem, bits, one_hot
from catlog.testing.settings import supports

from ..command_line import output_of
from ..settings import (
    MOVING_AVERAGE,
    NETWORK,
    Options,
    make_estimator,
    near_budget,
    options_text,
)
from ..tables import Row, Table
from ..turns import seconds_in_turns
from .measuring import train

BUDGET = 40
SEED = 20240601
HIDDEN = 32
SHAPES = {"20 bits": (20,), "8 one-hot variables of 5": (8, 5)}
QUICK_SHAPES = {"4 bits": (4,), "2 one-hot variables of 3": (2, 3)}
# Settings that are measured in place of the defaults; `samples` follows from the budget.
SETTINGS: dict[str, list[Options]] = {
    "Reinforce": [{}, {"baseline": MOVING_AVERAGE}],
    "RELAX": [{"network": NETWORK}],
    "IndeCateR": [
        {},
        {"sampling": "latin"},
        {"variables": 1},
        {"variables": 4, "sampling": "latin"},
    ],
    "SumAndSample": [{"top": BUDGET // 2}],
    "MAPO": [{"size": BUDGET // 2}],
    "GumbelSoftmax": [{"temperature": 0.5}, {"temperature": 0.5, "hard": True}],
    "GumbelRao": [{"temperature": 0.5}],
    "DARN": [{"order": 1}, {"order": 2}],
}


def network_problem(name: str, shape: tuple[int, ...]) -> tuple[Problem, Tensor]:
    """Return a random network of variables with logits of this shape, and the exact gradient."""
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(2)
    first = torch.randn(logits.numel(), HIDDEN, generator=generator) * 2 / shape[0] ** 0.5
    bias, last = torch.randn(2, HIDDEN, generator=generator)
    last = last / HIDDEN**0.5

    def network(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
        w, b, v = first.to(dtype), bias.to(dtype), last.to(dtype)
        return lambda x: (x.flatten(-len(shape)) @ w + b).tanh() @ v + 1

    law = bits if len(shape) == 1 else one_hot
    wide = logits.double().requires_grad_()
    catlog.Exact(chunk_size=2**15)(network(torch.float64), law(wide)).backward()
    assert wide.grad is not None
    problem = Problem(network(torch.float32), (logits.requires_grad_(),), law, name=name)
    return problem, wide.grad.flatten()


def entrants(task: Task, names: list[str]) -> dict[tuple[str, str], catlog.Estimator]:
    """Return the estimators that fit a problem, near the budget, by name and settings."""
    listed = {}
    for name in names:
        for options in SETTINGS.get(name, [{}]):
            sized = near_budget(name, options, task.q, BUDGET)
            if sized is None or options.get("variables", 0) > task.factors.d:
                continue
            if sized.get("samples") == 1 and "draws" in sized:
                continue  # a single draw is the same in every way of drawing
            E = make_estimator(name, sized, task.q)
            if supports(E, task.factors.kind):
                listed[name, options_text(sized)] = E
    return listed


def quality(E: catlog.Estimator, moments: Moments, exact: Tensor) -> Row:
    """Return variance and bias, relative to the exact gradient."""
    if E.target != "expectation":
        return {"variance": moments.variance / moments.norm2}
    square, gap = float(exact.square().sum()), (moments.mean - exact).abs()
    beyond_rounding = (gap - 1e-6 * exact.norm()).clamp(min=0)
    standard_error = (moments.variances / moments.count).sqrt().clamp(min=1e-300)
    return {
        "variance": moments.variance / square,
        "bias": (moments.shifted_norm2(-exact) / square) ** 0.5,
        "bias_noise": (moments.variance / moments.count / square) ** 0.5,
        "z": (beyond_rounding / standard_error).max().item() if hasattr(E, "samples") else None,
    }


def measure(
    problem: Problem, exact: Tensor, names: list[str], rounds: int, batch: int, training: int
) -> list[Row]:
    task = Task(problem.f, problem.distribution, problem.parameters)
    listed = entrants(task, names)
    counts = {key: batch if hasattr(E, "samples") else 1 for key, E in listed.items()}
    generators = {key: torch.Generator().manual_seed(SEED) for key in listed}
    trained = {key: train(E, task, training, generators[key]) for key, E in listed.items()}
    arms = {key: Arm(E, 0, generators[key]) for key, E in listed.items()}
    moments = {key: arm.in_parameters for key, arm in arms.items()}

    def estimate(key: tuple[str, str]) -> None:
        for _ in range(counts[key]):
            arms[key].observe(task)

    times: dict[tuple[str, str], list[float]] = {}
    for is_noisy, turns in ((False, 1), (True, rounds)):
        keys = [key for key, E in listed.items() if hasattr(E, "samples") == is_noisy]
        times |= seconds_in_turns({key: partial(estimate, key) for key in keys}, turns)
    rows = []
    for key, E in listed.items():
        measured, evaluations = quality(E, moments[key], exact), E.evaluations(task.q)
        row: Row = {"estimator": key[0], "settings": key[1], "problem": problem.name}
        row |= {"evaluations": evaluations, **measured}
        row |= {"ms": 1000 * statistics.median(times[key]) / counts[key]}
        row |= {"merit": measured["variance"] * evaluations, "trained": trained[key]}
        rows.append(row | {"repeats": moments[key].count})
    return rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--names", nargs="+", choices=list(ESTIMATORS), default=list(ESTIMATORS))
    parser.add_argument("--rounds", type=int, default=50, help="of 200 estimates each")


def main(args: argparse.Namespace) -> None:
    sizes = (2, 20, 3) if args.quick else (args.rounds, 200, 200)
    table = Table(output_of(args, "quality/estimators.csv"), ("estimator", "problem"))
    for name, shape in (QUICK_SHAPES if args.quick else SHAPES).items():
        problem, exact = network_problem(name, shape)
        rows = measure(problem, exact, args.names, *sizes)
        table.add(rows, f"{name}, |gradient| {exact.norm().item():.3g}")
