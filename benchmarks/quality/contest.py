"""Which unbiased estimator has the least variance at about 40 evaluations on the problems?

Every unbiased estimator of the registry that accepts the problem's distribution and f enters, and
IndeCateR with Latin draws and with Taylor's control variate. The problems have seeds 1 and 2; seed
0 was used for tuning. Estimators that learn had 200 calls of one estimate each, and are then
frozen. `variance` is summed over the parameters, relative to the squared norm of the reference
gradient; `variance_95` is the half-width of its 95 % interval. `backward` counts the evaluations at
which f is also differentiated.

`part` "contest": the small problems. "large": the large ones (30 to 100 variables), without the
decoders, which the section `decoder` measures. "ways": other estimators than RLOO on the residual
f - h of MemoryCateR's critic h, with the same critic and about as many evaluations.
"""

import argparse
from typing import Any

import torch
from catlog.distributions.factors import factors
from catlog.estimators.catlog_trick.kernel_critic import critic_means, critic_values, encoded
from rich.progress import track
from torch import Tensor
from torch.distributions import Distribution

import catlog
from catlog import problems
from catlog.diagnostics.arms import why_unsuitable
from catlog.diagnostics.task import Task
from catlog.estimators import ESTIMATORS, MemoryCateR

from ..command_line import output_of
from ..settings import Options, make_estimator, near_budget, options_text
from ..tables import Row, Table, selected
from .measuring import NORMAL, backward_passes, observe, train

BUDGET = 40
NAMES = ["ising", "potts", "random-network", "max-coverage", "knapsack", "parity", "xor"]
NAMES += ["digit-sum", "dvae", "dvae-encoder", "subset-selection", "vq", "mixed"]
DECODERS = ("dvae", "dvae-encoder")  # expensive: fewer repeats, and no large version
SEEDS: dict[problems.Size, list[int]] = {"small": [1, 2], "large": [1]}
REPEATS = {"small": 1000, "large": 200}
PARTS = {"small": "contest", "large": "large"}
WAYS: list[Options] = [
    {"sampling": "latin"},
    {"sampling": "latin", "variables": 1, "control": "none"},
]
SETTINGS: list[tuple[str, Options]] = [
    *(("IndeCateR", options) for options in WAYS),
    ("IndeCateR", {"sampling": "latin", "variables": 1}),
    ("IndeCateR", {"sampling": "latin", "variables": 2}),
]


class OnResidual:
    """The critic of a frozen MemoryCateR, summed out, and another estimator on the residual."""

    def __init__(self, memory: MemoryCateR, E: catlog.Estimator) -> None:
        self.memory = memory
        self.E = E

    def __call__(
        self, f: catlog.estimator.Function, q: Distribution, *, generator: torch.Generator
    ) -> Tensor:
        law, memory = factors(q), self.memory
        points = encoded(memory.points[..., : law.d], law.k)
        weight = memory.coefficients().unsqueeze(-1) * memory.weight

        def residual(x: Tensor) -> Tensor:
            drawn = encoded(law.index(x).reshape(-1, memory.critics, law.d).movedim(1, 0), law.k)
            critic = critic_values(drawn, points, weight, memory.rho, law.d).sum(1).T
            return f(x) - critic.reshape(x.shape[0], *law.batch_shape)

        probs = law.probs.reshape(-1, memory.critics, law.d * law.k).movedim(1, 0).double()
        mean = critic_means(probs, points, weight, memory.rho, law.d).sum(1).T
        return self.E(residual, q, generator=generator) + mean.reshape(law.batch_shape)


def entrants(problem: problems.Problem, task: Task) -> dict[str, catlog.Estimator]:
    """Return the estimators that fit a problem, near the budget, by name and settings."""
    law = factors(task.q)
    extra: dict[str, Options] = {
        "SumAndSample": {"top": BUDGET // 2},
        "MAPO": {"size": BUDGET // 2} | ({"max_variables": law.d} if law.d > 64 else {}),
        "MemoryCateR": ({"critics": law.batch_size} if law.batch_size > 1 else {})
        | ({"max_variables": law.d} if law.d > 64 else {}),
    }
    registry = [(name, extra.get(name, {})) for name in ESTIMATORS if name != "Exact"]
    listed = {}
    for name, options in registry + SETTINGS:
        sized = near_budget(name, options, task.q, BUDGET)
        if sized is None or options.get("variables", 0) > law.d:
            continue
        E = make_estimator(name, sized, task.q)
        lacks_slope = E.differentiates_f and not problem.relaxable
        if E.unbiased and not lacks_slope and why_unsuitable(E, task.factors.kind) is None:
            listed[f"{name}({options_text(sized)})"] = E
    return listed


def contest(
    name: str, seed: int, size: problems.Size, repeats: int, calls: int, only: str
) -> list[Row]:
    """Measure all entrants whose name begins with ``only`` on one problem."""
    problem = problems.make(name, size, seed)
    exact = torch.cat([tensor.flatten() for tensor in problem.reference().gradient])
    task = Task(problem.f, problem.distribution, problem.parameters)
    rows: list[Row] = []

    def add(part: str, method: str, cost: catlog.Estimator, E: Any, trained: int) -> None:
        moments = observe(task, E, repeats, generator)
        variance = moments.variance / float(exact.square().sum())
        rows.append(
            {
                "part": part,
                "problem": name,
                "seed": seed,
                "method": method,
                "evaluations": cost.evaluations(task.q),
                "backward": backward_passes(cost, task.q),
                "trained": trained,
                "variance": variance,
                "variance_95": NORMAL * moments.error * variance,
                "repeats": moments.count,
            }
        )

    listed = {key: E for key, E in entrants(problem, task).items() if key.startswith(only)}
    for method, E in track(listed.items(), f"{name}, {size}, seed {seed}", len(listed)):
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(1)
        trained = train(E, task, calls, generator)
        add(PARTS[size], method, E, E, trained)
        if isinstance(E, MemoryCateR) and size == "small":
            for options in WAYS:
                sized = near_budget("IndeCateR", options, task.q, BUDGET)
                assert sized is not None
                way = catlog.IndeCateR(**sized)
                add("ways", f"IndeCateR({options_text(sized)})", way, OnResidual(E, way), trained)
    return rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--again",
        default="",
        metavar="ESTIMATOR",
        help="measure this estimator again on the problems that the file has",
    )


def main(args: argparse.Namespace) -> None:
    table = Table(output_of(args, "quality/contest.csv"), ("part", "problem", "seed", "method"))
    runs: list[tuple[problems.Size, int, str]] = [
        (size, seed, name)
        for size, seeds in SEEDS.items()
        for seed in seeds
        for name in NAMES
        if size == "small" or name not in DECODERS
    ]
    for size, seed, name in [("small", 1, "xor")] if args.quick else runs:
        known = selected(table.rows, part=PARTS[size], problem=name, seed=seed)
        if bool(known) == bool(args.again):
            repeats = 20 if args.quick else 200 if name in DECODERS else REPEATS[size]
            rows = contest(name, seed, size, repeats, 3 if args.quick else 200, args.again)
            table.add(rows, f"{name}, {size}, seed {seed}")
    print(f"{len(table.rows)} rows at about {BUDGET} evaluations")
