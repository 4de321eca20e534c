"""The distributions that q may be, and the views through which estimators read it."""

from .autoregressive import Autoregressive
from .bayesian_network import BayesianNetwork, Node
from .categoricals import Categoricals
from .foreign import register_distribution
from .markov_chain import MarkovChain
from .mixture import MixtureOfProducts, component_first
from .multinomial import MultinomialCounts
from .ordered import Ordered
from .prompted import Prompted, left_padded

__all__ = [
    "Autoregressive",
    "BayesianNetwork",
    "Categoricals",
    "MarkovChain",
    "MixtureOfProducts",
    "MultinomialCounts",
    "Node",
    "Ordered",
    "Prompted",
    "component_first",
    "left_padded",
    "register_distribution",
]
