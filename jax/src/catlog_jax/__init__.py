"""Gradients of E[f(x)] for categorical x, in JAX: ``E(key, f, q)`` is a differentiable array."""

# ruff: noqa: F403  # every file lists its public names in `__all__`
from .dependent import *
from .estimator import *
from .estimators.control_variates import *
from .estimators.coupled import *
from .estimators.exact import *
from .estimators.indecater import *
from .estimators.scater import *
from .estimators.score_function import *
from .estimators.sets import *
from .estimators.slopecater import *
from .estimators.straight_through import *
from .evaluator import *
from .factors import *
from .randomness import *
from .sample import *

__version__ = "0.1.0"
