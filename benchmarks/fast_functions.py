"""Functions that know their mean: the time of sums of digits, and the noise that `Known` leaves.

    python -m benchmarks.fast_functions    # results/speed/known_means.csv, quality/known_part.csv

"times": value and gradient of P(sum of d digits = s) by `Exact`, by the mean that `OfSum` knows,
and one gradient of `IndeCateR(10)` through its own table; medians of CPU time, in turns. The error
is that of the gradient of the logarithm in float64, relative to its largest entry, against
convolutions.

"noise": the variance of the gradient in the logits with and without a part whose mean is known. The
coefficient learns for 50 calls beforehand and is then frozen. `gap_over_noise` is the squared
distance of both means over its expectation if they are equal: about 1. `spins`: an Ising energy of
50 bits (the part) plus a smooth function of two random directions. `digits`: whether 16 digits add
up to s or, with a weight of 0.3, begin with a 7; the part is the indicator of the sum.
"""

import time
from collections.abc import Callable
from functools import partial
from math import sqrt
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent

import catlog
from catlog.functions import Known, OfSum, ising

from .measuring import Args, Page, Row, Rows, Table, moments, seconds_in_turns

page = Page(__doc__)


def digits_of(logits: Tensor) -> Distribution:
    return Independent(Categorical(logits=logits, validate_args=False), 1)


def bits_of(logits: Tensor) -> Distribution:
    return Independent(Bernoulli(logits=logits, validate_args=False), 1)


def by_convolution(logits: Tensor, target: int) -> Tensor:
    """Return log P(sum = target) by adding one digit after the other."""
    chances = torch.ones(1, dtype=logits.dtype)
    for p in logits.softmax(-1):
        parts = [torch.nn.functional.pad(chances * p[k], (k, 9 - k)) for k in range(10)]
        chances = torch.stack(parts).sum(0)
    return chances[target].log()


@page.section("speed/known_means.csv", "digits", "method")
def times(args: Args, table: Table) -> Rows:
    sizes, rounds = ((6, 60), 2) if args.quick else ((6, 16, 100, 1000), 30)
    for d in sizes:
        logits = 2 * torch.randn(d, 10, generator=torch.Generator().manual_seed(0))
        target = int((logits.softmax(-1) @ torch.arange(10.0)).sum() + sqrt(d))
        f = OfSum(lambda total, target=target: total == target, categories=10)
        sides = {"Exact": catlog.Exact(), "IndeCateR(10)": catlog.IndeCateR(10)}
        leaf = logits.requires_grad_()

        def step(E: Any, f: Any = f, leaf: Tensor = leaf) -> None:
            torch.autograd.grad(E(f, digits_of(leaf)), leaf)

        calls = {name: partial(step, E) for name, E in sides.items()}
        took = seconds_in_turns(calls, rounds, clock=time.process_time)
        wide = logits.detach().double().requires_grad_()
        (ours,) = torch.autograd.grad(catlog.Exact()(f, digits_of(wide)).log(), wide)
        value = by_convolution(wide, target)
        (theirs,) = torch.autograd.grad(value, wide)
        row: Row = {"digits": d, "target": target, "probability": float(value.detach().exp())}
        error = float((ours - theirs).abs().max() / theirs.abs().max())
        yield [
            {**row, "method": name, "ms": 1000 * median(seconds)}
            | {"gradient_error": error if name == "Exact" else None}
            for name, seconds in took.items()
        ]


def spins(d: int = 50) -> tuple[Any, Any, Callable[[Tensor], Distribution], Tensor]:
    generator = torch.Generator().manual_seed(1)
    couplings = torch.randn(d, d, generator=generator) / d**0.5
    part = ising(couplings, torch.randn(d, generator=generator) / 2)
    directions = torch.randn(d, 2, generator=generator) / d**0.5

    def f(x: Tensor) -> Tensor:
        return part(x) + 2 * (x @ directions).sin().sum(-1)

    return f, part, bits_of, torch.randn(d, generator=generator)


def digits(d: int = 16) -> tuple[Any, Any, Callable[[Tensor], Distribution], Tensor]:
    logits = torch.randn(d, 10, generator=torch.Generator().manual_seed(2))
    target = int((logits.softmax(-1) @ torch.arange(10.0)).sum())
    part = OfSum(lambda total: (total == target).float(), categories=10)

    def f(x: Tensor) -> Tensor:
        return torch.maximum(part(x), 0.3 * (x[..., 0] == 7).float())

    return f, part, digits_of, logits


@page.section("quality/known_part.csv", "problem", "estimator")
def noise(args: Args, table: Table) -> Rows:
    repeats = 100 if args.quick else 2000
    for name, problem in {"spins": spins, "digits": digits}.items():
        for E in (catlog.RLOO(8), catlog.CritiCateR(32), catlog.IndeCateR(1)):
            f, part, make_q, logits = problem()
            known = Known(f, part)

            def with_part(
                f: Any, q: Distribution, *, generator: torch.Generator, E: Any = E
            ) -> Tensor:
                return E(f.under(q), q, generator=generator)

            plain = moments(E, f, make_q, [logits], repeats)
            moments(with_part, known, make_q, [logits], 400, together=8)  # it learns
            known.eval()
            less = moments(with_part, known, make_q, [logits], repeats)
            gap = (plain.mean - less.mean).square().sum()
            errors = (plain.variances + less.variances).sum() / repeats
            ratio = less.variance / plain.variance
            row: Row = {"problem": name, "estimator": repr(E), "repeats": repeats}
            row |= {"variance": plain.variance, "variance_with_part": less.variance}
            row |= {"ratio": ratio, "ratio_error": ratio * sqrt(plain.error**2 + less.error**2)}
            row |= {"coefficient": float(known.coefficient), "gap_over_noise": float(gap / errors)}
            yield [row]


if __name__ == "__main__":
    page.run()
