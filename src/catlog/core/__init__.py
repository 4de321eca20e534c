"""The contract of an estimator, and what it works with: q as factors, f, and the randomness.

These are the words of whoever writes an estimator; helpers are in the modules.
"""

from .estimator import Estimate, Estimator, Learner
from .evaluator import Evaluator
from .randomness import Randomness, Sampling
from .settings import Count, Positive, Range

__all__ = ["Count", "Estimate", "Estimator", "Evaluator", "Learner", "Positive", "Randomness"]
__all__ += ["Range", "Sampling"]
