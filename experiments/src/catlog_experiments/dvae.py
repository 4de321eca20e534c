"""Experiment 3 of the paper: a discrete variational autoencoder."""

from dataclasses import dataclass
from math import log
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from catlog import RLOO, GumbelSoftmax, IndeCateR
from catlog.functions import BernoulliCrossEntropy, FirstLayerLinear
from catlog.problems.mlp import glorot, mlp

from .data import for_autoencoder, load
from .named_estimators import OnNumbers, takes_one_hot, with_temperature
from .protocol import LIKELIHOODS, ProtocolTask, latent
from .settings import AtLeastTwo, Count, Counted, Labels, Positive, Settings
from .training import Task, Training, gradient_statistics


@dataclass(frozen=True, kw_only=True)
class DVAE(Settings):
    """Discrete autoencoder, trained on the evidence lower bound.

    Its layers are 784-384-256-D variables-256-384-784, and the KL divergence
    is computed in closed form. With more than two categories, the decoder reads
    category numbers, as in the published code. Other protocols of the literature have
    models and data of their own (see ``catlog_experiments.protocol``).
    """

    data: Literal["mnist-5000", "mnist", "fashion-mnist", "omniglot"] = "mnist-5000"
    """Images; mnist-5000 needs no files, the others are read from CATLOG_DATA or downloaded."""
    variables: Count = 200
    """D, the number of latent variables."""
    categories: AtLeastTwo = 2
    """K, the number of categories of a variable."""
    epochs: Count = 20
    """Passes over the training images (the paper: 1000)."""
    batch: Count = 100
    """Images per step."""
    learning_rate: Positive | None = None
    """Learning rate of Adam; None: the protocol's (the paper: 1e-4)."""
    anneal: bool = True
    """Gumbel-Softmax: lower the temperature from 1 to 0.1 by exp(-0.01) per epoch."""
    every: Count | None = None
    """Log every N steps; None: once per epoch."""
    test_samples: Count | None = None
    """Draws per image for the test bound; None: 10 (published code: 1000), or the protocol's."""
    gradient_repeats: Counted = 5
    """Gradient estimates of a minibatch at logged points (the paper's protocol); below 2: none."""
    protocol: Literal["paper", "bernoulli", "gaussian", "categorical"] = "paper"
    """The paper's model, or a benchmark of binary (two likelihoods) or categorical autoencoders."""
    models: Count = 1
    """Models that train in one step, with the seeds seed, seed + 1, ... (not with the paper's)."""

    name: ClassVar[str] = "dvae"
    headline: ClassVar[tuple[str, str]] = ("test", "negated test ELBO, nats")
    labels: ClassVar[Labels] = {
        "IndeCateR": IndeCateR(2),
        "IndeCateR-D": IndeCateR(1, per_variable=True),
        "RLOO-F": RLOO(800),
        "RLOO-S": RLOO(2),
        "GS-F": GumbelSoftmax(800, hard=True, temperature=1.0),
        "GS-S": GumbelSoftmax(2, hard=True, temperature=1.0),
    }
    categorical: ClassVar[Labels] = {
        **labels,
        "IndeCateR": IndeCateR(1),
        "RLOO-F": RLOO(2000),
        "GS-F": GumbelSoftmax(2000, hard=True, temperature=1.0),
    }
    sizes: ClassVar[tuple[str, ...]] = ("data", "variables", "categories")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol == "paper" and self.models > 1:
            raise ValueError(
                f"--models must be 1 with --protocol paper, but {self.models} was given. Use "
                "several seeds instead."
            )
        if self.protocol in ("bernoulli", "gaussian") and self.categories != 2:
            raise ValueError(
                f"--categories must be 2 with --protocol {self.protocol}, but {self.categories} "
                "was given. Use --protocol categorical."
            )

    @property
    def methods(self) -> Labels:
        return self.labels if self.categories == 2 else self.categorical

    @property
    def rate(self) -> float:
        """The learning rate of Adam."""
        rates = LIKELIHOODS[self.protocol].rates
        return self.learning_rate or rates.get(self.data, rates["mnist"])

    def task(self) -> Task:
        return DVAETask(self) if self.protocol == "paper" else ProtocolTask(self)


class DVAETask(Training):
    """Model, data and bound."""

    saved = (*Training.saved, "temperature")

    def __init__(self, config: DVAE) -> None:
        super().__init__(config)
        self.config = config
        self.E, self.temperature = with_temperature(self.E, 1.0, self.device)
        self.start = float(self.temperature)
        d, k = config.variables, config.categories
        self.encoder = mlp(784, 384, 256, d if k == 2 else d * k)
        self.decoder = mlp(d, 256, 384, 784)
        glorot(self.encoder, self.decoder)
        model = nn.ModuleDict({"encoder": self.encoder, "decoder": self.decoder}).to(self.device)
        train, test = for_autoencoder(load(config.data))
        self.train, self.test = train.to(self.device), test.to(self.device)
        self.test_samples = config.test_samples or LIKELIHOODS["paper"].test_samples
        self.prepare(config, model, config.rate, len(self.train))

    def divergence(self, logits: Tensor) -> Tensor:
        """Return KL(q || uniform prior), in closed form."""
        if self.config.categories == 2:
            return (logits.sigmoid() * logits - softplus(logits) + log(2)).sum(-1)
        k = self.config.categories
        log_p = logits.unflatten(-1, (self.config.variables, k)).log_softmax(-1)
        return (log_p.exp() * log_p + log(k) / k).sum((-1, -2))

    def reconstruction(self, images: Tensor, *, relaxed: bool) -> nn.Module:
        """Return the negated log-likelihood of the images as a function of the latent variables."""
        head, k = BernoulliCrossEntropy(images), self.config.categories
        if k > 2 and relaxed:
            return OnNumbers(FirstLayerLinear(self.decoder, head), k)
        return FirstLayerLinear(self.decoder, head, categories=k)

    def loss(self, index: Tensor) -> Tensor:
        """Return the negated evidence lower bound of images."""
        images, relaxed = self.train[index], takes_one_hot(self.E)
        logits = self.encoder(images)
        f = self.reconstruction(images, relaxed=relaxed)
        return self.E(f, latent(self.config, logits, one_hot=relaxed)) + self.divergence(logits)

    def step(self, i: int) -> None:
        if self.config.anneal and i % self.per_epoch == 0:
            decay = -0.01 * (i // self.per_epoch)
            self.temperature.copy_((torch.tensor(decay).exp() * self.start).clamp(min=0.1))
        super().step(i)

    def measure(self, i: int) -> dict[str, float]:
        metrics = self.progress(i)
        metrics["test"] = self.mean_bound(self.test, self.test_samples)
        if self.config.gradient_repeats > 1:
            index = self.index(0)
            metrics |= gradient_statistics(
                lambda: self.loss(index).mean(),
                list(self.encoder.parameters()),
                list(self.decoder.parameters()),
                self.config.gradient_repeats,
            )
        return metrics

    @torch.no_grad()
    def mean_bound(self, images: Tensor, samples: int) -> float:
        """Return the mean negated bound of the images, with ``samples`` draws for each."""
        totals = []
        for part in images.split(max(1, 10_000 // samples)):
            logits = self.encoder(part)
            points = latent(self.config, logits, one_hot=False).sample((samples,))
            losses = self.reconstruction(part, relaxed=False)(points).mean(0)
            totals.append((losses + self.divergence(logits)).sum())
        return float(torch.stack(totals).sum()) / len(images)
