"""Gradients of E[f(x)] for categorical x, in JAX: ``E(key, f, q)`` is a differentiable array."""

# ruff: noqa: F403  # every file lists its public names in `__all__`
from .estimator import *
from .estimators.black_box import *
from .estimators.catlog_derivative import *
from .estimators.slopecater import *
from .estimators.through import *
from .evaluator import *
from .factors import *
from .randomness import *

__version__ = "0.1.0"
