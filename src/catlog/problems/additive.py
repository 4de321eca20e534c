"""Separate effects."""

from torch import Tensor

from ..functions import Additive
from .problem import Problem, Size, bits, normal, summary


def additive(size: Size = "small", seed: int = 0) -> Problem:
    r"""Separate effects only: whoever sums out single variables is exact, whoever scores whole points pays for all of them.

    .. math:: f(x) = \sum_i c_i(x_i), \qquad x \text{ bits}
    """
    d = {"small": 10, "large": 200}[size]
    logits, costs = normal(seed, (d,), (d, 2))
    costs /= d**0.5
    change, constant = costs[:, 1] - costs[:, 0], costs[:, 0].sum()

    def f(x: Tensor) -> Tensor:
        return x @ change + constant

    def expectation(logits: Tensor) -> Tensor:
        return f(logits.sigmoid())

    return Problem(
        "additive",
        summary(additive),
        f,
        (logits.requires_grad_(),),
        bits,
        interactions=False,
        relaxable=True,
        structured=Additive(costs),
        expectation=expectation,
        size=size,
        seed=seed,
    )
