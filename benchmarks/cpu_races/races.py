"""The three races: model, data and measure."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, OneHotCategorical
from torch.nn.functional import avg_pool2d, cross_entropy

from catlog import Estimator
from catlog.problems.mlp import mlp
from catlog_experiments import DVAE
from catlog_experiments.data import load
from catlog_experiments.dvae import DVAETask
from catlog_experiments.training import Training, adam

from .racers import estimator_of, settings_of

BATCH = 100
CPU = torch.device("cpu")
# Both bring a good estimator to its target in half a minute, before the model has learned all
# training images by heart.
AUTOENCODER_RATE = 1e-3
ATTENTION_RATE = 3e-4
MEASURING_SEED = 20_000
GLIMPSES = 2
PATCHES = 16


class Task(Protocol):
    """A model in training with one estimator."""

    def use(self, E: Estimator) -> None:
        """Continue with another estimator."""

    def step(self, i: int) -> None:
        """Train on the batch of iteration i."""

    def level(self) -> float:
        """Return the bound or the accuracy on the training images."""

    def problem(self) -> tuple[Callable[[Tensor], Tensor], Distribution]:
        """Return f and q of the first batch."""


class Autoencoder(DVAETask):
    """The autoencoder of `catlog run dvae` on MNIST-5000, with a constant temperature."""

    def __init__(self, method: str, seed: int, **sizes: Any) -> None:
        settings: dict[str, Any] = {"device": "cpu", "compile": "no", "batch": BATCH}
        settings |= {"learning_rate": AUTOENCODER_RATE, "anneal": False, "gradient_repeats": 0}
        super().__init__(DVAE(seed=seed, **settings, **settings_of(method), **sizes))

    def use(self, E: Estimator) -> None:
        self.E = E

    def level(self) -> float:
        return self.mean_bound(self.train, 1)

    def problem(self) -> tuple[Callable[[Tensor], Tensor], Distribution]:
        images = self.train[self.training.index(0)]
        q = self.distribution(self.encoder(images), relaxed=False)
        return self.reconstruction(images, relaxed=False), q


@dataclass(frozen=True)
class EagerBatches:
    """Batches of a training on a CPU, in eager mode."""

    seed: int
    batch: int = BATCH
    compiles: bool = False
    torch_device: torch.device = CPU


class HardAttention:
    """A classifier that sees two of 16 patches of a digit; a policy says which.

    The policy sees a thumbnail of 4 x 4 pixels. x has a one-hot vector per glimpse. f is
    multilinear in what is seen, so it is defined between the categories as well.
    """

    def __init__(self, method: str, seed: int) -> None:
        self.E = estimator_of(method)
        data = load("mnist-5000")
        images = data.train.view(-1, 1, 28, 28)
        self.thumbnails = avg_pool2d(images, 7).flatten(1)
        self.patches = images.view(-1, 4, 7, 4, 7).transpose(2, 3).reshape(-1, PATCHES, 49)
        self.labels = data.train_labels
        self.policy = mlp(PATCHES, 64, GLIMPSES * PATCHES)
        self.classifier = mlp(PATCHES + 784, 64, 10)
        model = nn.ModuleList([self.policy, self.classifier])
        batches = EagerBatches(seed)
        optimiser = adam(model.parameters(), ATTENTION_RATE, self.E, batches.torch_device)
        self.training = Training(
            batches, self.loss, model, self.E, optimiser, examples=len(self.labels)
        )

    def use(self, E: Estimator) -> None:
        self.E = E

    def glimpses(self, index: Tensor) -> Distribution:
        logits = self.policy(self.thumbnails[index]).unflatten(-1, (GLIMPSES, PATCHES))
        return Independent(OneHotCategorical(logits=logits, validate_args=False), 1)

    def classify(self, index: Tensor, x: Tensor) -> Tensor:
        """Return logits ``[n, batch, 10]`` of the digits for glimpses ``[n, batch, 2, 16]``."""
        first, second = x.unbind(-2)
        seen = first + second - first * second  # a patch seen twice is seen
        pixels = (self.patches[index] * seen.unsqueeze(-1)).flatten(-2)
        return self.classifier(torch.cat([seen, pixels], -1))

    def function(self, index: Tensor) -> Callable[[Tensor], Tensor]:
        def f(x: Tensor) -> Tensor:
            logits = self.classify(index, x)
            labels = self.labels[index].expand(len(x), -1)
            return cross_entropy(logits.movedim(-1, 1), labels, reduction="none")

        return f

    def loss(self, index: Tensor) -> Tensor:
        return self.E(self.function(index), self.glimpses(index))

    def step(self, i: int) -> None:
        self.training.step(i)

    @torch.no_grad()
    def level(self) -> float:
        """Return the accuracy over all training images, with 8 draws each."""
        index = torch.arange(len(self.labels))
        q = self.glimpses(index)
        correct = 0
        for _ in range(8):
            logits = self.classify(index, q.sample((1,)))[0]
            correct += int((logits.argmax(-1) == self.labels).sum())
        return correct / (8 * len(self.labels))

    def problem(self) -> tuple[Callable[[Tensor], Tensor], Distribution]:
        index = self.training.index(0)
        return self.function(index), self.glimpses(index)


@dataclass(frozen=True)
class Race:
    """A race.

    Attributes:
        make: makes the task of an estimator and a seed.
        grain: what a target is rounded to.
        is_rising: whether more is better.
    """

    make: Callable[[str, int], Task]
    grain: float
    is_rising: bool = False


def bits(method: str, seed: int) -> Task:
    return Autoencoder(method, seed)


def one_hot(method: str, seed: int) -> Task:
    return Autoencoder(method, seed, variables=20, categories=10, reads="one-hot")


RACES = {
    "bits": Race(bits, 1.0),
    "one-hot": Race(one_hot, 1.0),
    "attention": Race(HardAttention, 0.005, is_rising=True),
}


def started(race: str, method: str, seed: int) -> Task:
    """Return the task at its start, which depends on the race and the seed alone."""
    torch.manual_seed(seed)
    return RACES[race].make(method, seed)


def measured(task: Task) -> float:
    """Return the task's measure, with the same random numbers at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(MEASURING_SEED)
        return task.level()
