"""Random networks of discrete inputs."""

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from ..estimators import IndeCateR
from ..functions import FirstLayerLinear
from .problem import Problem, Size, bits, black_box, normal, one_hot, problem


@problem("random-network", interactions=True, relaxable=True)
def random_network(size: Size, seed: int) -> Problem:
    r"""A smooth function of all bits with learnable interactions of every order.

    .. math:: f(x) = v^\top \tanh(W x + b)

    The large version has no closed form: its reference is pooled.
    """
    d, hidden = {"small": (10, 16), "large": (100, 64)}[size]
    logits, weight, bias, last = normal(seed, (d,), (hidden, d), (hidden,), (1, hidden))
    network = nn.Sequential(nn.Linear(d, hidden), nn.Tanh(), nn.Linear(hidden, 1, bias=False))
    network = network.double().requires_grad_(False)
    values = (2 * weight / d**0.5, bias, last / hidden**0.5)
    for parameter, value in zip(network.parameters(), values, strict=True):
        parameter.copy_(value)
    f = FirstLayerLinear(network)
    pooled = IndeCateR(samples=256, sampling="latin")
    return Problem(black_box(f), (logits,), bits, structured=f, pooled=pooled, calls=100)


@problem("vq", interactions=True, relaxable=True)
def vq(size: Size, seed: int) -> Problem:
    r"""Codes read by a convolutional decoder: the chain rule runs through distances.

    .. math:: q(x_i = k) \propto \exp(-\|z_i - c_k\|^2 / 2), \qquad
        f(x) = \sum_j \bigl\|t_j - V \tanh(W (C x_j, C x_{j+1}, C x_{j+2}) + b)\bigr\|^2

    The parameters are the encoder's vectors z. Every output sees three codes, so the expectation is
    a sum over windows of three.
    """
    d, k = {"small": (5, 4), "large": (32, 16)}[size]
    width, hidden, pixels, window = 4, 16, 8, 3
    vectors = [(d, width), (k, width)]
    layers = [(window * width, hidden), (hidden,), (hidden, pixels), (d - window + 1, pixels)]
    z, codebook, first, bias, last, targets = normal(seed, *vectors, *layers)
    first, last = first / (window * width) ** 0.5, last / hidden**0.5

    def costs(windows: Tensor) -> Tensor:
        """Return every output's cost from its vectors, ``[..., outputs, width, window]``."""
        out = (windows.flatten(-2) @ first + bias).tanh() @ last
        return (out - targets).square().sum(-1)

    def f(x: Tensor) -> Tensor:
        return costs((x @ codebook).unfold(-2, window, 1)).sum(-1)

    def logits(z: Tensor) -> Tensor:
        return -(z.unsqueeze(-2) - codebook).square().sum(-1) / 2

    def law(z: Tensor) -> Distribution:
        return one_hot(logits(z))

    windows = codebook[torch.cartesian_prod(*[torch.arange(k)] * window)].mT.unsqueeze(1)
    table = costs(windows.expand(-1, d - window + 1, -1, -1)).mT.unflatten(-1, (k, k, k))

    def expectation(z: Tensor) -> Tensor:
        p = logits(z).softmax(-1)
        return torch.einsum(
            "...ja,...jb,...jc,jabc->...", p[..., :-2, :], p[..., 1:-1, :], p[..., 2:, :], table
        )

    return Problem(f, (z,), law, expectation=expectation)
