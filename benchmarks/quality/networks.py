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
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

import catlog
from catlog import ESTIMATORS
from catlog.diagnostics.gradient_samples import GradientSampler
from catlog.diagnostics.moments import Moments
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
    "IndeCateR": [{}, {"draws": "latin"}, {"variables": 1}, {"variables": 4, "draws": "latin"}],
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


@dataclass
class Entrant:
    """One setting of an estimator, with its measurements."""

    name: str
    options: Options
    E: catlog.Estimator
    batch: int
    trained: int = 0
    moments: Moments = field(default_factory=Moments)
    seconds: list[float] = field(default_factory=list)
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(SEED))

    def measure(self, task: GradientSampler) -> None:
        start = time.perf_counter()
        gradients = task.gradients(self.E, self.batch, self.generator)[0]
        self.seconds.append(time.perf_counter() - start)
        self.moments.add(gradients)

    def row(self, task: GradientSampler, problem: str, exact: Tensor) -> Row:
        has_exact = self.E.target == "expectation"
        moments, evaluations = self.moments, self.E.evaluations(task.q)
        variances = moments.variances if moments.count > 1 else torch.zeros_like(moments.mean)
        noise = float(variances.sum()) / moments.count
        square = float(exact.square().sum()) if has_exact else moments.norm2
        variance = float(variances.sum()) / square
        row = {
            "estimator": self.name,
            "settings": options_text(self.options),
            "problem": problem,
            "evaluations": evaluations,
            "variance": variance,
            "ms": 1000 * statistics.median(self.seconds) / self.batch,
            "merit": variance * evaluations,
            "trained": self.trained,
            "repeats": moments.count,
        }
        if has_exact:
            gap = moments.mean - exact
            row["bias"] = (max(0.0, float(gap.square().sum()) - noise) / square) ** 0.5
            row["bias_noise"] = (noise / square) ** 0.5
            if moments.count > 1:
                error = (gap.abs() - 1e-6 * exact.norm()).clamp(min=0)  # float32 rounds the rest
                standard_error = (variances / moments.count).sqrt().clamp(min=1e-300)
                row["z"] = (error / standard_error).max().item()
        return row


def entrants(task: GradientSampler, names: list[str], batch: int) -> list[Entrant]:
    """Return the settings that can be used on a problem, near the budget."""
    listed = []
    for name in names:
        for options in SETTINGS.get(name, [{}]):
            sized = near_budget(name, options, task.q, BUDGET)
            if sized is None or options.get("variables", 0) > task.view.d:
                continue
            if sized.get("samples") == 1 and "draws" in sized:
                continue  # a single draw is the same in every way of drawing
            E = make_estimator(name, sized, task.q)
            if supports(E, task.kind):
                listed.append(Entrant(name, sized, E, 1 if name == "Exact" else batch))
    return listed


def measure(
    problem: Problem, exact: Tensor, names: list[str], rounds: int, batch: int, training: int
) -> list[Row]:
    task = GradientSampler(problem.f, problem.distribution, problem.parameters)
    listed = entrants(task, names, batch)
    for entrant in listed:
        entrant.trained = train(entrant.E, task, training, entrant.generator, together=batch)
        if entrant.name != "Exact":
            task.gradients(entrant.E, entrant.batch, entrant.generator)  # to warm up
    for number in range(rounds):
        for entrant in listed:
            if entrant.name != "Exact" or number == 0:
                entrant.measure(task)
    return [entrant.row(task, problem.name, exact) for entrant in listed]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--names", nargs="+", choices=list(ESTIMATORS), default=list(ESTIMATORS))
    parser.add_argument("--rounds", type=int, default=50, help="of 200 estimates each")


def main(args: argparse.Namespace) -> None:
    sizes = (2, 20, 3) if args.quick else (args.rounds, 200, 200)
    path = output_of(args, "quality", "estimators.csv")
    table = Table(path, ("estimator", "problem"))
    for name, shape in (QUICK_SHAPES if args.quick else SHAPES).items():
        problem, exact = network_problem(name, shape)
        rows = measure(problem, exact, args.names, *sizes)
        table.add(rows)
        print(f"\n{name}, |gradient| {exact.norm().item():.3g}")
        print(f"{'':64}{'evaluations':>12}{'variance':>12}{'bias':>9}{'z':>8}{'ms':>9}{'merit':>9}")
        for row in rows:
            label = f"{row['estimator']}({row['settings']})"
            bias, z = row.get("bias", float("nan")), row.get("z", float("nan"))
            print(
                f"{label:64}{row['evaluations']:12}{row['variance']:12.4g}"
                f"{bias:9.3f}{z:8.1f}{row['ms']:9.4f}{row['merit']:9.3g}"
            )
