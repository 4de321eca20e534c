"""The estimators that :func:`catlog.advise` tries, and when."""

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from ..core.categories import Kind
from ..core.estimator import Estimator
from ..estimators import (
    ARMS,
    BBVI,
    DARN,
    LEG,
    RAM,
    RLOO,
    CritiCateR,
    DoubleCV,
    Exact,
    GumbelSoftmax,
    IndeCateR,
    MemoryCateR,
    MuProp,
    ReinMax,
    SlopeCateR,
    StraightThrough,
)
from .structure import Structure

Condition = Callable[[Structure], bool]


def _always(structure: Structure) -> bool:
    return True


@dataclass(frozen=True)
class Candidate:
    """An estimator to try, with as many draws as the budget allows.

    Attributes:
        estimator: The prototype, of which a copy is used. Its own contract says which distributions
            it supports and whether it needs a derivative of f.
        when: A further condition on f and q under which it is worth a try.
        coefficients: Names of scalar parameters in which its gradient is affine. They are fitted to
            the draws of the pilot.
        expensive: Its own arithmetic may cost more than f and grows faster than its draws, so its
            repeats are not batched.
        warm_up: The steps for which it learns, if it does, before its estimates count.
        otherwise: The reason that is reported if the condition is not met.
    """

    estimator: Estimator
    when: Condition = _always
    coefficients: tuple[str, ...] = ()
    expensive: bool = False
    warm_up: int = 1
    otherwise: str = "it is not worth a try here"


def _more_variables_than(m: int) -> Condition:
    # If f has its own table, all variables cost as much as m, with less variance.
    return lambda structure: structure.d > m and not structure.has_own_table


def _black_box_larger_than(m: int) -> Condition:
    return lambda structure: _more_variables_than(m)(structure) and not structure.has_slope


def _is_structured(structure: Structure) -> bool:
    return structure.kind == Kind.STRUCTURED


_is_relaxable: Condition = attrgetter("is_relaxable")
_is_fixed: Condition = attrgetter("is_fixed")
NOT_FIXED = "it needs an f that never changes between steps; fixed=True says that yours does not"

# In the order in which they are tried, but for those that need many evaluations, which come last.
# GumbelSoftmax without `hard` is not among them: it trains the parameters of f at relaxed points.
CANDIDATES: tuple[Candidate, ...] = (
    Candidate(RLOO()),
    Candidate(ReinMax(sampling="latin"), _is_relaxable),
    Candidate(SlopeCateR()),
    Candidate(SlopeCateR(every=4)),
    Candidate(IndeCateR(sampling="latin", variables=1), _more_variables_than(1)),
    Candidate(GumbelSoftmax(temperature=1.0, hard=True, sampling="latin"), _is_relaxable),
    Candidate(IndeCateR(sampling="latin")),
    Candidate(Exact()),
    Candidate(DoubleCV(), coefficients=("alpha",)),
    Candidate(IndeCateR(sampling="latin", variables=4), _more_variables_than(4)),
    Candidate(CritiCateR(), expensive=True),
    Candidate(ARMS()),
    Candidate(RAM(), _is_structured),
    Candidate(LEG(), _is_structured),
    Candidate(BBVI()),
    Candidate(MemoryCateR(), _is_fixed, expensive=True, warm_up=8, otherwise=NOT_FIXED),
    Candidate(StraightThrough(sampling="latin")),
    Candidate(MuProp(), _is_relaxable),
    Candidate(IndeCateR(sampling="latin", variables=1, control="none"), _black_box_larger_than(1)),
    Candidate(IndeCateR(sampling="latin", variables=4, control="none"), _black_box_larger_than(4)),
    Candidate(IndeCateR(sampling="latin", per_variable=True), lambda structure: structure.d > 1),
    Candidate(DARN(sampling="latin"), _is_relaxable),
)
