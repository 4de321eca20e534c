"""The contract of an estimator, and what it works with: q as factors, f, and the randomness.

An author of estimators needs these names; helpers are in the modules.
"""

from .estimator import Estimate, Estimator, Learner
from .evaluator import Evaluator
from .factors import Bits, DependentFactors, Factors, IndependentFactors, RelaxableFactors
from .randomness import Randomness, Sampling
from .settings import Count, Learned, Positive, Range

__all__ = ["Bits", "Count", "DependentFactors", "Estimate", "Estimator", "Evaluator", "Factors"]
__all__ += ["IndependentFactors", "Learned", "Learner", "Positive", "Randomness", "Range"]
__all__ += ["RelaxableFactors", "Sampling"]
