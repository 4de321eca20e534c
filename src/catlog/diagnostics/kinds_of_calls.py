"""Estimators whose calls are of two kinds, by the toss of a coin: SlopeCateR with ``every``."""

from collections.abc import Callable
from typing import TypeVar

from ..core.estimator import Estimator
from ..estimators import SlopeCateR

Result = TypeVar("Result")


def shares_of_kinds(E: Estimator) -> tuple[float, ...]:
    """Return the probability of each kind of call; (1.0,) if all calls are alike.

    >>> shares_of_kinds(SlopeCateR(every=4)), shares_of_kinds(SlopeCateR())
    ((0.25, 0.75), (1.0,))
    """
    if isinstance(E, SlopeCateR) and E.every > 1 and E.corrects is None:
        return 1 / E.every, 1 - 1 / E.every
    return (1.0,)


def of_each_kind(E: Estimator, call: Callable[[], Result]) -> list[Result]:
    """Return what `call` returns if E's calls in it are of the first kind, the second, ..."""
    if len(shares_of_kinds(E)) == 1:
        return [call()]
    assert isinstance(E, SlopeCateR)
    results = []
    for corrects in (True, False):
        with E.deciding(corrects):
            results.append(call())
    return results


def mean_over_kinds(E: Estimator, call: Callable[[], float]) -> float:
    """Return the mean of what `call` returns over the kinds of E's calls."""
    pairs = zip(shares_of_kinds(E), of_each_kind(E, call), strict=True)
    return sum(share * result for share, result in pairs)
