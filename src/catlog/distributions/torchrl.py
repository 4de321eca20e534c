"""torchrl's masked and one-hot categorical distributions, converted to torch's."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, OneHotCategorical

from ..core.view import register_distribution


def _from_torchrl(kind: Callable[..., Distribution], q: Any) -> Distribution:
    return kind(logits=_all_logits(q), validate_args=False)


def _all_logits(q: Any) -> Tensor:
    """Return the logits of all categories; with ``indices``, those of torchrl are of a subset."""
    logits: Tensor = q.logits
    if not getattr(q, "_sparse_mask", False):
        return logits
    chosen = q._mask.expand(logits.shape)
    padding = torch.zeros_like(chosen, dtype=torch.bool)
    if q._padding_value is not None:
        padding = chosen == q._padding_value
    k = getattr(q, "num_samples", None) or int(chosen.max()) + 1
    full = logits.new_full((*logits.shape[:-1], k + 1), -torch.inf)  # padding goes to the last one
    return full.scatter(-1, chosen.masked_fill(padding, k), logits)[..., :k]


for _name, _kind in {
    "MaskedCategorical": Categorical,
    "MaskedOneHotCategorical": OneHotCategorical,
    "OneHotCategorical": OneHotCategorical,  # whose points are one-hot, though it is a Categorical
}.items():
    _full_name = f"torchrl.modules.distributions.discrete.{_name}"
    register_distribution(_full_name, partial(_from_torchrl, _kind))
