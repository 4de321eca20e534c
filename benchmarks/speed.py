"""Time and memory of the paper's training step, and how an estimate grows.

    python -m benchmarks.speed                    # two CPU cores; results/speed/speed_*_cpu.csv
    python -m benchmarks.speed --device cuda      # the steps compiled, in a CUDA graph

"dvae": a step of the paper's autoencoder (batch 100, 200 bits, Adam), all methods in turns. `ratio`
is the time of the paper's literal formula (every category of every variable, all at once) over this
one. The rows of storchastic need the extra `peers` (`make test-peers`).

"scaling": value and gradient, n = 1, batch 20, for D variables of K categories. f is a network
D-256-256-1 as a black box and as FirstLayerLinear, a function of the sum (OfSum), or an energy of
all pairs (Potts). `in_f` is the estimate's time over that of f at the base points.

"overhead": the time of E(f, q) and its backward pass, beside code by hand that does the same. q is
made before the clock starts, as code by hand has its logits. f is a decoder with one hidden layer
and a squared error. Numbers are medians of ratios to the code by hand of the same turn.
"""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Distribution, Independent

import catlog
from catlog.functions import FirstLayerLinear, OfSum, Potts
from catlog.problems.mlp import mlp

from .measuring import Args, Page, Row, Rows, Table, seconds_in_turns, spread
from .peers import StorchasticStep
from .race import Autoencoder

page = Page(__doc__)
LITERAL = "IndeCateR, literal formula"
KINDS = ("black box", "first-layer-linear", "sum", "pairs")


def literal_indecater(f: Callable[[Tensor], Tensor], q: Any, samples: int = 2) -> Tensor:
    """Return the estimate for bits as the paper's formula reads; it shares no code with catlog."""
    x = q.sample((samples,))
    (n, batch, d), value = x.shape, f(x)
    with torch.no_grad():
        points, variable = x.expand(2, d, n, batch, d).clone(), torch.arange(d)
        points[0, variable, :, :, variable] = 0.0
        points[1, variable, :, :, variable] = 1.0
        table = f(points.view(2 * d * n, batch, d)).view(2, d, n, batch).mean(2)
    p = q.base_dist.probs.T  # [d, batch]
    surrogate = ((1 - p) * table[0] + p * table[1]).sum(0) + value.mean(0)
    return value.mean(0).detach() + surrogate - surrogate.detach()


class OnBlackBox:
    """An estimator that does not see what f knows."""

    def __init__(self, E: Any) -> None:
        self.E = E

    def __call__(self, f: Callable[[Tensor], Tensor], q: Distribution) -> Tensor:
        return self.E(lambda x: f(x), q)


METHODS: dict[str, Any] = {
    LITERAL: OnBlackBox(literal_indecater),
    "IndeCateR, black-box f": OnBlackBox(catlog.IndeCateR(2)),
    "IndeCateR, first-layer-linear": catlog.IndeCateR(2),
    "IndeCateR, Latin draws": catlog.IndeCateR(2, sampling="latin"),
    "IndeCateR, Taylor, n=8, m=4": catlog.IndeCateR(8, variables=4, sampling="latin"),
    "RLOO-S": catlog.RLOO(2),
    "GS-S": catlog.GumbelSoftmax(2, hard=True),
    "RLOO-F": catlog.RLOO(800),
    "GS-F": catlog.GumbelSoftmax(800, hard=True),
    "SlopeCateR, n=8, m=6": catlog.SlopeCateR(8),
}


@page.section("speed/speed_dvae_{device}.csv", "method")
def dvae(args: Args, table: Table) -> Rows:
    batch, bits, rounds = (4, 20, 2) if args.quick else (100, 200, 11)
    images = (torch.rand(batch, 784) < 0.2).float().to(args.device)
    calls: dict[str, Callable[[], object]] = {}
    for n in (2, 800) if find_spec("storch") and not args.quick else ():
        calls[f"storchastic, score function, n={n}"] = partial(
            StorchasticStep(n, args.device), images
        )
    for name, E in METHODS.items():
        torch.manual_seed(0)
        calls[name] = partial(
            Autoencoder(E, images, bits).step, torch.arange(batch, device=args.device)
        )
    times = seconds_in_turns(calls, rounds, warm_up=2)
    rows = [{"problem": "dvae", "method": name, **spread(times[name])} for name in calls]
    literal = next(row["ms"] for row in rows if row["method"] == LITERAL)
    yield [row | {"ratio": literal / row["ms"]} for row in rows]


def problem(kind: str, d: int, k: int, device: str) -> tuple[Any, Distribution]:
    """Return f and q."""
    torch.manual_seed(0)
    logits = torch.randn(20, d, *([] if k == 2 else [k]), device=device).requires_grad_()
    q = Independent((Bernoulli if k == 2 else Categorical)(logits=logits, validate_args=False), 1)
    if kind == "sum":
        return OfSum(lambda s: (s / d**0.5).sin(), k), q
    if kind == "pairs":
        return Potts(torch.randn(d, d, device=device), torch.randn(d, k, device=device)), q
    known = FirstLayerLinear(mlp(d, 256, 256, 1).to(device), categories=k)
    return known if kind == KINDS[1] else lambda x: known(x), q


@page.section("speed/speed_scaling_{device}.csv", "scan", "f", "D", "K")
def scaling(args: Args, table: Table) -> Rows:
    scans = {
        "D": [(d, 2) for d in (50, 100, 200, 500, 1000, 2000, 5000)],
        "K": [(50, k) for k in (2, 4, 8, 16, 32, 64, 128, 256)],
    }
    if args.quick:
        scans = {"D": [(10, 2), (20, 2), (40, 2)], "K": [(5, 2), (5, 4), (5, 8)]}
    E = catlog.IndeCateR(1)
    for scan, sizes in scans.items():
        for (d, k), kind in ((size, kind) for size in sizes for kind in KINDS):
            f, q = problem(kind, d, k, args.device)
            base = q.sample((1,))
            calls = {
                "ms": lambda f=f, q=q: E(f, q).sum().backward(retain_graph=True),
                "f_ms": lambda f=f, base=base: f(base),
            }
            rounds = 1 if args.quick else 5
            times = seconds_in_turns(calls, rounds, least=0.0 if args.quick else 0.02)
            ms, f_ms = (spread(times[name])["ms"] for name in calls)
            yield [{"scan": scan, "f": kind, "D": d, "K": k, "ms": ms, "in_f": ms / f_ms}]


BY_HAND_SIZES = {(1, 10): 16, (200, 12): 32, (100, 200): 64}  # (batch, bits): hidden units
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


BY_HAND: dict[str, tuple[Any, Callable[..., Tensor]]] = {
    "RLOO(4)": (catlog.RLOO(4), rloo),
    "IndeCateR(1)": (catlog.IndeCateR(1), indecater),
    "StraightThrough(1)": (catlog.StraightThrough(1), straight_through),
    "ReinMax(1)": (catlog.ReinMax(1), reinmax),
    "GumbelSoftmax(1)": (catlog.GumbelSoftmax(1), gumbel_softmax),
}


@page.section("speed/overhead.csv", "batch", "d", "method")
def overhead(args: Args, table: Table) -> Rows:
    for (batch, d), hidden in list(BY_HAND_SIZES.items())[: 1 if args.quick else None]:
        torch.manual_seed(0)
        encoder, decoder = nn.Linear(36, d), nn.Sequential(mlp(d, hidden, 36), nn.Sigmoid())
        images = torch.rand(batch, 36)

        def step(kind: str, name: str, encoder: Any = encoder, decoder: Any = decoder) -> float:
            E, by_hand = BY_HAND[name]
            logits, target = encoder(images), images  # noqa: B023 (called at once)
            q = Independent(Bernoulli(logits=logits), 1)

            def f(x: Tensor) -> Tensor:
                return (decoder(x) - target).square().sum(-1)

            start = perf_counter()
            estimate = E(f, q) if kind == "catlog" else by_hand(logits, f)
            estimate.mean().backward()
            return perf_counter() - start

        for name in BY_HAND:
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


if __name__ == "__main__":
    page.run()
