"""Separate effects."""

from torch import Tensor

from ..functions import Additive
from .problem import Problem, Size, at_means, bits, normal, problem


@problem("additive", interactions=False, relaxable=True)
def additive(size: Size, seed: int) -> Problem:
    r"""Separate effects only: summing out one variable at a time is exact.

    .. math:: f(x) = \sum_i c_i(x_i), \qquad x \text{ bits}
    """
    d = {"small": 10, "large": 200}[size]
    logits, costs = normal(seed, (d,), (d, 2))
    costs /= d**0.5
    change, constant = costs[:, 1] - costs[:, 0], costs[:, 0].sum()

    def f(x: Tensor) -> Tensor:
        return x @ change + constant

    return Problem(f, (logits,), bits, structured=Additive(costs), expectation=at_means(f))
