"""The distributions that q may be, besides those of torch."""

from ..core.ordered import Ordered
from ..core.view import register_distribution
from . import torchrl  # noqa: F401  # registers its distributions
from .autoregressive import Autoregressive
from .bayesian_network import BayesianNetwork, Node
from .categoricals import Categoricals
from .counts import lost_mass, truncated
from .linear_chain_crf import LinearChainCRF
from .markov_chain import MarkovChain
from .mixture import MixtureOfProducts, component_first
from .multinomial import MultinomialCounts
from .plackett_luce import PlackettLuce, gumbel_top_k
from .prompted import Prompted, left_padded
from .subset import Subset

__all__ = [
    "Autoregressive",
    "BayesianNetwork",
    "Categoricals",
    "LinearChainCRF",
    "MarkovChain",
    "MixtureOfProducts",
    "MultinomialCounts",
    "Node",
    "Ordered",
    "PlackettLuce",
    "Prompted",
    "Subset",
    "component_first",
    "gumbel_top_k",
    "left_padded",
    "lost_mass",
    "register_distribution",
    "truncated",
]
