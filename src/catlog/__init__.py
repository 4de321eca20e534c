"""Differentiate through categorical sampling: ``E(f, q)`` is a differentiable expectation."""

from importlib import import_module
from typing import TYPE_CHECKING

from . import distributions as distributions
from . import estimators as estimators
from . import functions as functions
from .compiled import compiled_step as compiled_step
from .core.estimator import Estimate as Estimate
from .core.estimator import Estimator as Estimator
from .core.estimator import Learner as Learner
from .core.evaluator import Evaluator as Evaluator
from .core.factors import Factors as Factors
from .core.noise import NoisyFunctionWarning as NoisyFunctionWarning
from .core.randomness import Randomness as Randomness
from .estimators import REBAR as REBAR
from .estimators import RLOO as RLOO
from .estimators import CritiCateR as CritiCateR
from .estimators import DisARM as DisARM
from .estimators import Exact as Exact
from .estimators import GumbelSoftmax as GumbelSoftmax
from .estimators import IndeCateR as IndeCateR
from .estimators import Reinforce as Reinforce
from .estimators import ReinMax as ReinMax
from .estimators import SCateR as SCateR
from .estimators import SlopeCateR as SlopeCateR
from .estimators import StraightThrough as StraightThrough
from .logarithm import log_expectation as log_expectation
from .pathwise import Pathwise as Pathwise
from .sample import gumbel_softmax as gumbel_softmax
from .sample import sample as sample
from .session import Session as Session

__version__ = "0.1.0"

# Imported at their first use: training needs none of these modules, `pyro` needs Pyro.
MODULES = ("diagnostics", "language_models", "problems", "pyro")
OF_DIAGNOSTICS = ("Advice", "Comparison", "advise", "check", "compare", "compare_layers")

if TYPE_CHECKING:
    from . import language_models as language_models
    from . import problems as problems
    from .diagnostics import Advice as Advice
    from .diagnostics import Comparison as Comparison
    from .diagnostics import advise as advise
    from .diagnostics import check as check
    from .diagnostics import compare as compare
    from .diagnostics import compare_layers as compare_layers
else:

    def __getattr__(name: str) -> object:
        if name in MODULES:
            return import_module(f"catlog.{name}")
        if name in OF_DIAGNOSTICS:
            return getattr(import_module("catlog.diagnostics"), name)
        message = f"module 'catlog' has no attribute {name!r}"
        for module in ("estimators", "distributions", "language_models"):
            if name[:1] != "_" and hasattr(import_module(f"catlog.{module}"), name):
                message = f"{message}. It is catlog.{module}.{name}"
        # With name and module, Python suggests a similar name.
        raise AttributeError(message, name=name, obj=import_module("catlog"))

    def __dir__() -> list[str]:
        return sorted({*globals(), *MODULES, *OF_DIAGNOSTICS})
