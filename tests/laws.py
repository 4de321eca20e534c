"""Distributions of independent variables, made from their logits."""

from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, OneHotCategorical


def bits(logits: Tensor) -> Distribution:
    return Independent(Bernoulli(logits=logits), 1)


def integers(logits: Tensor) -> Distribution:
    return Independent(Categorical(logits=logits), 1)


def one_hots(logits: Tensor) -> Distribution:
    return Independent(OneHotCategorical(logits=logits), 1)
