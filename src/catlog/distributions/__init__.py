"""The distributions that q may be, and the views through which estimators read it."""

from .autoregressive import Autoregressive
from .bayesian_network import BayesianNetwork, Node
from .categoricals import Categoricals
from .markov_chain import MarkovChain
from .ordered import Ordered
from .prompted import Prompted, left_padded

__all__ = [
    "Autoregressive",
    "BayesianNetwork",
    "Categoricals",
    "MarkovChain",
    "Node",
    "Ordered",
    "Prompted",
    "left_padded",
]
