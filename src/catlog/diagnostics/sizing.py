"""An estimator's fit to a distribution, and the number of draws that a budget of evaluations allows."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import is_dataclass, replace
from math import inf
from typing import Any, cast

from torch.distributions import Distribution

from ..estimator import RELAXABLE, Estimator, Kind

Cost = Callable[[Estimator], int]
KIND_NAMES = {
    Kind.BITS: "bits (Bernoulli)",
    Kind.INDEX: "numbers (Categorical)",
    Kind.ONE_HOT: "one-hot vectors (OneHotCategorical)",
    Kind.MIXED: "numbers with different cardinalities (Categoricals)",
    Kind.STRUCTURED: "dependent variables",
}


def why_unsuitable(E: Estimator, kind: Kind) -> str | None:
    """Why E cannot be used with a law of this kind; None where it can."""
    if E.target == "bound":
        return "it differentiates a bound, not E[f]"
    if kind not in E.supports:
        return f"it is not for {KIND_NAMES[kind]}, but for {', '.join(sorted(E.supports))}"
    if E.differentiates_f and kind not in RELAXABLE:
        return f"it differentiates f in x, which {KIND_NAMES[kind]} do not allow; write the law with OneHotCategorical"
    return None


def with_samples(E: Estimator, samples: int) -> Estimator:
    """A copy with another number of draws; ValueError where E does not take it."""
    if is_dataclass(E):
        return cast(Estimator, replace(cast(Any, E), samples=samples))
    cast(Any, type(E))(samples=samples)  # its own check
    new = deepcopy(E)
    new.samples = samples  # type: ignore[attr-defined]
    return new


def within_budget(
    E: Estimator, q: Distribution, budget: int, cost: Cost | None = None
) -> Estimator:
    """E with the largest number of draws whose cost (evaluations, unless told otherwise) is not above ``budget``.

    >>> from torch.distributions import Bernoulli, Independent
    >>> from catlog import IndeCateR
    >>> import torch
    >>> within(IndeCateR(), Independent(Bernoulli(logits=torch.zeros(3)), 1), 10).samples
    2
    """
    spend: Cost = (lambda E: E.evaluations(q)) if cost is None else cost
    if not hasattr(E, "samples"):
        if spend(E) > budget:
            raise ValueError(f"it needs {spend(E)} evaluations, more than the budget of {budget}")
        return E
    known: dict[int, tuple[float, Estimator]] = {}

    def costs(samples: int) -> float:
        if samples not in known:
            try:
                sized = with_samples(E, samples)
                known[samples] = spend(sized), sized
            except ValueError:  # more draws than E takes
                known[samples] = inf, E
        return known[samples][0]

    low = next((samples for samples in range(1, 9) if costs(samples) < inf), None)
    if low is None:
        raise ValueError(f"{type(E).__name__}: no number of draws from 1 to 8 is accepted.")
    if costs(low) > budget:
        raise ValueError(
            f"it needs at least {costs(low)} evaluations, more than the budget of {budget}"
        )
    if costs(low + 1) > budget:
        return known[low][1]
    high = low + int(
        (budget - costs(low)) // max(1, costs(low + 1) - costs(low))
    )  # costs are affine in the draws; else search
    if not costs(high) <= budget < costs(high + 1):
        while costs(high) <= budget and high <= budget:
            high *= 2
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (low, middle - 1) if costs(middle) > budget else (middle, high)
    return known[high][1]
