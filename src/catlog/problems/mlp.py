"""Multilayer perceptrons, and Keras' default initialisation, for problems and experiments."""

from itertools import pairwise

from torch import nn


def mlp(*widths: int) -> nn.Sequential:
    """Return linear layers of these widths with ReLUs between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def glorot(*networks: nn.Module) -> None:
    """Initialise layers as Keras does: uniform Glorot weights, zero biases."""
    for network in networks:
        for layer in network.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                nn.init.xavier_uniform_(layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
