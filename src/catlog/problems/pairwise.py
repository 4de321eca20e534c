"""Sums over pairs of variables, whose expectation is their value at the probabilities."""

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..functions import Potts
from ..functions import ising as spins
from .problem import Problem, Size, at_means, bits, normal, one_hot, problem


@problem("ising", interactions=True, relaxable=True)
def ising(size: Size, seed: int) -> Problem:
    r"""Weak interactions of all pairs of bits: noise grows with the number of pairs.

    .. math:: f(x) = \sum_i b_i s_i + \sum_{i<j} A_{ij} (s_i s_j + 1), \qquad s = 2x - 1
    """
    d = {"small": 10, "large": 100}[size]
    logits, fields, couplings = normal(seed, (d,), (d,), (d, d))
    couplings, fields = (couplings / d**0.5).triu(1), fields / 2
    constant = couplings.sum()

    def f(x: Tensor) -> Tensor:
        s = 2 * x - 1
        return s @ fields + ((s @ couplings) * s).sum(-1) + constant

    known = spins(couplings, fields)
    return Problem(f, (logits,), bits, structured=known, expectation=at_means(f))


@problem("potts", interactions=True, relaxable=True)
def potts(size: Size, seed: int) -> Problem:
    r"""Agreement of neighbours on a ring: many categories, few pairs, each with a large weight.

    .. math:: f(x) = \sum_i h_i(x_i) + \sum_i J_i\, [x_i = x_{i+1}]
    """
    d, k = {"small": (5, 4), "large": (60, 8)}[size]
    logits, fields, strengths = normal(seed, (d, k), (d, k), (d,))
    fields, strengths = fields / 2, 2 * strengths
    known = Potts(_ring(strengths), fields, one_hot=True)

    def f(x: Tensor) -> Tensor:
        return (x * fields).sum((-1, -2)) + (x * x.roll(-1, -2)).sum(-1) @ strengths

    def expectation(logits: Tensor) -> Tensor:
        return f(logits.softmax(-1))

    return Problem(f, (logits,), one_hot, structured=known, expectation=expectation)


def _ring(strengths: Tensor) -> Tensor:
    """Return couplings ``[d, d]`` of every variable and the next one, and of the last and first."""
    couplings = strengths[:-1].diag(1)
    couplings[0, -1] = strengths[-1]
    return couplings


@problem("xor", interactions=True, relaxable=True)
def xor(size: Size, seed: int) -> Problem:
    r"""One logit for all bits: the errors of the variables add up, so they must cancel.

    .. math:: f(x) = \sum_i x_i \oplus x_{i+1} \text{ on a ring}, \qquad
        x_i \sim \operatorname{Bernoulli}(\sigma(\theta))
    """
    d = {"small": 8, "large": 100}[size]
    (theta,) = normal(seed, (1,))
    theta = theta.abs() + 0.5  # away from 0, where the gradient is zero
    ones = torch.ones(d, 2, dtype=torch.float64)
    known = Potts(_ring(-ones[:, 0]), fields=ones)

    def f(x: Tensor) -> Tensor:
        following = x.roll(-1, -1)
        return (x + following - 2 * x * following).sum(-1)

    def law(theta: Tensor) -> Distribution:
        return bits(theta.expand(theta.shape[:-1] + (d,)))

    def expectation(theta: Tensor) -> Tensor:
        p = theta.sigmoid().squeeze(-1)
        return 2 * d * p * (1 - p)

    return Problem(f, (theta,), law, structured=known, expectation=expectation)
