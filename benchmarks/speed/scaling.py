"""The cost of an estimate (value and gradient, n = 1, batch 20) for D variables and K categories.

f is a network D-256-256-1 as a black box and as FirstLayerLinear, a function of the sum (OfSum),
and an energy of all pairs (Potts). `evaluations` counts those of f (for OfSum: of the function of
one sum) and `numbers` all numbers that the estimate's operations write. `f_ms` is the time of these
evaluations alone, on existing points in the same chunks, with the backward pass of f. `overhead` is
the rest of the estimate's time, as a share. `in_f` is the estimate's time over that of f at the 20
base points.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Distribution, Independent
from torch.utils._python_dispatch import TorchDispatchMode

import catlog
from catlog.distributions.factors import factors
from catlog.evaluation.evaluate import default_chunk_size
from catlog.functions import FirstLayerLinear, OfSum, Potts

from ..tables import exponent, grouped
from .timing import Bench, Row

BATCH = 20
SIZES = {
    "D": [(d, 2) for d in (50, 100, 200, 500, 1000, 2000, 5000)],
    "K": [(50, k) for k in (2, 4, 8, 16, 32, 64, 128, 256)],
}
QUICK = {"D": [(10, 2), (20, 2), (40, 2)], "K": [(5, 2), (5, 4), (5, 8)]}
E = catlog.IndeCateR(samples=1, validate=False)


class Written(TorchDispatchMode):
    """A context that counts the numbers that operations write; views write none."""

    numbers = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = function(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and not function.is_view:
            self.numbers += out.numel()
        return out


@dataclass
class Problem:
    """A function that counts its evaluations, and a distribution."""

    kind: str
    d: int
    k: int
    device: str
    seen: int = 0

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        d, k, device = self.d, self.k, self.device
        self.logits = torch.randn(
            BATCH, d, *([] if k == 2 else [k]), device=device
        ).requires_grad_()
        if self.kind == "sum":
            self.f: Callable[[Tensor], Tensor] = OfSum(
                self.counted(lambda s: (s / d**0.5).sin()), k
            )
        elif self.kind == "pairs":
            self.f = self.energy = Potts(
                torch.randn(d, d, device=device), torch.randn(d, k, device=device)
            )
        else:
            net = nn.Sequential(
                nn.Linear(d, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)
            ).to(device)
            known = FirstLayerLinear(net, categories=k)
            self.f = (
                known if self.kind == "first-layer-linear" else self.counted(lambda x: known(x))
            )

    def counted(self, f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def call(x: Tensor) -> Tensor:
            self.seen += len(x)
            return f(x)

        return call

    @property
    def law(self) -> Distribution:
        base = Bernoulli if self.k == 2 else Categorical
        return Independent(base(logits=self.logits, validate_args=False), 1)

    def estimate(self) -> None:
        E(self.f, self.law).sum().backward()

    def points(self) -> Tensor:
        """Draw one chunk of an estimate's points."""
        size = default_chunk_size(factors(self.law)) // BATCH
        return self.law.sample((min(size, self.d * (self.k - 1)),))

    def alone(self, points: Tensor) -> None:
        """Evaluate f at as many points as the estimate, with a backward pass at the base points."""
        self.f(points[:1]).sum().backward()
        with torch.no_grad():
            for start in range(0, self.d * (self.k - 1), len(points)):
                self.f(points[: self.d * (self.k - 1) - start])


def scaling(bench: Bench) -> list[Row]:
    """Return the rows of all functions and sizes."""
    rows = []
    short = Bench(bench.device, max(1, min(5, bench.repeats)))
    for scan, sizes in (QUICK if bench.quick else SIZES).items():
        for (d, k), kind in (
            (size, kind)
            for size in sizes
            for kind in ("black box", "first-layer-linear", "sum", "pairs")
        ):
            problem = Problem(kind, d, k, bench.device)
            points, base = problem.points(), problem.law.sample((1,))
            calls = {
                "whole": problem.estimate,
                "base": lambda problem=problem, base=base: problem.f(base),
            }
            if kind == "black box":
                calls["alone"] = lambda problem=problem, points=points: problem.alone(points)
            problem.seen = 0
            problem.estimate()
            seen = problem.seen if kind in ("black box", "sum") else None
            with Written() as written:
                problem.estimate()
            ms = {
                name: 1000 * statistics.median(times)
                for name, times in short.turns(calls, least=0.02).items()
            }
            row: Row = {"scan": scan, "f": kind, "D": d, "K": k, "evaluations": seen}
            row["numbers"] = written.numbers // BATCH
            row |= {"ms": ms["whole"], "f_ms": ms.get("alone"), "in_f": ms["whole"] / ms["base"]}
            row["overhead"] = 1 - ms["alone"] / ms["whole"] if "alone" in ms else None
            rows.append(row)
        print(f"  scaling in {scan}", flush=True)
    return rows


def exponents(rows: list[Row]) -> list[Row]:
    """Return the exponents e of cost = constant · size^e, by least squares on the logarithms.

    The size is D, or K; K - 1 where f is evaluated at all other categories.
    """
    fitted = []
    for (scan, kind), part in grouped(rows, "scan", "f").items():
        by_others = scan == "K" and kind in ("black box", "first-layer-linear")
        size = [row[scan] - by_others for row in part]
        out: Row = {"f": kind, "in": "K - 1" if by_others else scan}
        for name in ("evaluations", "numbers", "ms", "f_ms"):
            if all(row.get(name) for row in part):
                out[name] = exponent(size, [row[name] for row in part])
        fitted.append(out)
    return fitted
