"""Which estimators fit a distribution, and how many draws a budget of evaluations allows."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import is_dataclass, replace
from functools import cache
from math import inf
from typing import Any, cast

import torch
from torch import nn

from ..core.categories import Kind
from ..core.checks import readable
from ..core.estimator import Estimator
from ..estimator import RELAXABLE

MOST_REASONS = 3  # in the message of an error
Cost = Callable[[Estimator], int]
ERRORS = (ValueError, TypeError, RuntimeError, NotImplementedError)  # of f or of an estimator
KIND_NAMES = {
    Kind.BITS: "bits (Bernoulli)",
    Kind.INDEX: "numbers (Categorical)",
    Kind.ONE_HOT: "one-hot vectors (OneHotCategorical)",
    Kind.MIXED: "numbers with different cardinalities (Categoricals)",
    Kind.STRUCTURED: "dependent variables",
}


def why_unsuitable(E: Estimator, kind: Kind) -> str | None:
    """Return why E cannot be used with this kind of distribution; None if it can."""
    if E.target == "bound":
        return "it differentiates a bound, not E[f]"
    if kind not in E.supports:
        return f"it is not for {KIND_NAMES[kind]}, but for {', '.join(sorted(E.supports))}"
    if E.differentiates_f and kind not in RELAXABLE:
        return (
            f"it differentiates f in x, which {KIND_NAMES[kind]} do not allow; "
            "write q with OneHotCategorical"
        )
    return None


def with_samples(E: Estimator, samples: int) -> Estimator:
    """Return a copy of E with another number of draws. Raise ValueError if E does not accept it."""
    if is_dataclass(E):
        return cast(Estimator, replace(cast(Any, E), samples=samples))
    cast(Any, type(E))(samples=samples)  # runs the checks of the class
    copy = deepcopy(E)
    copy.samples = samples  # type: ignore[attr-defined]
    return copy


def copied_to(E: Estimator, device: torch.device) -> Estimator:
    """Return a copy of E, which keeps what it learns on the device."""
    copy = deepcopy(E)
    for module in learning_modules(copy):
        module.to(device)
    return copy


def learning_modules(E: Estimator) -> list[nn.Module]:
    """Return what learns in E: the estimator, or its baseline."""
    parts = (E, getattr(E, "baseline", None))
    return [part for part in parts if isinstance(part, nn.Module)]


def why_over_budget(E: Estimator, budget: int, cost: Cost) -> str | None:
    """Return why E exceeds the budget even with its fewest draws; None if it does not."""
    if not hasattr(E, "samples"):
        needed, least = cost(E), ""
    else:
        needed, least = cost(with_samples(E, fewest_draws(E, cost))), "at least "
    if needed <= budget:
        return None
    return f"it needs {least}{readable(needed)} evaluations, more than the budget of {budget}"


def within_budget(
    E: Estimator, budget: int, cost: Cost, at_least_fewest: bool = False
) -> Estimator:
    """Return E with the most draws whose cost is within the budget.

    If even the fewest draws exceed it, raise ValueError or, with `at_least_fewest`, return those.

    >>> from torch.distributions import Bernoulli, Independent
    >>> from catlog import IndeCateR
    >>> q = Independent(Bernoulli(logits=torch.zeros(3)), 1)
    >>> within_budget(IndeCateR(), 10, cost=lambda E: E.evaluations(q)).samples
    2
    """
    reason = why_over_budget(E, budget, cost)
    if reason and not at_least_fewest:
        raise ValueError(reason)
    if not hasattr(E, "samples"):
        return E
    if reason:
        return with_samples(E, fewest_draws(E, cost))
    costs = cache(lambda samples: _cost_of_draws(E, samples, cost))
    low = fewest_draws(E, cost)
    if costs(low + 1) > budget:
        return with_samples(E, low)
    per_draw = max(1, costs(low + 1) - costs(low))
    high = low + int((budget - costs(low)) // per_draw)  # right if the cost is affine in the draws
    if not costs(high) <= budget < costs(high + 1):
        while costs(high) <= budget and high <= budget:
            high *= 2
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (low, middle - 1) if costs(middle) > budget else (middle, high)
    return with_samples(E, high)


def _cost_of_draws(E: Estimator, samples: int, cost: Cost) -> float:
    try:
        return cost(with_samples(E, samples))
    except ValueError:  # E does not accept this number of draws
        return inf


def fewest_draws(E: Estimator, cost: Cost) -> int:
    """Return the least number of draws that E accepts."""
    for samples in range(1, 9):
        if _cost_of_draws(E, samples, cost) < inf:
            return samples
    raise ValueError(f"{type(E).__name__}: no number of draws from 1 to 8 is accepted.")


def first_line(error: Exception) -> str:
    """Return the first line of a message, without its full stop."""
    return str(error).split("\n")[0].rstrip(".")


def joined_reasons(skipped: Mapping[str, str]) -> str:
    """Return names with their reasons in one line; of many, the first few.

    >>> joined_reasons({"A": "slow", "B": "biased", "C": "slow", "D": "slow", "E": "biased"})
    'A: slow; B: biased; C: slow; and 2 others'
    """
    shown = [f"{name}: {reason}" for name, reason in list(skipped.items())[:MOST_REASONS]]
    rest = len(skipped) - len(shown)
    if rest:
        shown.append(f"and {rest} other{'s' * (rest > 1)}")
    return "; ".join(shown)
