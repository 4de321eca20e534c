"""The time of E(f, q) and its backward pass, beside code by hand that does the same.

    python -m benchmarks.overhead    # results/speed/overhead.csv

One thread. q is made before the clock starts, as code by hand has its logits. f is a decoder with
one hidden layer and a squared error. Methods take turns, and every number is a median of ratios to
the code by hand of the same turn.
"""

import argparse
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Independent

import catlog
from catlog.problems.mlp import mlp

from .measuring import Row, Rows, Section, Table, run

SIZES = {(1, 10): 16, (200, 12): 32, (100, 200): 64}  # (batch, bits): hidden units
Loss = Callable[[Tensor], Tensor]


def rloo(logits: Tensor, f: Loss, n: int = 4) -> Tensor:
    p = logits.detach().sigmoid()
    x = (torch.rand(n, *p.shape) < p).float()
    fx = f(x)
    value = fx.detach()
    advantage = (value - value.mean(0)) * (n / (n - 1))
    log_prob = (x * logits).sum(-1) - nn.functional.softplus(logits).sum(-1)
    return fx.mean(0) + ((advantage * (log_prob - log_prob.detach())).mean(0))


def indecater(logits: Tensor, f: Loss) -> Tensor:
    p = logits.sigmoid()
    x = (torch.rand_like(p) < p).float()
    d = x.shape[-1]
    fx = f(x.unsqueeze(0))[0]
    with torch.no_grad():
        eye = torch.eye(d).view(d, *[1] * (x.dim() - 1), d)
        change = f((x - eye).abs()) - fx
        change = change.movedim(0, -1) * (1 - 2 * x)
    mean = (p * change).sum(-1)
    base = ((p.detach() - x) * change).sum(-1) / d
    return fx + base + (mean - mean.detach())


def straight_through(logits: Tensor, f: Loss) -> Tensor:
    p = logits.sigmoid()
    x = (torch.rand_like(p) < p).float()
    return f((x + p - p.detach()).unsqueeze(0))[0]


def reinmax(logits: Tensor, f: Loss) -> Tensor:
    p = logits.detach().sigmoid()
    x = (torch.rand_like(p) < p).float()
    mean = (x - p).abs() / 2 * logits
    return f((x + mean - mean.detach()).unsqueeze(0))[0]


def gumbel_softmax(logits: Tensor, f: Loss) -> Tensor:
    u = torch.rand_like(logits).clamp(min=torch.finfo(logits.dtype).tiny)
    return f((logits + u.log() - (-u).log1p()).sigmoid().unsqueeze(0))[0]


METHODS: dict[str, tuple[Any, Callable[..., Tensor]]] = {
    "RLOO(4)": (catlog.RLOO(4), rloo),
    "IndeCateR(1)": (catlog.IndeCateR(1), indecater),
    "StraightThrough(1)": (catlog.StraightThrough(1), straight_through),
    "ReinMax(1)": (catlog.ReinMax(1), reinmax),
    "GumbelSoftmax(1)": (catlog.GumbelSoftmax(1), gumbel_softmax),
}


def overhead(args: argparse.Namespace, table: Table) -> Rows:
    for (batch, d), hidden in list(SIZES.items())[: 1 if args.quick else None]:
        torch.manual_seed(0)
        encoder, decoder = nn.Linear(36, d), nn.Sequential(mlp(d, hidden, 36), nn.Sigmoid())
        images = torch.rand(batch, 36)

        def step(kind: str, name: str, encoder: Any = encoder, decoder: Any = decoder) -> float:
            E, by_hand = METHODS[name]
            logits, target = encoder(images), images  # noqa: B023 (called at once)
            q = Independent(Bernoulli(logits=logits), 1)

            def f(x: Tensor) -> Tensor:
                return (decoder(x) - target).square().sum(-1)

            start = perf_counter()
            estimate = E(f, q) if kind == "catlog" else by_hand(logits, f)
            estimate.mean().backward()
            return perf_counter() - start

        for name in METHODS:
            is_slow = name.startswith("IndeCateR") and batch * d > 5000
            pairs = []
            for turn in range(2 if args.quick else 30 if is_slow else 300):
                # One after the other, and each three times, for equal caches.
                kinds = ("catlog", "by hand") if turn % 2 else ("by hand", "catlog")
                best = {kind: min(step(kind, name) for _ in range(3)) for kind in kinds}
                pairs.append((best["catlog"], best["by hand"]))
            row: Row = {"batch": batch, "d": d, "method": name}
            row["hand_us"] = 1e6 * median(hand for _, hand in pairs)
            yield [row | {"ratio": median(ours / hand for ours, hand in pairs)}]


def main(arguments: Sequence[str] | None = None) -> None:
    key = ("batch", "d", "method")
    run(__doc__, {"overhead": Section("speed/overhead.csv", key, overhead)}, arguments)


if __name__ == "__main__":
    main()
