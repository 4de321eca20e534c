"""The distributions that q may be, and the views through which estimators read it."""

from .autoregressive import Autoregressive as Autoregressive
from .bayesian_network import BayesianNetwork as BayesianNetwork
from .bayesian_network import Node as Node
from .categoricals import Categoricals as Categoricals
from .counts import lost_mass as lost_mass
from .counts import truncated as truncated
from .foreign import register_distribution as register_distribution
from .linear_chain_crf import LinearChainCRF as LinearChainCRF
from .markov_chain import MarkovChain as MarkovChain
from .mixture import MixtureOfProducts as MixtureOfProducts
from .mixture import component_first as component_first
from .multinomial import MultinomialCounts as MultinomialCounts
from .ordered import Ordered as Ordered
from .plackett_luce import PlackettLuce as PlackettLuce
from .plackett_luce import gumbel_top_k as gumbel_top_k
from .prompted import Prompted as Prompted
from .prompted import left_padded as left_padded
from .subset import Subset as Subset
