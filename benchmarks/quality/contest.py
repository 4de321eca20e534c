"""Which unbiased estimator has the least variance at about 40 evaluations, on the small problems with interactions?

    python benchmarks/contest.py             # some minutes of one core; writes results/quality/contest.csv, goes on where it stopped
    python benchmarks/contest.py --quick     # some seconds; small, and writes only to a given --output
    python benchmarks/contest.py --again SlopeCateR     # measures one estimator anew (every method has its own random numbers)

Every unbiased estimator of the registry that takes the problem's law and f, and IndeCateR with Latin draws and with Taylor's
control variate; problems with seeds 1 and 2 (seed 0 is what estimators were tuned on). Those that learn had 200 calls of one
estimate each, and are frozen then. `variance`: the mean squared distance from the exact gradient in the problem's parameters,
over its squared norm; intervals (95 %) are from the spread over repeats. `evaluations` counts points of f, `backward` those at
which it is differentiated, too.

`part` "large": the same for the large problems (30 to 100 variables) with an exact gradient, or one that is pooled to high
precision, where few estimators can afford to look at every variable; the trained decoders are in control_variates.py.

`part` "ways": what else the rest f - h of MemoryCateR's critic could be given to than RLOO, the same critic and about as many
evaluations: IndeCateR with Latin draws, over all variables or one per draw.
"""

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor
from torch.distributions import Distribution

import catlog
from catlog import ESTIMATORS, MemoryCateR, problems
from catlog.distributions.factors import factors
from catlog.estimators.catlog_trick.kernel_critic import critic_means, critic_values, encoded
from catlog.experiments import records
from control_variates import ROOT, backward, learned

NAMES = [
    "ising",
    "potts",
    "random-network",
    "max-coverage",
    "knapsack",
    "parity",
    "xor",
    "digit-sum",
    "dvae",
    "dvae-encoder",
]
NAMES += ["subset-selection", "vq", "mixed"]
SEEDS: dict[problems.Size, list[int]] = {"small": [1, 2], "large": [1]}
PARTS = {"small": "contest", "large": "large"}
WAYS: list[dict[str, Any]] = [
    {"draws": "latin"},
    {"draws": "latin", "variables": 1, "control": "none"},
]
TOGETHER = 100
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("IndeCateR", {"draws": "latin"}),
    ("IndeCateR", {"draws": "latin", "variables": 1, "control": "none"}),
    ("IndeCateR", {"draws": "latin", "variables": 1}),
    ("IndeCateR", {"draws": "latin", "variables": 2}),
]
BUDGET = 40
COSTLY = ("dvae", "dvae-encoder")  # fewer repeats


class OnTheRest:
    """The critic of a frozen MemoryCateR, summed out, and another estimator on what it leaves."""

    def __init__(self, memory: MemoryCateR, E: catlog.Estimator) -> None:
        self.memory, self.E = memory, E

    def __call__(
        self,
        f: catlog.estimator.Function,
        q: Distribution,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        law, memory = factors(q), self.memory
        points = encoded(memory.points[..., : law.d], law.k)
        weight = memory.coefficients().unsqueeze(-1) * memory.weight

        def rest(x: Tensor) -> Tensor:
            drawn = encoded(law.index(x).reshape(-1, memory.critics, law.d).movedim(1, 0), law.k)
            critic = critic_values(drawn, points, weight, memory.rho, law.d).sum(1).T
            return f(x) - critic.reshape(x.shape[0], *law.batch_shape)

        probs = law.probs.reshape(-1, memory.critics, law.d * law.k).movedim(1, 0).double()
        mean = (
            critic_means(probs, points, weight, memory.rho, law.d).sum(1).T.reshape(law.batch_shape)
        )
        return self.E(rest, q, generator=generator) + mean


def near_budget(name: str, options: dict[str, Any], q: Distribution) -> catlog.Estimator | None:
    """With the number of samples whose cost is nearest the budget, but not more than a tenth above it."""
    best: catlog.Estimator | None = None
    for samples in range(1, BUDGET + 1):
        try:
            E = ESTIMATORS[name](**{"samples": samples, **options})
            cost = E.evaluations(q)
        except ValueError:
            continue
        if cost <= 1.1 * BUDGET and (
            best is None or abs(cost - BUDGET) < abs(best.evaluations(q) - BUDGET)
        ):
            best = E
    return best


def entered(problem: problems.Problem) -> dict[str, catlog.Estimator]:
    q = problem.q()
    kind, d = factors(q).kind, factors(q).d
    kind = "mixed" if len(set(factors(q).cardinalities)) > 1 else kind
    extra = {"SumAndSample": {"top": BUDGET // 2}, "MAPO": {"size": BUDGET // 2}}
    needed = {"critics": factors(q).batch_size, "length": d}
    extra["MemoryCateR"] = {
        key: value for key, value in needed.items() if value > {"critics": 1, "length": 64}[key]
    }
    extra["MAPO"] |= {"length": d} if d > 64 else {}
    found = {}
    for name, options in [
        *((name, extra.get(name, {})) for name in ESTIMATORS if name not in ("Exact", "VIMCO")),
        *SETTINGS,
    ]:
        E = near_budget(name, options, q)
        if (
            E is None
            or not E.unbiased
            or kind not in E.laws
            or (getattr(E, "variables", None) or 0) > d
        ):
            continue
        if E.differentiates_f and (not problem.relaxable or kind in ("index", "mixed")):
            continue
        given = {"samples": getattr(E, "samples", ""), **options}
        found[f"{name}({', '.join(f'{key}={value}' for key, value in given.items())})"] = E
    return found


def gradients(
    problem: problems.Problem, E: catlog.Estimator, repeats: int, generator: torch.Generator
) -> Tensor:
    """``[repeats, parameters]``: independent estimates."""
    copies = [
        each.detach().expand(repeats, *each.shape).clone().requires_grad_()
        for each in problem.parameters
    ]
    E(problem.f, problem.law(*copies), generator=generator).sum().backward()
    return torch.cat([each.grad.flatten(1) for each in copies if each.grad is not None], 1)


def errors(
    problem: problems.Problem, E: Any, exact: Tensor, repeats: int, generator: torch.Generator
) -> dict[str, float]:
    found = torch.cat(
        [
            gradients(problem, E, min(TOGETHER, repeats), generator)
            for _ in range(max(repeats // TOGETHER, 1))
        ]
    )
    squares = (found - exact).square().sum(-1) / exact.square().sum()
    width = 1.96 * squares.std().item() / len(squares) ** 0.5
    return {"variance": squares.mean().item(), "variance_95": width, "repeats": len(squares)}


def contest(
    name: str, seed: int, size: problems.Size, most: int, calls: int, only: str = ""
) -> list[dict[str, Any]]:
    repeats = min(most, 200) if name in COSTLY else most
    problem = problems.make(name, size, seed)
    exact = torch.cat([each.flatten() for each in problem.reference().gradient])
    rows, q = [], problem.q()
    listed = {method: E for method, E in entered(problem).items() if method.startswith(only)}
    for method, E in track(listed.items(), f"{name}, {size}, seed {seed}", len(listed)):
        torch.manual_seed(0)
        own = torch.Generator().manual_seed(1)
        trained = learned(E, partial(gradients, problem, E, 1, own), calls)
        row = {
            "part": PARTS[size],
            "problem": name,
            "seed": seed,
            "method": method,
            "evaluations": E.evaluations(q),
        }
        row |= {"backward": backward(E, q), "trained": trained}
        rows.append(row | errors(problem, E, exact, repeats, own))
        if isinstance(E, MemoryCateR) and size == "small":
            for options in WAYS:
                other = near_budget("IndeCateR", options, q)
                assert other is not None
                named = ", ".join(
                    f"{key}={value}" for key, value in {"samples": other.samples, **options}.items()
                )
                row = {
                    "part": "ways",
                    "problem": name,
                    "seed": seed,
                    "method": f"IndeCateR({named})",
                    "trained": trained,
                }
                row |= {"evaluations": other.evaluations(q), "backward": 0}
                rows.append(row | errors(problem, OnTheRest(E, other), exact, repeats, own))
    best = sorted((row for row in rows if row["part"] != "ways"), key=lambda row: row["variance"])[
        :3
    ]
    print(
        f"{name}, {size}, {seed}: "
        + "; ".join(
            f"{row['method']} {row['variance']:.3g} +- {row['variance_95']:.1g}" for row in best
        )
    )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one problem, little training and few repeats, for the tests",
    )
    parser.add_argument(
        "--again",
        default="",
        metavar="ESTIMATOR",
        help="to be measured anew on the problems that the file has",
    )
    parser.add_argument("--output", type=Path, default=None, help="the CSV file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    output = args.output or (None if args.quick else ROOT / "results" / "quality" / "contest.csv")
    rows = records.read(output) if output is not None and output.exists() else []
    done = {(row["part"], row["problem"], row["seed"]) for row in rows}
    runs = (
        [("small", 1, "xor")]
        if args.quick
        else [(size, seed, name) for size in SEEDS for seed in SEEDS[size] for name in NAMES]
    )
    for size, seed, name in runs:
        settings = (20, 3) if args.quick else (1000, 200) if size == "small" else (200, 200)
        known = (PARTS[size], name, seed) in done
        if known != bool(args.again) or (size == "large" and name in COSTLY):
            continue
        if args.again:
            anew = {
                (row["part"], row["method"]): row
                for row in contest(name, seed, size, *settings, only=args.again)
            }
            here = [row for row in rows if (row["problem"], row["seed"]) == (name, seed)]
            for row in here:
                row |= anew.get((row["part"], row["method"]), {})
        else:
            rows += contest(name, seed, size, *settings)
        if output is not None:
            records.write(rows, output, digits=4)
    print(f"{len(rows)} rows at about {BUDGET} evaluations, in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
