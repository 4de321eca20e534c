"""Probabilities of points whose log-weights are sums of huge numbers, without rounding errors."""

from collections.abc import Iterable
from fractions import Fraction
from math import inf

import torch
from torch import Tensor


def exact_log_softmax(terms: Iterable[Iterable[float]]) -> Tensor:
    """Return the normalised log-probabilities of points, given each one's log-weights to add up.

    The sums are exact, so 1e30 + 1 - 1e30 is 1.
    """
    sums = [
        None if -inf in row else sum(map(Fraction, row), Fraction(0)) for row in map(tuple, terms)
    ]
    most = max(total for total in sums if total is not None)
    differences = [-inf if total is None else float(total - most) for total in sums]
    return torch.tensor(differences, dtype=torch.float64).log_softmax(0)
