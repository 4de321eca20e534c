"""Every estimator of the registry: its bias as the tests judge it, and its variance and time on two problems.

    python benchmarks/estimators.py             # under 6 minutes of one core; writes results/quality/estimators.csv
    python benchmarks/estimators.py --quick     # some seconds; small, and writes only to a given --output

One row per setting and problem, of two kinds.

*The judge.* The tests' own laws, functions, settings and judge (`tests/`): on few variables, the largest absolute error of the
estimator's expectation, a finite sum over all outcomes of its sampler, over three functions (`how` = enumeration); where its
noise is continuous or its draws are not draws of q, the largest z-score of its mean over 20,000 estimates, from another seed
than the tests' (z-test). `unbiased` is the verdict from that number alone. VIMCO is held against its own target, the bound.

*Two networks.* f is a random network with one hidden layer, q a random law: of 20 bits, and of 8 one-hot variables of 5
categories. Samples are chosen so that an estimate needs about 40 evaluations of f. `variance`: summed over logits, relative to
the squared norm of the exact gradient (by enumeration of all 2^20 or 5^8 points). `bias`: the distance of the mean estimate from
the exact gradient, less its noise, relative to the gradient's norm; `bias_noise`: the noise. `ms`: per estimate, in calls with a
batch of 200 laws, the median over rounds in which all estimators take turns. `merit`: variance times evaluations. Estimators with
parameters or a memory of their own had `trained` calls, of the same batch, to learn before.
"""

import argparse
import inspect
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Distribution, Independent, OneHotCategorical

import catlog
from catlog import ESTIMATORS
from catlog.distributions.factors import factors
from catlog.experiments import records
from catlog.testing import enumeration, test_battery
from catlog.testing import settings as variants

ROOT = Path(__file__).parent.parent

Options = dict[str, Any]
LARGEST_ERROR = 1e-10
SEED = 20240601
BUDGET = 40

NETWORK = "network"  # stands for a module made for the law at hand


@dataclass(frozen=True)
class Problem:
    """A law over ``shape`` logits (bits, or categories in the last dimension) and a network f with one hidden layer."""

    name: str
    shape: tuple[int, ...]
    hidden: int = 32

    @property
    def theta(self) -> Tensor:
        return torch.randn(self.shape, generator=torch.Generator().manual_seed(1))

    def law(self, theta: Tensor) -> Distribution:
        if len(self.shape) == 1:
            return Independent(Bernoulli(logits=theta), 1)
        return Independent(OneHotCategorical(logits=theta), 1)

    def f(self, dtype: torch.dtype = torch.float32) -> Callable[[Tensor], Tensor]:
        generator = torch.Generator().manual_seed(2)
        inputs = self.theta.numel()
        first = torch.randn(inputs, self.hidden, generator=generator) * 2 / self.shape[0] ** 0.5
        bias, last = torch.randn(2, self.hidden, generator=generator)
        first, bias, last = first.to(dtype), bias.to(dtype), (last / self.hidden**0.5).to(dtype)
        dims = len(self.shape)
        return lambda x: (x.flatten(-dims) @ first + bias).tanh() @ last + 1

    def exact(self) -> Tensor:
        """The gradient of E[f] in the logits, from all points."""
        theta = self.theta.double().requires_grad_()
        catlog.Exact(chunk_size=2**15)(self.f(torch.float64), self.law(theta)).backward()
        assert theta.grad is not None
        return theta.grad


PROBLEMS = [Problem("20 bits", (20,)), Problem("8 one-hot variables of 5", (8, 5))]
SMALL = [Problem("4 bits", (4,)), Problem("2 one-hot variables of 3", (2, 3))]

# What is measured on the networks beside, or in place of, the defaults; `samples` follows from the budget where not given.
MEASURED: dict[str, list[Options]] = {
    "Reinforce": [{}, {"baseline": "moving average"}],
    "RELAX": [{"network": NETWORK}],
    "IndeCateR": [{}, {"draws": "latin"}, {"variables": 1}, {"variables": 4, "draws": "latin"}],
    "SumAndSample": [{"top": BUDGET // 2}],
    "MAPO": [{"size": BUDGET // 2}],
    "GumbelSoftmax": [{"temperature": 0.5}, {"temperature": 0.5, "hard": True}],
    "GumbelRao": [{"temperature": 0.5}],
    "DARN": [{"order": 1}, {"order": 2}],
}
# Settings that the judge takes beside those of the tests' battery.
JUDGED: dict[str, list[Options]] = {
    "NVIL": [{"samples": 2, "network": NETWORK}],
    "RELAX": [{"samples": 2, "network": NETWORK}],
    "RODEO": [{"samples": 2, "alpha": 0.3, "beta": -0.4, "network": NETWORK}],
}


def made(
    name: str, options: Options, law: Distribution, dtype: torch.dtype = torch.float32
) -> catlog.Estimator:
    """The estimator, with modules of a random start where the options only name them."""
    torch.manual_seed(0)
    given = dict(options)
    if given.get("baseline") == "moving average":
        given["baseline"] = catlog.MovingAverageBaseline()
    if given.get("network") == NETWORK:
        view = factors(law)
        size = 2 if name == "RODEO" else view.d * (1 if view.kind == "bits" else view.k)
        flat = nn.Flatten(-2) if len(law.event_shape) == 2 and name == "RELAX" else nn.Identity()
        out = 2 if name == "RODEO" else 1
        given["network"] = nn.Sequential(
            flat, nn.Linear(size, 32), nn.Tanh(), nn.Linear(32, out)
        ).to(dtype)
    return ESTIMATORS[name](**given)


def text(options: Options) -> str:
    return ", ".join(f"{key}={value}" for key, value in options.items())


# The judge


def bound_case(case: enumeration.Case, rows: int) -> enumeration.Case:
    """The law of ``rows`` independent draws, as one law."""
    return enumeration.Case(
        case.name,
        case.theta,
        lambda t: Independent(case.law(t.expand(rows, *t.shape)), 1),
        enumeration.outcomes(case, rows)[0].movedim(0, 1),
        case.features,
    )


def error(E: catlog.Estimator, case: enumeration.Case) -> float:
    """The largest absolute error of value and gradients (in the law's and f's parameters) in expectation."""
    errors = []
    for f in test_battery.FUNCTIONS.values():
        got = enumeration.expectation(E, case, f, test_battery.PARAMETER)
        if type(E).__name__ in variants.OTHER_TARGETS:
            n = E.rows(case.law(case.theta))
            case_n = bound_case(case, n)
            exact = enumeration.expected(
                case_n,
                lambda z, c, f=f, n=n: f(z, c).logsumexp(-1) - log(n),
                test_battery.PARAMETER,
            )
        else:
            exact = enumeration.expected(case, f, test_battery.PARAMETER)
        errors += [(a - b).abs().max().item() for a, b in zip(got, exact, strict=True)]
    return max(errors)


@dataclass(frozen=True)
class Reseeded:
    """E with a source of randomness of our own in place of the tests'."""

    E: catlog.Estimator
    generator: torch.Generator

    def __call__(self, f: Callable[[Tensor], Tensor], q: Distribution, **_: object) -> Tensor:
        return self.E(f, q, generator=self.generator)


def judge(name: str, options: Options, case: enumeration.Case) -> dict[str, Any] | None:
    """The row of one setting on one of the tests' laws; None where the setting is not for it."""
    E = made(name, options, case.law(case.theta), torch.float64)
    if not isinstance(E, catlog.Exact) and not test_battery.applies(E, case):
        return None
    row: dict[str, Any] = {
        "estimator": name,
        "settings": text(options),
        "problem": f"tests: {case.name}",
    }
    if variants.continuous(E):
        seeded = Reseeded(E, torch.Generator().manual_seed(SEED))
        z = max(
            test_battery.z_scores(seeded, case, f).max().item()
            for f in test_battery.FUNCTIONS.values()
        )
        return {
            **row,
            "how": "z-test",
            "z": z,
            "unbiased": "yes" if z < test_battery.LIMIT else "no",
        }
    largest = error(E, case)
    return {
        **row,
        "how": "enumeration",
        "error": largest,
        "unbiased": "yes" if largest < LARGEST_ERROR else "no",
    }


def judged(quick: bool, names: list[str]) -> list[dict[str, Any]]:
    rows = []
    for name in names:
        settings = variants.VARIANTS[name] + JUDGED.get(name, [])
        for options in settings[:1] if quick else settings:
            for kind in ["bits"] if quick else ["bits", "integers", "one-hot"]:
                if kind == "integers" and name in variants.CONTINUOUS:
                    continue  # the same noise as for one-hot points
                row = judge(name, options, test_battery.CASES[kind])
                if row is not None:
                    rows.append(row)
                    number = f"z {row['z']:.1f}" if "z" in row else f"error {row['error']:.1e}"
                    print(
                        f"{name:20} {row['settings']:40} {row['problem']:18} {number:16} {row['unbiased']}",
                        flush=True,
                    )
    return rows


# Variance and time


def near_budget(name: str, options: Options, problem: Problem) -> Options | None:
    """The options with the number of samples whose cost is nearest the budget; None where the law is not for the estimator."""
    q = problem.law(problem.theta)
    if "samples" in options or "samples" not in inspect.signature(ESTIMATORS[name]).parameters:
        return options
    best: tuple[int, Options] | None = None
    for samples in range(1, BUDGET + 1):
        try:
            E = made(name, {"samples": samples, **options}, q)
        except ValueError:
            continue  # too few or too many for this estimator
        if not variants.supports(E, "bits" if len(problem.shape) == 1 else "one-hot"):
            return None
        if (getattr(E, "variables", None) or 0) > problem.shape[0]:
            return None
        distance = abs(E.evaluations(q) - BUDGET)
        if best is None or distance < best[0]:
            best = distance, {"samples": samples, **options}
    return None if best is None else best[1]


@dataclass
class Contest:
    """One setting in a problem: its estimator and what has been seen of it."""

    name: str
    options: Options
    E: catlog.Estimator
    generator: torch.Generator
    batch: int
    trained: int = 0
    repeats: int = 0
    total: Tensor | float = 0.0
    squares: Tensor | float = 0.0
    times: list[float] | None = None

    def call(self, problem: Problem, f: Callable[[Tensor], Tensor], batch: int) -> Tensor:
        """``[batch, *shape]`` independent estimates of the gradient."""
        theta = problem.theta.expand(batch, *problem.shape).clone().requires_grad_()
        value = self.E(f, problem.law(theta), generator=self.generator)
        value.sum().backward()
        assert theta.grad is not None
        return theta.grad

    def train(self, problem: Problem, f: Callable[[Tensor], Tensor], steps: int) -> None:
        """Let the estimator learn, where it does; its parameters and its memory are then frozen."""
        own = [
            each
            for each in (self.E, getattr(self.E, "baseline", None))
            if isinstance(each, nn.Module)
        ]
        if not own or not [*own[0].parameters(), *own[0].buffers()]:
            return
        optimiser = torch.optim.Adam(own[0].parameters()) if list(own[0].parameters()) else None
        for step in range(steps):
            self.call(problem, f, self.batch)
            if optimiser is not None:
                optimiser.param_groups[0]["lr"] = 0.05 * (1 - step / steps)
                optimiser.step()
                optimiser.zero_grad()
        self.trained = steps
        own[0].requires_grad_(False).eval()

    def measure(self, problem: Problem, f: Callable[[Tensor], Tensor], exact: Tensor) -> None:
        start = time.perf_counter()
        error = self.call(problem, f, self.batch).double()
        spent = time.perf_counter() - start
        error = error - exact  # sums of squares about the exact gradient do not cancel
        self.times = [*(self.times or []), spent]
        self.repeats += len(error)
        self.total = self.total + error.sum(0)
        self.squares = self.squares + error.square().sum(0)

    def row(self, problem: Problem, exact: Tensor) -> dict[str, Any]:
        q = problem.law(problem.theta)
        n, evaluations = self.repeats, self.E.evaluations(q)
        mean = torch.as_tensor(self.total) / n
        variances = (torch.as_tensor(self.squares) - n * mean.square()).clamp(min=0) / max(n - 1, 1)
        own_target = self.name in variants.OTHER_TARGETS
        noise = variances.sum() / n
        square = (exact + mean).square().sum() - noise if own_target else exact.square().sum()
        variance = (variances.sum() / square).item()
        assert self.times is not None
        row = {
            "estimator": self.name,
            "settings": text(self.options),
            "problem": problem.name,
            "evaluations": evaluations,
            "variance": variance,
            "ms": 1000 * statistics.median(self.times) / self.batch,
            "merit": variance * evaluations,
            "trained": self.trained,
            "repeats": n,
        }
        if not own_target:
            bias = ((mean.square().sum() - noise).clamp(min=0) / square).sqrt().item()
            row |= {"bias": bias, "bias_noise": (noise / square).sqrt().item()}
            if n > 1:
                error = (mean.abs() - 1e-6 * exact.norm()).clamp(min=0)  # less what float32 rounds
                row["z"] = (error / (variances / n).sqrt().clamp(min=1e-300)).max().item()
        return row


def contests(problem: Problem, batch: int, names: list[str]) -> list[Contest]:
    found = []
    for name in names:
        for options in MEASURED.get(name, [{}]):
            chosen = near_budget(name, options, problem)
            if chosen is not None and not (
                chosen.get("samples") == 1 and "draws" in chosen
            ):  # one draw depends on no other
                E = made(name, chosen, problem.law(problem.theta))
                found.append(
                    Contest(
                        name,
                        chosen,
                        E,
                        torch.Generator().manual_seed(SEED),
                        1 if name == "Exact" else batch,
                    )
                )
    return found


def measured(
    problem: Problem, names: list[str], rounds: int, batch: int, training: int
) -> list[dict[str, Any]]:
    f, exact = problem.f(), problem.exact()
    entered = contests(problem, batch, names)
    for each in entered:
        each.train(problem, f, training)
        if each.name != "Exact":
            each.call(problem, f, each.batch)  # warm-up
    for number in range(rounds):
        for each in entered:
            if each.name != "Exact" or number == 0:
                each.measure(problem, f, exact)
    rows = [each.row(problem, exact) for each in entered]
    print(f"\n{problem.name}, |gradient| {exact.norm().item():.3g}")
    print(f"{'':64}{'evaluations':>12}{'variance':>12}{'bias':>9}{'z':>8}{'ms':>9}{'merit':>9}")
    for row in rows:
        label = f"{row['estimator']}({row['settings']})"
        bias, z = row.get("bias", float("nan")), row.get("z", float("nan"))
        print(
            f"{label:64}{row['evaluations']:12}{row['variance']:12.4g}{bias:9.3f}{z:8.1f}{row['ms']:9.4f}{row['merit']:9.3g}",
            flush=True,
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one setting, small networks and few repeats, for the tests",
    )
    parser.add_argument(
        "--only",
        choices=["judge", "networks"],
        default=None,
        help="do one part (and keep the file)",
    )
    parser.add_argument(
        "--names",
        nargs="+",
        choices=list(ESTIMATORS),
        help="only these; other rows of the file stay",
    )
    parser.add_argument("--rounds", type=int, default=50, help="of 200 estimates each")
    parser.add_argument("--output", type=Path, default=None, help="the CSV file")
    args = parser.parse_args()
    torch.set_num_threads(1)

    start, names = time.perf_counter(), args.names or list(ESTIMATORS)
    rows: list[dict[str, Any]] = []
    if args.only != "networks":
        rows += judged(args.quick, names)
        print(f"judged in {time.perf_counter() - start:.0f} s")
    if args.only != "judge":
        for problem in SMALL if args.quick else PROBLEMS:
            rows += measured(
                problem, names, *((2, 20, 3) if args.quick else (args.rounds, 200, 200))
            )
    print(f"{len(rows)} rows in {time.perf_counter() - start:.0f} s")
    output = args.output or (
        None if args.quick or args.only else ROOT / "results" / "quality" / "estimators.csv"
    )
    if output is not None:
        if args.names and output.exists():
            rows = [row for row in records.read(output) if row["estimator"] not in names] + rows
        records.write(rows, output, digits=4)
        print(f"written to {output}")


if __name__ == "__main__":
    main()
