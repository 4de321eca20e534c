"""Functions that know their mean: the time of sums of digits, and the noise that `Known` leaves.

    python -m benchmarks.known_means    # writes results/speed/known_means.csv
                                        # and results/quality/known_part.csv

Time: value and gradient of P(sum of d digits = s) by `Exact`, by the mean that `OfSum` knows, and
one gradient of `IndeCateR(10)` through its own table. Both run in turn; medians of the CPU time of
one thread. The error is that of the gradient of the logarithm in float64, relative to its largest
entry, against convolutions without FFT.

Noise: the variance of the gradient in the logits, summed over them, with and without a part whose
mean is known. The coefficient learns for 50 calls beforehand and is then frozen. The last column
is the squared distance of both means over its expectation if they are equal: about 1. Two problems:

- `spins`: an Ising energy of 50 bits (the part) plus a smooth function of two random directions.
- `digits`: whether 16 digits add up to s or, with a weight of 0.3, begin with a 7; the part is the
  indicator of the sum.
"""

import time
from collections.abc import Callable
from functools import partial
from math import sqrt
from statistics import median

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent

from catlog import RLOO, CritiCateR, Estimator, Exact, IndeCateR, log_expectation
from catlog.core.evaluator import Function
from catlog.functions import Known, OfSum, ising

from .command_line import add_options, argument_parser
from .quality.measuring import observe_batched
from .tables import RESULTS, Row, Table
from .turns import seconds_in_turns


def digits_of(logits: Tensor) -> Distribution:
    return Independent(Categorical(logits=logits, validate_args=False), 1)


def sum_of_digits(d: int) -> tuple[OfSum, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(d, 10, generator=generator)
    mean = (logits.softmax(-1) @ torch.arange(10.0)).sum()
    target = int(mean + sqrt(d))
    return OfSum(lambda total: total == target, categories=10), logits.requires_grad_()


def time_rows(sizes: list[int], repeats: int) -> list[Row]:
    rows: list[Row] = []
    for d in sizes:
        f, logits = sum_of_digits(d)
        sides: dict[str, Estimator] = {
            "Exact": Exact(),
            "IndeCateR(10)": IndeCateR(10, validate=False),
        }

        def step(E: Estimator, f: Function = f, logits: Tensor = logits) -> None:
            torch.autograd.grad(E(f, digits_of(logits)), logits)

        steps = {name: partial(step, E) for name, E in sides.items()}
        times = seconds_in_turns(steps, repeats, warm_up=3, clock=time.process_time)
        leaf = logits.detach().double().requires_grad_()
        by_log = log_expectation(Exact(), f, digits_of(leaf))
        by_mean = Exact()(f, digits_of(leaf)).log()
        slopes = [torch.autograd.grad(y, leaf)[0] for y in (by_log, by_mean)]
        error = float((slopes[0] - slopes[1]).abs().max() / slopes[0].abs().max())
        exact = {"probability": float(by_mean.detach().exp()), "gradient_error": error}
        for name in sides:
            row = {"digits": d, "method": name, "ms": 1000 * median(times[name])}
            rows.append(row | (exact if name == "Exact" else {}))
    return rows


def spins(d: int = 50) -> tuple[Function, Function, Callable[[Tensor], Distribution], Tensor]:
    generator = torch.Generator().manual_seed(1)
    couplings = torch.randn(d, d, generator=generator) / d**0.5
    part = ising(couplings, torch.randn(d, generator=generator) / 2)
    directions = torch.randn(d, 2, generator=generator) / d**0.5

    def f(x: Tensor) -> Tensor:
        return part(x) + 2 * (x @ directions).sin().sum(-1)

    logits = torch.randn(d, generator=generator)
    return f, part, lambda y: Independent(Bernoulli(logits=y, validate_args=False), 1), logits


def digits(d: int = 16) -> tuple[Function, Function, Callable[[Tensor], Distribution], Tensor]:
    logits = torch.randn(d, 10, generator=torch.Generator().manual_seed(2))
    target = int((logits.softmax(-1) @ torch.arange(10.0)).sum())
    part = OfSum(lambda total: (total == target).float(), categories=10)

    def f(x: Tensor) -> Tensor:
        return torch.maximum(part(x), 0.3 * (x[..., 0] == 7).float())

    return f, part, digits_of, logits


def noise_rows(repeats: int) -> list[Row]:
    rows: list[Row] = []
    for name, problem in {"spins": spins, "digits": digits}.items():
        for E in (RLOO(8), CritiCateR(32), IndeCateR(1)):
            f, part, make_q, logits = problem()
            known, generator = Known(f, part), torch.Generator().manual_seed(3)
            plain = observe_batched(E, f, make_q, logits, repeats, generator)
            observe_batched(E, known, make_q, logits, 400, generator, together=8)  # it learns
            known.eval()
            less = observe_batched(E, known, make_q, logits, repeats, generator)
            gap = (plain.mean - less.mean).square().sum()
            errors = (plain.variances + less.variances).sum() / repeats
            ratio = less.variance / plain.variance
            rows.append(
                {
                    "problem": name,
                    "estimator": repr(E),
                    "repeats": repeats,
                    "variance": plain.variance,
                    "variance_with_part": less.variance,
                    "ratio": ratio,
                    "ratio_error": ratio * sqrt(plain.error**2 + less.error**2),
                    "coefficient": float(known.coefficient),
                    "gap_over_noise": float(gap / errors),
                }
            )
    return rows


def main() -> None:
    parser = argument_parser(__doc__)
    add_options(parser, sizes=[6, 16, 100, 1000], timings=30, repeats=2000, root=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = time_rows(args.sizes, args.timings)
    times = Table(args.root / "speed" / "known_means.csv", ("digits", "method"))
    times.add(rows, "P(sum of digits = s), value and gradient")
    variances = Table(args.root / "quality" / "known_part.csv", ("problem", "estimator"))
    variances.add(noise_rows(args.repeats), "variance with a part whose mean is known")


if __name__ == "__main__":
    main()
