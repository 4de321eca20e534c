"""Gradients of E[f(x)] for categorical x, in JAX: ``E(key, f, q)`` is a differentiable array."""

from .dependent import Autoregressive as Autoregressive
from .dependent import DependentFactors as DependentFactors
from .dependent import MarkovChain as MarkovChain
from .estimator import Estimate as Estimate
from .estimator import Estimator as Estimator
from .estimators import ARMS as ARMS
from .estimators import REBAR as REBAR
from .estimators import RLOO as RLOO
from .estimators import VIMCO as VIMCO
from .estimators import DisARM as DisARM
from .estimators import Exact as Exact
from .estimators import GumbelRao as GumbelRao
from .estimators import GumbelSoftmax as GumbelSoftmax
from .estimators import IndeCateR as IndeCateR
from .estimators import Reinforce as Reinforce
from .estimators import ReinMax as ReinMax
from .estimators import SCateR as SCateR
from .estimators import SlopeCateR as SlopeCateR
from .estimators import SlopeState as SlopeState
from .estimators import StraightThrough as StraightThrough
from .estimators import UnorderedSet as UnorderedSet
from .evaluator import Evaluator as Evaluator
from .factors import Bernoulli as Bernoulli
from .factors import Categorical as Categorical
from .factors import Factors as Factors
from .factors import IndependentFactors as IndependentFactors
from .factors import OneHot as OneHot
from .factors import RelaxableFactors as RelaxableFactors
from .randomness import Randomness as Randomness
from .sample import sample as sample

__version__ = "0.1.0"
