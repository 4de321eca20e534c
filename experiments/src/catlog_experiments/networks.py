"""Readers of handwritten digits."""

import torch
from torch import Tensor, nn

from . import data


def _convolutions(first: int, second: int) -> list[nn.Module]:
    """Return two 5 x 5 convolutions with these numbers of channels, each with pooling."""
    layers: list[nn.Module] = []
    for channels in ((1, first), (first, second)):
        layers += [nn.Conv2d(*channels, 5), nn.ReLU(), nn.MaxPool2d(2)]
    return [*layers, nn.Flatten()]


def lenet() -> nn.Sequential:
    """Return the published network; its two pooling layers are in the code, not in the paper."""
    return nn.Sequential(
        *_convolutions(6, 16),
        nn.Linear(256, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


def conv() -> nn.Sequential:
    """Return the network of the MNIST-R experiments: 5 x 5 convolutions and dropout."""
    return nn.Sequential(
        *_convolutions(32, 64),
        nn.Linear(1024, 1024),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(1024, 10),
    )


def digit_logits(network: nn.Module, images: Tensor) -> Tensor:
    """Return the logits of the ten digits for each image."""
    return network(images.reshape(-1, 1, 28, 28)).view(*images.shape[:-2], 10)


@torch.no_grad()
def read_digits(network: nn.Module, sequences: data.Sequences) -> Tensor:
    """Return the most probable digit of every image, without dropout."""
    network.eval()
    rows = torch.arange(len(sequences), device=sequences.index.device)
    parts = [digit_logits(network, sequences.batch(part)) for part in rows.split(250)]
    network.train()
    return torch.cat(parts).argmax(-1)
