"""The distributions that q may be, and the views through which estimators read it."""

from .autoregressive import Autoregressive
from .bayesian_network import BayesianNetwork, Node
from .categoricals import Categoricals
from .counts import lost_mass, truncated
from .linear_chain_crf import LinearChainCRF
from .markov_chain import MarkovChain
from .ordered import Ordered
from .plackett_luce import PlackettLuce, gumbel_top_k
from .subset import Subset

__all__ = [
    "Autoregressive",
    "BayesianNetwork",
    "Categoricals",
    "LinearChainCRF",
    "MarkovChain",
    "Node",
    "Ordered",
    "PlackettLuce",
    "Subset",
    "gumbel_top_k",
    "lost_mass",
    "truncated",
]
