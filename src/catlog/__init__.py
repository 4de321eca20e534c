"""catlog: differentiate through categorical sampling. ``E(f, q)`` is a differentiable expectation."""

from . import functions
from .compiled import compiled_step
from .distributions import Categoricals
from .estimators import (
    ESTIMATORS,
    LEG,
    RAM,
    RLOO,
    CritiCateR,
    Exact,
    GumbelSoftmax,
    IndeCateR,
    MovingAverage,
    Reinforce,
    SCateR,
    StraightThrough,
)
from .structured import Autoregressive, BayesianNetwork, MarkovChain, Node, Ordered
from .surrogate import Estimator, attach

__version__ = "0.1.0"

__all__ = [
    "ESTIMATORS",
    "LEG",
    "RAM",
    "RLOO",
    "Autoregressive",
    "BayesianNetwork",
    "Categoricals",
    "CritiCateR",
    "Estimator",
    "Exact",
    "GumbelSoftmax",
    "IndeCateR",
    "MarkovChain",
    "MovingAverage",
    "Node",
    "Ordered",
    "Reinforce",
    "SCateR",
    "StraightThrough",
    "attach",
    "compiled_step",
    "functions",
]
