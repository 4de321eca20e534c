"""Random networks of discrete inputs."""

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from ..estimators import IndeCateR
from ..functions import FirstLayerLinear
from .problem import Problem, Size, bits, black_box, normal, one_hot, summary


def random_network(size: Size = "small", seed: int = 0) -> Problem:
    r"""A smooth function of all bits with interactions of every order: what slopes of f and critics can learn.

    .. math:: f(x) = v^\top \tanh(W x + b)

    The large version has no closed form: its reference is pooled.
    """
    d, hidden = {"small": (10, 16), "large": (100, 64)}[size]
    logits, weight, bias, last = normal(seed, (d,), (hidden, d), (hidden,), (1, hidden))
    network = (
        nn.Sequential(nn.Linear(d, hidden), nn.Tanh(), nn.Linear(hidden, 1, bias=False))
        .double()
        .requires_grad_(False)
    )
    for parameter, value in zip(
        network.parameters(), (2 * weight / d**0.5, bias, last / hidden**0.5), strict=True
    ):
        parameter.copy_(value)
    f = FirstLayerLinear(network)
    return Problem(
        "random-network",
        summary(random_network),
        black_box(f),
        (logits.requires_grad_(),),
        bits,
        interactions=True,
        relaxable=True,
        structured=f,
        pooled=IndeCateR(samples=256, draws="latin"),
        calls=100,
        size=size,
        seed=seed,
    )


def vq(size: Size = "small", seed: int = 0) -> Problem:
    r"""A code of one-hot vectors times a codebook, through a convolutional decoder; the chain rule runs through distances.

    .. math:: q(x_i = k) \propto \exp(-\|z_i - c_k\|^2 / 2), \qquad
        f(x) = \sum_j \bigl\|t_j - V \tanh(W (C x_j, C x_{j+1}, C x_{j+2}) + b)\bigr\|^2

    The parameters are the encoder's vectors z. Each output sees three codes, so the expectation is a sum over such windows.
    """
    d, k = {"small": (5, 4), "large": (32, 16)}[size]
    width, hidden, pixels, window = 4, 16, 8, 3
    z, codebook, first, bias, last, targets = normal(
        seed,
        (d, width),
        (k, width),
        (window * width, hidden),
        (hidden,),
        (hidden, pixels),
        (d - window + 1, pixels),
    )
    first, last = first / (window * width) ** 0.5, last / hidden**0.5

    def costs(windows: Tensor) -> Tensor:
        """Of every output, from the vectors that it sees: ``[..., outputs, width, window]``."""
        out = (windows.flatten(-2) @ first + bias).tanh() @ last
        return (out - targets).square().sum(-1)

    def f(x: Tensor) -> Tensor:
        return costs((x @ codebook).unfold(-2, window, 1)).sum(-1)

    def logits(z: Tensor) -> Tensor:
        return -(z.unsqueeze(-2) - codebook).square().sum(-1) / 2

    def law(z: Tensor) -> Distribution:
        return one_hot(logits(z))

    seen = codebook[torch.cartesian_prod(*[torch.arange(k)] * window)].mT.unsqueeze(
        1
    )  # every window of three codes
    table = costs(seen.expand(-1, d - window + 1, -1, -1)).mT.unflatten(-1, (k, k, k))

    def expectation(z: Tensor) -> Tensor:
        p = logits(z).softmax(-1)
        return torch.einsum(
            "...ja,...jb,...jc,jabc->...", p[..., :-2, :], p[..., 1:-1, :], p[..., 2:, :], table
        )

    return Problem(
        "vq",
        summary(vq),
        f,
        (z.requires_grad_(),),
        law,
        interactions=True,
        relaxable=True,
        expectation=expectation,
        size=size,
        seed=seed,
    )
