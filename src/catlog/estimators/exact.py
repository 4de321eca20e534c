"""Exact enumeration."""

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution

from ..checks import check_count
from ..evaluate import evaluate
from ..factors import Factors, factors
from ..neighbours import chunks
from ..surrogate import Function


@dataclass(frozen=True)
class Exact:
    r"""The expectation itself, by summing over every point of the sample space.

    .. math:: \mathbb{E}[f(x)] = \sum_x q(x) f(x)

    Value and gradient are exact. It is the judge of all other estimators, and the best choice where it is affordable.

    Cost: :math:`\prod_i k_i` evaluations. Needs: nothing of f. A law with more points than ``limit`` is refused.

    Args:
        limit: the largest number of points that is enumerated.
        chunk_size: evaluations of f at once (None: chosen for the device).
        validate: check f's values for NaN and inf (eager mode only).

    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(probs=torch.tensor([0.5, 0.25])), 1)
    >>> Exact()(lambda x: x.sum(-1), q)
    tensor(0.7500)
    """

    limit: int = 2**22
    chunk_size: int | None = None
    validate: bool = True

    unbiased: ClassVar[bool] = True
    differentiates_f: ClassVar[bool] = False
    reference: ClassVar[str] = "definition"

    def __post_init__(self) -> None:
        check_count("Exact", "limit", self.limit)
        if self.chunk_size is not None:
            check_count("Exact", "chunk_size", self.chunk_size)

    def rows(self, q: Distribution) -> int:
        return self.evaluations(q)

    def evaluations(self, q: Distribution) -> int:
        return prod(factors(q, validate=False).cardinalities)

    def __call__(
        self, f: Function, q: Distribution, *, x: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Float[Tensor, "*batch"]:
        if x is not None:
            raise ValueError("x: Exact visits every point of the law; it takes none.")
        law = factors(q, validate=self.validate)
        points = prod(law.cardinalities)
        if points > self.limit:
            raise ValueError(
                f"Exact: q has {points} points, more than `limit` = {self.limit}. Use IndeCateR or RLOO, or raise the limit "
                "if f is cheap."
            )
        weight, index = _joint(law)
        # A point that a mask makes impossible in some batch element is replaced there by a possible one, at weight 0.
        possible = (weight > 0).unsqueeze(-1)
        index = torch.where(possible, index.view((points,) + (1,) * len(law.batch_shape) + (law.d,)), law.probs.argmax(-1))
        total = torch.zeros(law.batch_shape, dtype=law.probs.dtype, device=law.probs.device)
        for part in chunks(points, index, law, self.chunk_size):
            total = total + (weight[part] * evaluate(f, law.point(index[part]), law, validate=self.validate)).sum(0)
        return total


def _joint(law: Factors) -> tuple[Float[Tensor, "points *batch"], Tensor]:
    """The probability of every point, and its category numbers ``[points, d]``."""
    weight = torch.ones((1, *law.batch_shape), dtype=law.probs.dtype, device=law.probs.device)
    for i, size in enumerate(law.cardinalities):
        factor = law.probs[..., i, :size].movedim(-1, 0)
        weight = (weight.unsqueeze(1) * factor).flatten(0, 1)
    grid = [torch.arange(size, device=law.probs.device) for size in law.cardinalities]
    return weight, torch.cartesian_prod(*grid).reshape(-1, law.d)
