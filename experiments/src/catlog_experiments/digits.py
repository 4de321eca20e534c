"""Networks that read handwritten digits, trained on what a program computes of these digits."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.distributions import Categorical, Independent

from catlog import Estimator, log_expectation
from catlog.functions import OfSum
from catlog.problems.mlp import glorot

from . import data
from .training import Training

Digits = Int64[Tensor, "*lead d"]
Results = Int64[Tensor, "*lead outputs"]


def _convolutions(first: int, second: int) -> list[nn.Module]:
    """Return two 5 x 5 convolutions with these numbers of channels, each with pooling."""
    layers: list[nn.Module] = []
    for channels in ((1, first), (first, second)):
        layers += [nn.Conv2d(*channels, 5), nn.ReLU(), nn.MaxPool2d(2)]
    return [*layers, nn.Flatten()]


def lenet() -> nn.Sequential:
    """Return the published network; its two pooling layers are in the code, not in the paper."""
    linear = nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)
    return nn.Sequential(*_convolutions(6, 16), *linear)


def conv() -> nn.Sequential:
    """Return the network of the MNIST-R experiments: 5 x 5 convolutions and dropout."""
    linear = nn.Linear(1024, 1024), nn.ReLU(), nn.Dropout(0.5), nn.Linear(1024, 10)
    return nn.Sequential(*_convolutions(32, 64), *linear)


def deep() -> nn.Sequential:
    """Return six 3 x 3 convolutions with batch normalisation and dropout."""
    layers: list[nn.Module] = []
    for width, channels in ((32, 1), (64, 32), (128, 64)):
        for inputs in (channels, width):
            layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        layers += [nn.MaxPool2d(2), nn.Dropout(0.25)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 9, 10))


def total(digits: Digits) -> Results:
    """Return the sum of the digits, as the only result."""
    return digits.sum(-1, keepdim=True)


class DigitsTask(Training):
    """A network that reads sequences of images, and the likelihood of a program's results.

    Args:
        config: an experiment.
        program: a map from digits to the results, which are the only labels of training.
        digits: the length of a sequence.
        network: returns a network.
        value: estimates the values of expectations; None: the estimator itself.
        sequences: further arguments of :func:`.data.addition`.
    """

    def __init__(
        self,
        config: Any,
        program: Callable[[Digits], Results],
        digits: int,
        network: Callable[[], nn.Module],
        value: Estimator | None = None,
        **sequences: Any,
    ) -> None:
        super().__init__(config)
        self.program = program
        self.value = value
        examples = data.addition(data.load(config.data), digits, **sequences)
        self.train, self.test = examples.train.to(self.device), examples.test.to(self.device)
        self.results, self.test_results = program(self.train.labels), program(self.test.labels)
        reader = network()
        glorot(reader)
        reader.to(self.device)
        self.prepare(config, reader, config.learning_rate, len(self.train))

    def loss(self, index: Tensor) -> Tensor:
        """Return minus the logarithms of the estimated probabilities of the right results.

        A result whose estimated probability is zero has the loss -log(1e-8) and no gradient.
        IndeCateR's estimate is Rao-Blackwellised, so it is seldom zero.
        """
        q = Independent(Categorical(logits=self.training_logits(index), validate_args=False), 1)
        f, outputs = self.function(self.results[index])
        log_probs = log_expectation(self.E, f, q, floor=1e-8, value=self.value, outputs=outputs)
        return -log_probs.sum(-1) if outputs else -log_probs

    def training_logits(self, index: Tensor) -> Float[Tensor, "batch digits 10"]:
        """Return the logits of the digits of training sequences."""
        return self.logits(self.train.batch(index))

    def function(self, results: Results) -> tuple[Callable[[Tensor], Tensor], int]:
        """Return whether the sum is right, as a function of digits, and its output dimensions."""
        sums = results.squeeze(-1)
        return OfSum(lambda x: x == sums, categories=10), 0

    def measure(self, i: int) -> dict[str, float]:
        """Return the test accuracy of whole examples, of several results, and of digits."""
        digits = self.read_digits()
        right: Bool[Tensor, "examples outputs"] = self.program(digits) == self.test_results
        metrics = {"accuracy": float(right.all(-1).float().mean())}
        if right.shape[-1] > 1:
            metrics["result_accuracy"] = float(right.float().mean())
        metrics["digit_accuracy"] = float((digits == self.test.labels).float().mean())
        return metrics | self.progress(i)

    def logits(self, images: Float[Tensor, "*batch 28 28"]) -> Float[Tensor, "*batch 10"]:
        """Return the logits of the ten digits for each image."""
        return self.model(images.reshape(-1, 1, 28, 28)).view(*images.shape[:-2], 10)

    @torch.no_grad()
    def read_digits(self) -> Tensor:
        """Return the most probable digit of every test image, without dropout."""
        self.model.eval()
        rows = torch.arange(len(self.test), device=self.device)
        parts = [self.logits(self.test.batch(part)) for part in rows.split(250)]
        self.model.train()
        return torch.cat(parts).argmax(-1)
