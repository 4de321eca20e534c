"""The autoencoder's training step of `benchmarks.speed` with another library's estimator.

It needs the extra ``peers``, which ``make test-peers`` installs.
"""

from math import log

import torch
from torch import Tensor
from torch.distributions import Bernoulli
from torch.nn.functional import softplus

from catlog.problems.mlp import mlp


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
