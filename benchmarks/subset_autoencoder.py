"""An autoencoder whose code is a subset: unbiased estimators beside SIMPLE and I-MLE.

    python -m benchmarks.subset_autoencoder            # minutes; results/subset/autoencoder.csv
    python -m benchmarks.subset_autoencoder --quick    # seconds, writes to a given --output

The encoder (784-128-40, ReLU) gives 40 logits, the code is 10 of 40 bits, and the decoder
(40-128-784) reconstructs the pixels, as independent bits (cross-entropy, in nats per image). It
starts at the mean image; otherwise one code is best for all images at first, and is learned. The
images are the embedded digits (`catlog.data.load("mnist-5000")`, or `--data mnist`). Every
estimator has the same number of draws, so evaluations of the decoder, per image and step.
`loss_likeliest` is the mean over the test images at the likeliest code, the top k logits. `loss` is
that of a draw of the exact distribution. `seconds` is the CPU time of training until then.

I-MLE (Niepert et al., 2021) is as published: perturb-and-MAP with sum-of-Gamma noise, a step of
`--step` on the logits, and the difference of the two top-k sets. It samples approximately, so it is
no estimator of the library's contract and stands here. Its noise is smaller than that of exact
draws, so its logits stay small, and `loss` is not fair to it.
"""

import argparse
import time
from dataclasses import dataclass
from math import log
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import catlog
from catlog.data import load
from catlog.distributions import Subset
from catlog.estimator import Function

from .tables import RESULTS, Row, Table, show

TERMS = 10  # of the sum of Gamma variables, as published


def sum_of_gamma(shape: torch.Size, k: int) -> Tensor:
    """Return noise of which k independent ones sum up to a Gumbel, approximately."""
    rates = torch.arange(1, TERMS + 1) / k
    gammas = torch.distributions.Gamma(1 / k, rates).sample(shape)
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
        noise = sum_of_gamma(torch.Size([self.samples, *q.logits.shape]), q.k)
        perturbed = q.logits.detach() + noise
        x = top_k(perturbed, q.k).requires_grad_()
        fx = f(x)
        (slope,) = torch.autograd.grad(fx.sum(), x, retain_graph=True)
        # As published, f's own scale is kept: the step is on the slope of one draw.
        target = top_k(perturbed - self.step * slope, q.k)
        shift = ((x.detach() - target) / self.step * q.logits).sum(-1).mean(0)
        return fx.mean(0) + shift - shift.detach()


class Autoencoder(nn.Module):
    def __init__(self, pixels: int, hidden: int, d: int, k: int) -> None:
        super().__init__()
        self.k = k
        self.encoder = nn.Sequential(nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, d))
        self.decoder = nn.Sequential(nn.Linear(d, hidden), nn.ReLU(), nn.Linear(hidden, pixels))

    def code(self, images: Tensor) -> Subset:
        return Subset(self.encoder(images), self.k, validate_args=False)

    def loss(self, x: Tensor, images: Tensor) -> Tensor:
        """Return the cross-entropies of codes ``[n, batch, d]``, in nats: ``[n, batch]``."""
        logits = self.decoder(x.to(images.dtype))
        target = images.expand_as(logits)
        return binary_cross_entropy_with_logits(logits, target, reduction="none").sum(-1)


def estimators(samples: int, step: float) -> dict[str, object]:
    return {
        "RLOO": catlog.RLOO(samples),
        "CritiCateR": catlog.CritiCateR(samples),
        "SIMPLE": catlog.SIMPLE(samples),
        "I-MLE": PerturbAndMap(samples, step),
    }


def train(
    name: str, E: object, data: tuple[Tensor, Tensor], sizes: tuple[int, int, int], seed: int,
    steps: int, lr: float, every: int,
) -> list[Row]:  # fmt: skip
    """Return the curve of one run."""
    images, test = data
    torch.manual_seed(seed)
    hidden, d, k = sizes
    model = Autoencoder(images.shape[-1], hidden, d, k)
    with torch.no_grad():  # the decoder starts at the mean image, so that no code is better for all
        model.decoder[-1].bias.copy_(images.mean(0).clamp(0.01, 0.99).logit())
    optimiser = torch.optim.Adam(model.parameters(), lr)
    rows: list[Row] = []
    seconds = 0.0
    for step in range(steps + 1):
        if step % every == 0:
            with torch.no_grad():
                q = model.code(test)
                loss = model.loss(q.sample((1,)), test).mean().item()
                likeliest = model.loss(top_k(q.logits, k).unsqueeze(0), test).mean().item()
            key = {"estimator": name, "lr": lr, "seed": seed, "step": step}
            rows.append(key | {"loss": loss, "loss_likeliest": likeliest, "seconds": seconds})
        begin = time.process_time()
        batch = images[torch.randint(len(images), (100,))]
        estimate = E(lambda x, batch=batch: model.loss(x, batch), model.code(batch))  # type: ignore[operator]
        optimiser.zero_grad()
        estimate.mean().backward()
        optimiser.step()
        seconds += time.process_time() - begin
    print(
        f"{name:12} lr {lr:g} seed {seed}  {rows[-1]['loss']:.1f} nats  {seconds:.0f} s", flush=True
    )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few steps, for the tests")
    parser.add_argument("--data", default="mnist-5000", help="a name of catlog.data.load")
    parser.add_argument("--names", nargs="+", default=["RLOO", "CritiCateR", "SIMPLE", "I-MLE"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--step", type=float, default=1.0, help="lambda of I-MLE")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--output", type=Path, help="the CSV file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    sizes = (16, 12, 3) if args.quick else (128, 40, 10)
    steps, every = (4, 2) if args.quick else (args.steps, 50)
    path = args.output or (None if args.quick else RESULTS / "subset" / "autoencoder.csv")
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    images = load(args.data)
    table = Table(path, ("estimator", "lr", "seed", "step"))
    for seed in args.seeds:
        for name in args.names:
            E = estimators(args.samples, args.step)[name]
            data = (images.train, images.test)
            table.add(train(name, E, data, sizes, seed, steps, args.lr, every))
    last = [row for row in table.rows if (row["step"], row["lr"]) == (steps, args.lr)]
    show(
        f"Loss after {steps} steps, nats per test image",
        [
            {"estimator": name, "likeliest code": mean(losses), "seeds": len(losses)}
            for name in args.names
            if (losses := [row["loss_likeliest"] for row in last if row["estimator"] == name])
        ],
    )


if __name__ == "__main__":
    main()
