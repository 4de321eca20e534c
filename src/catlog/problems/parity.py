"""The product of all spins."""

from math import log, pi

import torch
from torch import Tensor

from ..functions import OfSum
from .problem import Problem, Size, bits, normal, summary


def parity(size: Size = "small", seed: int = 0) -> Problem:
    r"""Every bit flips the sign of f: an interaction of all variables at once and of no fewer.

    .. math:: f(x) = \prod_i (1 - 2 x_i), \qquad \mathbb{E}[f] = \prod_i (1 - 2 p_i)
    """
    d = {"small": 8, "large": 30}[size]
    (noise,) = normal(seed, (d,))
    logits = (
        log(2 * d) + noise / 2
    ) * noise.sign()  # each bit rather sure, or the expectation would vanish

    def f(x: Tensor) -> Tensor:
        return (1 - 2 * x).prod(-1)

    def expectation(logits: Tensor) -> Tensor:
        return f(logits.sigmoid())

    return Problem(
        "parity",
        summary(parity),
        f,
        (logits.requires_grad_(),),
        bits,
        interactions=True,
        relaxable=True,
        structured=OfSum(lambda s: torch.cos(pi * s), categories=2),
        expectation=expectation,
        size=size,
        seed=seed,
    )
