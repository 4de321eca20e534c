"""The estimators whose draws can be differentiated without f, which `catlog.sample` takes."""

from dataclasses import replace

import pytest
from torch import Tensor
from torch.distributions import Bernoulli, Distribution, OneHotCategorical

from catlog.estimators import ESTIMATORS
from catlog.testing.settings import VARIANTS


def slope_based(*kinds: str) -> list[object]:
    """Return the estimators for a kind of draw, with whether they draw bits."""
    return [
        pytest.param(
            replace(ESTIMATORS[name](**options), samples=1),
            kind == "bits",
            id=f"{name}({options}) {kind}",
        )
        for name, cls in ESTIMATORS.items()
        if hasattr(cls, "points")
        for options in VARIANTS[name]
        for kind in kinds
        if kind in cls.supports
    ]


def distribution(logits: Tensor, bits: bool) -> Distribution:
    return Bernoulli(logits=logits) if bits else OneHotCategorical(logits=logits)
