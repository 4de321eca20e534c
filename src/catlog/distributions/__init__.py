"""What q may be, and how estimators read it."""

from .categoricals import Categoricals
from .structured import Autoregressive, BayesianNetwork, MarkovChain, Node, Ordered

__all__ = ["Autoregressive", "BayesianNetwork", "Categoricals", "MarkovChain", "Node", "Ordered"]
