"""An autoencoder whose code is a subset: unbiased estimators beside SIMPLE and I-MLE.

    python -m benchmarks.subset_autoencoder            # minutes; results/subset/autoencoder.csv
    python -m benchmarks.subset_autoencoder --data mnist --seeds 0 1 2 --steps 2000 --every 250 \\
        --output results/subset/autoencoder_mnist.csv  # all of MNIST; --device cuda on a GPU
    python -m benchmarks.subset_autoencoder --quick    # seconds, writes to a given --output

The encoder (784-128-40, ReLU) gives 40 logits, the code is 10 of 40 bits, and the decoder
(40-128-784) reconstructs the pixels, as independent bits (cross-entropy, in nats per image). It
starts at the mean image; otherwise one code is best for all images at first, and is learned. The
images are the embedded digits of `catlog_experiments.data` (or `--data mnist`). Every
estimator has the same number of draws, so evaluations of the decoder, per image and step.
`loss_likeliest` is the mean over the test images at the likeliest code, the top k logits. `loss` is
that of a draw of the exact distribution. `seconds` is the time of training until then: CPU time, or
wall time on a GPU.

On a GPU the models of all seeds are trained in one captured step, so `seconds` is that of all
together. They share no parameters, and their gradients are those of separate runs.

The file is written after every run. Runs that it holds are not repeated, and interrupted ones start
again.

I-MLE (Niepert et al., 2021) is as published: perturb-and-MAP with sum-of-Gamma noise, a step of
`--step` on the logits, and the difference of the two top-k sets. It samples approximately, so it is
no estimator of the library's contract and stands here. Its noise is smaller than that of exact
draws, so its logits stay small, and `loss` is not fair to it.
"""

import argparse
import time
from dataclasses import dataclass
from itertools import product
from math import log
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import catlog
from catlog.distributions import Subset
from catlog.core.evaluator import Function
from catlog_experiments.data import Images, load
from catlog_experiments.stacked import StackedMLP

from .command_line import opened, table_parser
from .tables import Row

TERMS = 10  # of the sum of Gamma variables, as published
BATCH = 100


def sum_of_gamma(shape: torch.Size, k: int, device: str | torch.device = "cpu") -> Tensor:
    """Return noise of which k independent ones sum up to a Gumbel, approximately."""
    rates = torch.arange(1, TERMS + 1, device=device) / k
    # Not torch.distributions.Gamma, which copies numbers to the GPU: a graph cannot capture that.
    gammas = torch._standard_gamma(torch.full((*shape, TERMS), 1 / k, device=device)) / rates
    return (gammas.sum(-1) - log(TERMS)) / k


def top_k(scores: Tensor, k: int) -> Tensor:
    return torch.zeros_like(scores).scatter(-1, scores.topk(k, -1).indices, 1.0)


@dataclass(frozen=True)
class PerturbAndMap:
    """I-MLE for a Subset: f has the derivative of the difference of two perturbed top-k sets."""

    samples: int
    step: float = 1.0

    def __call__(self, f: Function, q: Subset) -> Tensor:
        assert isinstance(q.k, int)
        shape = torch.Size([self.samples, *q.logits.shape])
        noise = sum_of_gamma(shape, q.k, q.logits.device)
        perturbed = q.logits.detach() + noise
        x = top_k(perturbed, q.k).requires_grad_()
        fx = f(x)
        (slope,) = torch.autograd.grad(fx.sum(), x, retain_graph=True)
        # As published, f's own scale is kept: the step is on the slope of one draw.
        target = top_k(perturbed - self.step * slope, q.k)
        shift = ((x.detach() - target) / self.step * q.logits).sum(-1).mean(0)
        return fx.mean(0) + shift - shift.detach()


def network(seeds: list[int], offset: int, *sizes: int) -> StackedMLP:
    """Return networks that share nothing, the initial values of each by its own seed."""
    stack = StackedMLP(len(seeds), sizes)
    for i, seed in enumerate(seeds):
        torch.manual_seed(2 * seed + offset)
        for weight, bias in zip(stack.weights, stack.biases, strict=True):
            layer = nn.Linear(*weight.shape[1:])
            weight.data[i] = layer.weight.data.T
            bias.data[i] = layer.bias.data
    return stack


class Autoencoder(nn.Module):
    """One model for each seed; they share nothing."""

    def __init__(self, mean: Tensor, hidden: int, d: int, k: int, seeds: list[int]) -> None:
        super().__init__()
        self.k = k
        self.encoder = network(seeds, 0, len(mean), hidden, d)
        self.decoder = network(seeds, 1, d, hidden, len(mean))
        # The decoder starts at the mean image, so that no code is better for all.
        self.decoder.biases[-1].data.copy_(mean.clamp(0.01, 0.99).logit())

    def code(self, images: Tensor) -> Subset:
        return Subset(self.encoder(images), self.k, validate_args=False)

    def loss(self, x: Tensor, images: Tensor) -> Tensor:
        """Return the cross-entropies of codes ``[n, models, batch, d]``, in nats."""
        logits = self.decoder(x.to(images.dtype))
        target = images.expand_as(logits)
        return binary_cross_entropy_with_logits(logits, target, reduction="none").sum(-1)


def estimators(samples: int, step: float) -> dict[str, Any]:
    return {
        "RLOO": catlog.RLOO(samples, validate=False),
        "CritiCateR": catlog.CritiCateR(samples, validate=False),
        "SIMPLE": catlog.estimators.SIMPLE(samples, validate=False),
        "I-MLE": PerturbAndMap(samples, step),
    }


def clock(device: str) -> float:
    """Return the CPU time, or the time on a GPU."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def train(
    model: Autoencoder, E: Any, data: Images, seeds: list[int], args: argparse.Namespace
) -> list[Row]:
    """Train the models of some seeds by one estimator, and return a row per seed and evaluation."""
    train, test = data.train.to(args.device), data.test.to(args.device)
    optimiser = torch.optim.Adam(model.parameters(), args.lr, capturable=train.is_cuda)

    def losses(images: Tensor) -> Tensor:
        """Return ``[models, batch]`` numbers whose mean is the sum of the models' mean losses."""
        return len(seeds) * E(lambda x: model.loss(x, images), model.code(images))

    @torch.no_grad()
    def evaluated() -> list[Row]:
        images = test.expand(len(seeds), *test.shape)
        q = model.code(images)
        drawn = model.loss(q.sample((1,)), images).mean((0, 2)).tolist()
        likeliest = model.loss(top_k(q.logits, model.k)[None], images).mean((0, 2)).tolist()
        return [
            {"lr": args.lr, "seed": seed, "step": done, "loss": loss, "loss_likeliest": least}
            | {"seconds": seconds}
            for seed, loss, least in zip(seeds, drawn, likeliest, strict=True)
        ]

    step = catlog.compiled_step(losses, optimiser, compile=False)
    done, seconds = 0, 0.0
    rows = evaluated()
    while done < args.steps:
        begin, count = clock(args.device), min(args.every, args.steps - done)
        for _ in range(count):
            chosen = torch.randint(len(train), (len(seeds), BATCH), device=args.device)
            step(train[chosen])
        done += count
        seconds += clock(args.device) - begin
        rows += evaluated()
        texts = " ".join(f"{row['loss_likeliest']:.1f}" for row in rows[-len(seeds) :])
        print(f"step {done:5}  {texts} nats  {seconds:.0f} s  {step.mode}", flush=True)
    return rows


def main() -> None:
    names = ["RLOO", "CritiCateR", "SIMPLE", "I-MLE"]
    options = {"device": "cpu", "names": names, "seeds": [0, 1], "steps": 300, "samples": 8}
    parser = table_parser(__doc__, **options, lr=1e-3)
    parser.add_argument("--data", default="mnist-5000", help="a name of catlog_experiments.data")
    parser.add_argument("--every", type=int, help="steps between evaluations; default: steps / 6")
    parser.add_argument("--step", type=float, default=1.0, help="lambda of I-MLE")
    key = ("estimator", "lr", "seed", "step")
    args, table = opened(parser, "subset/autoencoder.csv", *key)
    sizes = (16, 12, 3) if args.quick else (128, 40, 10)
    args.steps = 4 if args.quick else args.steps
    args.every = args.every or max(1, args.steps // 6)
    data = load(args.data)
    # On a GPU a step takes as long for several models as for one.
    groups = [[seed] for seed in args.seeds] if args.device == "cpu" else [args.seeds]
    for seeds, name in product(groups, args.names):
        if all((name, args.lr, seed, args.steps) in table for seed in seeds):
            continue
        model = Autoencoder(data.train.mean(0), *sizes, seeds).to(args.device)
        torch.manual_seed(seeds[0])
        rows = train(model, estimators(args.samples, args.step)[name], data, seeds, args)
        table.add([{"estimator": name, **row} for row in rows])


if __name__ == "__main__":
    main()
