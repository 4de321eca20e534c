"""Published benchmarks of autoencoders: ``catlog run dvae --protocol ...``.

**bernoulli, gaussian**: the protocol of DisARM, ARMS, Double CV and RODEO. Layers
784-200-200-D-200-200-784 with LeakyReLU(0.3), Glorot start, D = 200 bits with the prior
Bernoulli(1/2), a sampled bound log p(x | b) + log p(b) - log q(b), batches of 100, the first 50,000
images for training, 10^6 steps (2,000 epochs).

- bernoulli: pixels are drawn as Bernoulli(intensity) again at every use. Adam with 1e-3, on
  Fashion-MNIST 3e-4.
- gaussian: pixels in [-1, 1], a learned variance for each pixel (softplus, at least 1e-3). Adam
  with 1e-4.

**categorical**: the protocol of Gapped straight-through and ReinMax. Layers 784-512-256-D K and
their mirror image with ReLUs, one-hot variables, grey pixels in a Bernoulli likelihood, the KL
divergence in closed form, all training images, batches of 100, 160 epochs. Adam with 5e-4.

Data that differ from the published: Omniglot is the official set (ink is 1), not Burda's
``chardata.mat``. Every stack of models (``--models``) trains in one step; see :mod:`.stacked`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import log, pi
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, OneHotCategorical
from torch.nn.functional import softplus

from .data import load
from .stacked import StackedMLP, glorot_by_seed, stack_estimator
from .training import Training

if TYPE_CHECKING:
    from .dvae import DVAE

FEW = 3  # draws of the second test bound: the published code draws K, whatever its flag says
LEAST_VARIANCE = 1e-3
EVERY = 10_000  # steps between two measurements, by default

Reconstruction = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Likelihood:
    """What distinguishes the protocols.

    Attributes:
        hidden: widths of the encoder's hidden layers; the decoder's are their mirror image.
        slope: of the leaky ReLUs below zero.
        train_images: number of training images of MNIST and Fashion-MNIST.
        rates: learning rates by data set; that of MNIST is that of all other sets.
        test_samples: draws per image of the test bound.
    """

    hidden: tuple[int, int]
    slope: float
    train_images: int
    rates: dict[str, float]
    test_samples: int


LIKELIHOODS = {
    "paper": Likelihood((384, 256), 0.0, 60_000, {"mnist": 1e-4}, 10),
    "bernoulli": Likelihood((200, 200), 0.3, 50_000, {"mnist": 1e-3, "fashion-mnist": 3e-4}, 100),
    "gaussian": Likelihood((200, 200), 0.3, 50_000, {"mnist": 1e-4}, 100),
    "categorical": Likelihood((512, 256), 0.0, 60_000, {"mnist": 5e-4}, 10),
}


def latent(config: "DVAE", logits: Tensor, *, one_hot: bool = True) -> Distribution:
    """Return the distribution of the latent variables: bits, or one-hot or numbered categories."""
    if config.protocol != "categorical" and config.categories == 2:
        return Independent(Bernoulli(logits=logits, validate_args=False), 1)
    logits = logits.unflatten(-1, (config.variables, config.categories))
    cls = OneHotCategorical if one_hot else Categorical
    return Independent(cls(logits=logits, validate_args=False), 1)


class StackedAutoencoders(nn.Module):
    """Encoders, decoders and, for a Gaussian likelihood, the variances of all pixels."""

    def __init__(self, config: "DVAE") -> None:
        super().__init__()
        likelihood, models = LIKELIHOODS[config.protocol], config.models
        latent = config.variables * (config.categories if config.protocol == "categorical" else 1)
        widths = (784, *likelihood.hidden, latent)
        self.encoder = StackedMLP(models, widths, likelihood.slope)
        self.decoder = StackedMLP(models, widths[::-1], likelihood.slope)
        glorot_by_seed([self.encoder, self.decoder], config.seed)
        self.spread = None
        if config.protocol == "gaussian":
            self.spread = nn.Parameter(torch.full((models, 1, 784), -0.5))


class ProtocolTask(Training):
    """A stack of autoencoders, their data and their bounds."""

    def __init__(self, config: "DVAE") -> None:
        super().__init__(config)
        self.config = config
        self.models = config.models
        self.model: StackedAutoencoders
        likelihood = LIKELIHOODS[config.protocol]
        self.test_samples = config.test_samples or likelihood.test_samples
        self.E = stack_estimator(self.E, config.models, config.variables)
        if isinstance(self.E, nn.Module):
            self.E.to(self.device)
        model = StackedAutoencoders(config).to(self.device)
        images = load(config.data)
        train, test = images.train[: likelihood.train_images], images.test
        if config.data == "omniglot":
            train, test = 1 - train, 1 - test  # ink is 1, as in Burda's version
        if config.protocol == "gaussian":
            train, test = 2 * train - 1, 2 * test - 1
        self.train, self.test = train.to(self.device), test.to(self.device)
        self.prepare(config, model, config.rate, len(self.train), EVERY)
        self.at_once = 200_000 if self.device.type == "cuda" else 10_000  # decoder's evaluations

    def observed(self, images: Float[Tensor, "*batch 784"]) -> Float[Tensor, "*batch 784"]:
        """Return what the model sees of the images: new binary pixels, or the images."""
        return images.bernoulli() if self.config.protocol == "bernoulli" else images

    def reconstruction(self, x: Float[Tensor, "models batch 784"]) -> Reconstruction:
        """Return -log p(x | b) as a function of the latent variables b."""

        def bernoulli(b: Tensor) -> Tensor:
            logits = self.model.decoder(b.flatten(3))
            return (softplus(logits) - logits * x).sum(-1)

        def gaussian(b: Tensor) -> Tensor:
            assert self.model.spread is not None
            variance = softplus(self.model.spread).clamp(min=LEAST_VARIANCE)
            constant = (2 * pi * variance).log().sum(-1) / 2
            return ((x - self.model.decoder(b)).square() / (2 * variance)).sum(-1) + constant

        return gaussian if self.config.protocol == "gaussian" else bernoulli

    def negated_bound(self, x: Tensor, logits: Tensor) -> Reconstruction:
        """Return the bound's terms that are averaged over draws, negated, as a function of b.

        With bits they include log q(b) - log p(b), where q's parameters are held fixed: its
        derivative in them has mean zero. With categories the KL divergence is added elsewhere.
        """
        f = self.reconstruction(x)
        if self.config.protocol == "categorical":
            return f
        fixed = logits.detach()
        log_ratio = self.config.variables * log(2) - softplus(fixed).sum(-1)
        return lambda b: f(b) + (b * fixed).sum(-1) + log_ratio

    def divergence(self, logits: Tensor) -> Tensor | float:
        """Return the KL divergence in closed form with categories, else 0."""
        if self.config.protocol != "categorical":
            return 0.0
        k = self.config.categories
        log_p = logits.unflatten(-1, (self.config.variables, k)).log_softmax(-1)
        return (log_p.exp() * (log_p + log(k))).sum((-1, -2))

    def loss(self, index: Tensor) -> Float[Tensor, "models batch"]:
        """Return the negated bounds, times the number of models: their mean is the sum over models
        of the mean over their images, so that every model has the gradient of a single one."""
        x = self.observed(self.train[index])
        logits = self.model.encoder(x)
        f, q = self.negated_bound(x, logits), latent(self.config, logits)
        return (self.E(f, q) + self.divergence(logits)) * self.config.models

    def measure(self, i: int) -> dict[str, float]:
        counts = {"test": self.test_samples}
        if self.config.protocol != "categorical":
            counts["test_few"] = min(FEW, self.test_samples)
        bounds = {"train": self.bounds(self.train, 1)[0]}
        bounds |= zip(counts, self.bounds(self.test, *counts.values()), strict=True)
        metrics = {"epoch": i / self.per_epoch}
        metrics |= {name: sum(values) / len(values) for name, values in bounds.items()}
        for name, values in bounds.items():
            metrics |= {f"{name}.{s}": value for s, value in enumerate(values)}
        return metrics

    @torch.no_grad()
    def bounds(self, images: Tensor, *counts: int) -> list[list[float]]:
        """Return the mean negated bound of every model, for each number of draws, in full float32.

        With bits a bound of n draws is -log of the mean of n weights p(x, b) / q(b). With
        categories it is the mean over the draws. The bounds share their draws.
        """
        models, samples = self.config.models, max(counts)
        totals = torch.zeros(len(counts), models, dtype=torch.float64, device=images.device)
        torch.set_float32_matmul_precision("highest")
        for part in images.split(max(1, self.at_once // (samples * models))):
            x = self.observed(part.expand(models, *part.shape).contiguous())
            logits = self.model.encoder(x)
            b = latent(self.config, logits).sample((samples,))
            values = self.negated_bound(x, logits)(b) + self.divergence(logits)
            for row, n in zip(totals, counts, strict=True):
                row += self._bound(values[:n]).sum(-1)
        self.config.prepare()  # the precision of training again
        return [[float(value) / len(images) for value in row] for row in totals.cpu()]

    def _bound(self, values: Float[Tensor, "n models batch"]) -> Float[Tensor, "models batch"]:
        """Return the negated bound of n draws; see :meth:`bounds`."""
        if self.config.protocol == "categorical":
            return values.mean(0)
        return log(len(values)) - (-values).logsumexp(0)
