"""Differentiate through categorical sampling: ``E(f, q)`` is a differentiable expectation."""

# ruff: noqa: F403  # every family lists its estimators in `__all__`
from importlib import import_module
from typing import TYPE_CHECKING

from . import functions as functions
from .compiled import compiled_step as compiled_step
from .distributions import Autoregressive as Autoregressive
from .distributions import BayesianNetwork as BayesianNetwork
from .distributions import Categoricals as Categoricals
from .distributions import LinearChainCRF as LinearChainCRF
from .distributions import MarkovChain as MarkovChain
from .distributions import PlackettLuce as PlackettLuce
from .distributions import Subset as Subset
from .distributions import register_distribution as register_distribution
from .estimator import Estimator as Estimator
from .estimators import ESTIMATORS as ESTIMATORS
from .estimators import CountDifferences as CountDifferences
from .estimators import Exact as Exact
from .estimators.catlog_trick import *
from .estimators.control_variates import *
from .estimators.coupled_draws import *
from .estimators.relaxations import *
from .estimators.relaxations.sampling_layer import gumbel_softmax as gumbel_softmax
from .estimators.relaxations.sampling_layer import sample as sample
from .estimators.score_function import *
from .estimators.score_function.reinforce import MovingAverageBaseline as MovingAverageBaseline
from .estimators.sets import *
from .evaluation.noise import NoisyFunctionWarning as NoisyFunctionWarning
from .language_models import CausalLM as CausalLM
from .language_models import advantages as advantages
from .logarithm import log_expectation as log_expectation
from .pathwise import Pathwise as Pathwise

__version__ = "0.1.0"

if TYPE_CHECKING:
    from . import problems as problems
    from .diagnostics import Advice as Advice
    from .diagnostics import Comparison as Comparison
    from .diagnostics import advise as advise
    from .diagnostics import check as check
    from .diagnostics import compare as compare
    from .diagnostics import compare_layers as compare_layers
else:  # type checkers read a literal `__all__` only
    __all__ = [
        *ESTIMATORS,
        "ESTIMATORS",
        "Advice",
        "Autoregressive",
        "BayesianNetwork",
        "Categoricals",
        "CausalLM",
        "Comparison",
        "CountDifferences",
        "Estimator",
        "LinearChainCRF",
        "MarkovChain",
        "MovingAverageBaseline",
        "NoisyFunctionWarning",
        "Pathwise",
        "PlackettLuce",
        "Subset",
        "advantages",
        "advise",
        "check",
        "compare",
        "compare_layers",
        "compiled_step",
        "functions",
        "gumbel_softmax",
        "log_expectation",
        "problems",
        "register_distribution",
        "sample",
    ]

    # Imported on first use: training needs none of these modules, `pyro` needs Pyro.
    _MODULES = ("diagnostics", "problems", "pyro")
    _OF_DIAGNOSTICS = ("Advice", "Comparison", "advise", "check", "compare", "compare_layers")

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return import_module(f"catlog.{name}")
        if name in _OF_DIAGNOSTICS:
            return getattr(import_module("catlog.diagnostics"), name)
        # With name and module, Python suggests a similar name.
        raise AttributeError(
            f"module 'catlog' has no attribute {name!r}", name=name, obj=import_module("catlog")
        )

    def __dir__() -> list[str]:
        return sorted({*globals(), *_MODULES, *_OF_DIAGNOSTICS})
