"""Distributions of independent variables, made from their logits."""

from typing import Any

from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, OneHotCategorical


def bits(logits: Tensor, **options: Any) -> Distribution:
    return Independent(Bernoulli(logits=logits, **options), 1)


def integers(logits: Tensor, **options: Any) -> Distribution:
    return Independent(Categorical(logits=logits, **options), 1)


def one_hots(logits: Tensor, **options: Any) -> Distribution:
    return Independent(OneHotCategorical(logits=logits, **options), 1)


# By kind, from logits [*batch, variables, categories]; the logits of bits are those of category 0.
KINDS = {"bits": lambda logits: bits(logits[..., 0]), "index": integers, "one-hot": one_hots}
