"""The autoencoder's training step of `benchmarks.speed` with another library's estimator.

    python -m benchmarks.peers --samples 2 --device cpu     # milliseconds per step

Needs the extra ``peers`` (``make test-peers`` installs it); without it, it prints a message.
"""

import sys
from collections.abc import Callable
from functools import partial
from math import log
from statistics import median

import torch
from torch import Tensor
from torch.distributions import Bernoulli
from torch.nn.functional import softplus

from catlog.problems.mlp import mlp

from .command_line import argument_parser
from .turns import seconds_in_turns


class StorchasticStep:
    """A step of the paper's autoencoder by the score function with a leave-one-out baseline."""

    def __init__(self, samples: int, device: str) -> None:
        import storch

        torch.manual_seed(0)
        self.encoder = mlp(784, 384, 256, 200).to(device)
        self.decoder = mlp(200, 256, 384, 784).to(device)
        fused = torch.device(device).type == "cuda" or None  # as in benchmarks.speed
        self.optimiser = torch.optim.Adam(
            [*self.encoder.parameters(), *self.decoder.parameters()], 1e-4, fused=fused
        )
        self.storch = storch
        self.method = storch.method.ScoreFunction(
            "x", n_samples=samples, baseline_factory="batch_average"
        ).to(device)

    def __call__(self, images: Tensor) -> None:
        storch = self.storch

        def cross_entropy(x: Tensor) -> Tensor:
            pixels = self.decoder(x)
            return (softplus(pixels) - pixels * images).sum(-1)

        def divergence(logits: Tensor) -> Tensor:  # to a prior of fair bits
            return (logits.sigmoid() * logits - softplus(logits) + log(2)).sum(-1)

        self.optimiser.zero_grad()
        logits = storch.denote_independent(self.encoder(images), 0, "images")
        x = self.method(Bernoulli(logits=logits, validate_args=False))
        storch.add_cost(storch.deterministic(cross_entropy)(x), "cross-entropy")
        storch.add_cost(storch.deterministic(divergence)(logits), "divergence")
        storch.backward()  # of the mean over images and samples
        self.optimiser.step()


def storchastic_step(samples: int, device: str) -> Callable[[Tensor], None] | None:
    """Return a training step on images ``[100, 784]``; None where storchastic is missing."""
    try:
        return StorchasticStep(samples, device)
    except ModuleNotFoundError as error:
        print(
            f"peers: no storchastic step ({error}). Install it with: make test-peers",
            file=sys.stderr,
        )
        return None


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=11)
    args = parser.parse_args()
    step = storchastic_step(args.samples, args.device)
    if step is None:
        return
    images = (torch.rand(100, 784, device=args.device) < 0.2).float()
    (times,) = seconds_in_turns({"step": partial(step, images)}, args.repeats).values()
    print(f"storchastic 0.3.7, RLOO-{args.samples}: {1e3 * median(times):.1f} ms per step")


if __name__ == "__main__":
    main()
