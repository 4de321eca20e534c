"""The time of E(f, q) and its backward pass, beside code by hand that does the same.

    python -m benchmarks.overhead [--rounds 300] [--output results/speed/overhead.csv]

One thread. q is made before the clock starts, as code by hand has its logits. f is a decoder with
one hidden layer and a squared error. Methods take turns, and every number is a median of ratios to
the code by hand of the same turn.
"""

import argparse
import csv
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Independent

import catlog

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


METHODS: dict[str, tuple[object, Callable[..., Tensor]]] = {
    "RLOO(4)": (catlog.RLOO(4), rloo),
    "IndeCateR(1)": (catlog.IndeCateR(1), indecater),
    "StraightThrough(1)": (catlog.StraightThrough(1), straight_through),
    "ReinMax(1)": (catlog.ReinMax(1), reinmax),
    "GumbelSoftmax(1)": (catlog.GumbelSoftmax(1), gumbel_softmax),
}


def measure(batch: int, d: int, hidden: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Return per method the microseconds by hand, and the ratio of catlog's to it."""
    torch.manual_seed(0)
    encoder = nn.Linear(36, d)
    decoder = nn.Sequential(nn.Linear(d, hidden), nn.ReLU(), nn.Linear(hidden, 36), nn.Sigmoid())
    images = torch.rand(batch, 36)

    def f(x: Tensor) -> Tensor:
        return (decoder(x) - images).square().sum(-1)

    def step(kind: str, name: str) -> float:
        E, by_hand = METHODS[name]
        logits = encoder(images)
        q = Independent(Bernoulli(logits=logits), 1)
        start = perf_counter()
        estimate = E(f, q) if kind == "catlog" else by_hand(logits, f)  # type: ignore[operator]
        estimate.mean().backward()
        return perf_counter() - start

    result = {}
    for name in METHODS:
        is_slow = name.startswith("IndeCateR") and batch * d > 5000
        count = max(10, rounds // 10) if is_slow else rounds
        pairs = []
        for turn in range(count):
            # One after the other, and each three times, so that neither finds the caches of others.
            kinds = ("catlog", "by hand") if turn % 2 else ("by hand", "catlog")
            best = {kind: min(step(kind, name) for _ in range(3)) for kind in kinds}
            pairs.append((best["catlog"], best["by hand"]))
        result[name] = median(b for _, b in pairs) * 1e6, median(a / b for a, b in pairs)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for (batch, d), hidden in SIZES.items():
        for name, (hand, ratio) in measure(batch, d, hidden, options.rounds).items():
            row = {"batch": batch, "d": d, "method": name}
            rows.append({**row, "hand_us": round(hand, 1), "ratio": round(ratio, 3)})
            print(f"{batch:4d} x {d:4d} bits, {name:20s} {hand:9.0f} us by hand, x {ratio:.2f}")
    if options.output:
        with options.output.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
