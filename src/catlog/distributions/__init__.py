"""The distributions that q may be, and the views through which estimators read it."""

from .autoregressive import Autoregressive
from .bayesian_network import BayesianNetwork, Node
from .categoricals import Categoricals
from .counts import lost_mass, truncated
from .markov_chain import MarkovChain
from .ordered import Ordered

__all__ = [
    "Autoregressive",
    "BayesianNetwork",
    "Categoricals",
    "MarkovChain",
    "Node",
    "Ordered",
    "lost_mass",
    "truncated",
]
