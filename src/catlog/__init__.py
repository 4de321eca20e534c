"""catlog: differentiate through categorical sampling. ``E(f, q)`` is a differentiable expectation."""

from . import functions
from .distributions import Categoricals
from .estimators import ESTIMATORS, RLOO, Exact, GumbelSoftmax, IndeCateR, MovingAverage, Reinforce, StraightThrough
from .surrogate import Estimator, attach

__version__ = "0.1.0"

__all__ = [
    "ESTIMATORS",
    "RLOO",
    "Categoricals",
    "Estimator",
    "Exact",
    "GumbelSoftmax",
    "IndeCateR",
    "MovingAverage",
    "Reinforce",
    "StraightThrough",
    "attach",
    "functions",
]
