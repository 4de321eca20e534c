"""Estimators that differentiate through a relaxed or perturbed draw. All are biased."""

from .darn import DARN
from .direct_optimisation import DirectOptimisation
from .gumbel_rao import GumbelRao
from .gumbel_softmax import GumbelSoftmax
from .imle import IMLE
from .reinmax import ReinMax
from .simple import SIMPLE
from .straight_through import StraightThrough

__all__ = [
    "DARN",
    "IMLE",
    "SIMPLE",
    "DirectOptimisation",
    "GumbelRao",
    "GumbelSoftmax",
    "ReinMax",
    "StraightThrough",
]
