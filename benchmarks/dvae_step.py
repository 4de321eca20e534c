"""The paper's DVAE training step: time and gradient, ours against the literal formula, RLOO and Gumbel-Softmax.

One process, one interleaved run, medians:

    python benchmarks/dvae_step.py                   # about 4 minutes on two CPU cores; writes results/dvae_step_cpu.csv
    python benchmarks/dvae_step.py --device cuda     # all but the literal formula compiled and captured in a CUDA graph, TF32

Encoder 784-384-256-200 bits, decoder 200-256-384-784, batch 100, Adam; the step is forward, estimate, backward, update.
"""

import argparse
import csv
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from math import log
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Independent
from torch.nn.functional import softplus

import catlog
from catlog.functions import BernoulliCrossEntropy, FirstLayerLinear
from literal import literal_indecater

BATCH = 100


def mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Step:
    """One training step of the DVAE with the given estimator."""

    def __init__(self, estimator: Callable[..., Tensor], table: bool, device: str) -> None:
        torch.manual_seed(0)
        self.encoder = mlp(784, 384, 256, 200).to(device)
        self.decoder = mlp(200, 256, 384, 784).to(device)
        self.estimator, self.table = estimator, table
        fast = device == "cuda"
        self.optimiser = torch.optim.Adam(
            [*self.encoder.parameters(), *self.decoder.parameters()], 1e-4, fused=fast or None, capturable=fast
        )
        literal = estimator is literal_indecater
        self.step = self.eager if literal or not fast else catlog.compiled_step(self.loss, self.optimiser)

    def loss(self, images: Tensor, x: Tensor | None = None) -> Tensor:
        logits = self.encoder(images)
        q = Independent(Bernoulli(logits=logits, validate_args=False), 1)
        kl = (logits.sigmoid() * logits - softplus(logits) + log(2)).sum(-1)  # to a prior of fair bits

        def black_box(z: Tensor) -> Tensor:
            pixels = self.decoder(z)
            return (softplus(pixels) - pixels * images).sum(-1)

        f = FirstLayerLinear(self.decoder, BernoulliCrossEntropy(images)) if self.table else black_box
        return (self.estimator(f, q, x=x) + kl).mean()

    def __call__(self, images: Tensor) -> None:
        self.step(images)

    def eager(self, images: Tensor) -> None:
        self.optimiser.zero_grad()
        self.loss(images).backward()
        self.optimiser.step()

    def gradient(self, images: Tensor, x: Tensor) -> Tensor:
        parameters = [*self.encoder.parameters(), *self.decoder.parameters()]
        return torch.cat([g.flatten() for g in torch.autograd.grad(self.loss(images, x), parameters)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--quick", action="store_true", help="three repeats and no 800-sample rows, for the tests")
    parser.add_argument("--output", type=Path, default=None)
    args = parser.parse_args()

    fast = catlog.IndeCateR(samples=2)
    steps: dict[str, tuple[int, Step]] = {
        "IndeCateR literal, n=2": (802, Step(literal_indecater, False, args.device)),
        "IndeCateR black-box, n=2": (402, Step(fast, False, args.device)),
        "IndeCateR first-layer-linear, n=2": (402, Step(fast, True, args.device)),
        "IndeCateR Taylor, n=8, m=4": (40, Step(catlog.IndeCateR(8, variables=4, draws="latin"), True, args.device)),
        "IndeCateR Taylor, n=20, m=20": (420, Step(catlog.IndeCateR(20, variables=20, draws="latin"), True, args.device)),
        "RLOO-2": (2, Step(catlog.RLOO(2), False, args.device)),
        "GS-2": (2, Step(catlog.GumbelSoftmax(2, hard=True), False, args.device)),
    }
    if not args.quick:
        steps["RLOO-800"] = (800, Step(catlog.RLOO(800), False, args.device))
        steps["GS-800"] = (800, Step(catlog.GumbelSoftmax(800, hard=True), False, args.device))

    torch.set_float32_matmul_precision("high" if args.device == "cuda" else "highest")
    generator = torch.Generator().manual_seed(1)
    images = (torch.rand(BATCH, 784, generator=generator) < 0.2).float().to(args.device)

    # Same draws, same gradient.
    x = (torch.rand(2, BATCH, 200, generator=generator) < 0.5).float().to(args.device)
    reference = steps["IndeCateR literal, n=2"][1].gradient(images, x)
    errors = {
        name: float((steps[name][1].gradient(images, x) - reference).norm() / reference.norm())
        for name in ("IndeCateR black-box, n=2", "IndeCateR first-layer-linear, n=2")
    }

    times: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(1 + (3 if args.quick else args.repeats)):
        for name, (_, step) in steps.items():
            calls = 20 if args.device == "cuda" else 1
            start = time.perf_counter()
            for _ in range(calls):
                step(images)
            if args.device == "cuda":
                torch.cuda.synchronize()
            if repeat > 0:  # the first round warms up
                times[name].append(1000 * (time.perf_counter() - start) / calls)

    literal = statistics.median(times["IndeCateR literal, n=2"])
    linear = statistics.median(times["IndeCateR first-layer-linear, n=2"])
    rows = [
        {
            "method": name,
            "evaluations": steps[name][0],
            "ms": round(statistics.median(times[name]), 3),
            "ms_min": round(min(times[name]), 3),
            "ms_max": round(max(times[name]), 3),
            "literal_over_this": round(literal / statistics.median(times[name]), 2),
            "this_over_first_layer_linear": round(statistics.median(times[name]) / linear, 2),
            "gradient_error": f"{errors[name]:.1e}" if name in errors else "",
        }
        for name in steps
    ]
    header = f"{'method':36}{'evals':>6}{'ms':>9}{'min':>9}{'max':>9}{'literal/':>10}{'/linear':>9}  gradient error"
    print(header)
    for row in rows:
        print(
            f"{row['method']:36}{row['evaluations']:>6}{row['ms']:>9}{row['ms_min']:>9}{row['ms_max']:>9}"
            f"{row['literal_over_this']:>10}{row['this_over_first_layer_linear']:>9}  {row['gradient_error']}"
        )
    output = args.output or Path(__file__).parent.parent / "results" / f"dvae_step_{args.device}.csv"
    if not args.quick or args.output:
        with output.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
        print(f"written to {output}")


if __name__ == "__main__":
    main()
