"""The product of all spins."""

from math import log, pi

import torch
from torch import Tensor

from ..functions import OfSum
from .problem import Problem, Size, at_means, bits, normal, problem


@problem("parity", interactions=True, relaxable=True)
def parity(size: Size, seed: int) -> Problem:
    r"""Every bit flips the sign of f: an interaction of all variables at once and of no fewer.

    .. math:: f(x) = \prod_i (1 - 2 x_i), \qquad \mathbb{E}[f] = \prod_i (1 - 2 p_i)
    """
    d = {"small": 8, "large": 30}[size]
    (noise,) = normal(seed, (d,))
    # Every bit is nearly certain; otherwise the expectation would vanish.
    logits = (log(2 * d) + noise / 2) * noise.sign()

    def f(x: Tensor) -> Tensor:
        return (1 - 2 * x).prod(-1)

    known = OfSum(lambda s: torch.cos(pi * s), categories=2)
    return Problem(f, (logits,), bits, structured=known, expectation=at_means(f))
