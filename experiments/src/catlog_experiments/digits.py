"""Networks that read handwritten digits, trained on what follows from the digits they read."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent

from catlog.problems.mlp import glorot

from . import data
from .training import Training, adam


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


class DigitsTask(Training):
    """A network that reads digits, and sequences of images for training and for tests."""

    def prepare_reader(self, config: Any, sequences: data.Addition, network: nn.Module) -> None:
        """Prepare the training of ``network`` on the sequences, by Adam."""
        self.train, self.test = sequences.train.to(self.device), sequences.test.to(self.device)
        glorot(network)
        network.to(self.device)
        optimiser = adam(network.parameters(), config.learning_rate, self.E, self.device)
        self.prepare(config, network, optimiser, len(self.train))

    def logits(self, images: Float[Tensor, "*batch 28 28"]) -> Float[Tensor, "*batch 10"]:
        """Return the logits of the ten digits for each image."""
        return self.model(images.reshape(-1, 1, 28, 28)).view(*images.shape[:-2], 10)

    def distribution(self, logits: Tensor) -> Distribution:
        """Return the distribution of the digits of each sequence."""
        return Independent(Categorical(logits=logits, validate_args=False), 1)

    @torch.no_grad()
    def read_digits(self) -> Tensor:
        """Return the most probable digit of every test image, without dropout."""
        self.model.eval()
        rows = torch.arange(len(self.test), device=self.device)
        parts = [self.logits(self.test.batch(part)) for part in rows.split(250)]
        self.model.train()
        return torch.cat(parts).argmax(-1)
