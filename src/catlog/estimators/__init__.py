"""One short file per method, and the registry that tests, docs and benchmarks walk."""

from ..surrogate import Estimator
from .criticater import CritiCateR
from .exact import Exact
from .gumbel_softmax import GumbelSoftmax
from .indecater import IndeCateR
from .leg import LEG
from .ram import RAM
from .reinforce import MovingAverage, Reinforce
from .rloo import RLOO
from .scater import SCateR
from .straight_through import StraightThrough

ESTIMATORS: dict[str, type[Estimator]] = {
    each.__name__: each
    for each in (Exact, Reinforce, RLOO, IndeCateR, SCateR, CritiCateR, LEG, RAM, StraightThrough, GumbelSoftmax)
}

__all__ = [
    "ESTIMATORS",
    "LEG",
    "RAM",
    "RLOO",
    "CritiCateR",
    "Exact",
    "GumbelSoftmax",
    "IndeCateR",
    "MovingAverage",
    "Reinforce",
    "SCateR",
    "StraightThrough",
]
