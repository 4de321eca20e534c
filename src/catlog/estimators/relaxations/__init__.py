"""Estimators that differentiate through a relaxed or perturbed draw. All are biased."""

from .darn import DARN
from .decoupled_straight_through import DecoupledStraightThrough
from .direct_optimisation import DirectOptimisation
from .gapped_straight_through import GappedStraightThrough
from .gumbel_rao import GumbelRao
from .gumbel_softmax import GumbelSoftmax
from .imle import IMLE
from .minimum_variance_straight_through import MinimumVarianceStraightThrough
from .redge import ReDGE
from .reinmax import ReinMax
from .reinmax_cv import ReinMaxCV
from .reinmax_rao import ReinMaxRao
from .simple import SIMPLE
from .straight_through import StraightThrough

__all__ = [
    "DARN",
    "IMLE",
    "SIMPLE",
    "DecoupledStraightThrough",
    "DirectOptimisation",
    "GappedStraightThrough",
    "GumbelRao",
    "GumbelSoftmax",
    "MinimumVarianceStraightThrough",
    "ReDGE",
    "ReinMax",
    "ReinMaxCV",
    "ReinMaxRao",
    "StraightThrough",
]
