"""Exact enumeration."""

from dataclasses import KW_ONLY

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution

from ..core import Count, Estimate, Estimator, Evaluator, Randomness
from ..core.checks import readable
from ..core.factors import DependentFactors, Factors, IndependentFactors
from ..core.view import view

__all__ = ["Exact"]


class Exact(Estimator[Factors]):
    r"""The exact expectation: a sum over the sample space, or the mean that f itself knows.

    .. math:: \mathbb{E}[f(x)] = \sum_x q(x) f(x)

    Value and gradient are exact. All other estimators are tested against it, and it is the best
    choice if you can afford it.

    If f has a method ``expectation(q)``, its result is the estimate, at any size and without an
    evaluation of f (see :mod:`catlog.functions`). To enumerate such an f, pass ``lambda x: f(x)``.
    All other functions are enumerated.

    Cost: k^d evaluations (:math:`\prod_i k_i`), or the number of subsets or rankings. Needs:
    any f. A q with more points than ``limit`` is refused.
    Reference: definition.

    Args:
        limit: the largest number of points to enumerate.
        chunk_size: evaluations of f at once (None: chosen for the device).

    >>> bits = torch.distributions.Bernoulli(probs=torch.tensor([0.5, 0.25]))
    >>> q = torch.distributions.Independent(bits, 1)
    >>> Exact()(lambda x: x.sum(-1), q)
    tensor(0.7500)

    A thousand digits, by the mean that a function of their sum knows:

    >>> from catlog.functions import OfSum
    >>> digits = torch.distributions.Categorical(logits=torch.zeros(1000, 10))
    >>> f = OfSum(lambda total: total == 4500, categories=10)
    >>> Exact()(f, torch.distributions.Independent(digits, 1))
    tensor(0.0044)
    """

    _: KW_ONLY
    limit: Count = 2**22
    chunk_size: Count | None = None

    is_exact = True
    twice = True

    def evaluations(self, q: Distribution) -> int:
        return view(q, 0, self.accepts, "Exact").ordered.points

    def estimate(self, f: Evaluator, q: Factors, draw: Randomness) -> Estimate:
        mean = f.mean()
        if mean is not None:
            return Estimate(mean, mean)
        points = q.ordered.points
        if points > self.limit:
            raise ValueError(
                f"Exact: q has {readable(points)} points, more than `limit` = {self.limit}. Use "
                f"{'SCateR' if isinstance(q, DependentFactors) else 'IndeCateR'} or RLOO, raise "
                "the limit if f is cheap, or give f a method `expectation`."
            )
        index, weight, likely = _enumerated(q, points)

        def possible_points(part: slice) -> Tensor:
            """Return points. One that is impossible in a batch element, with weight 0, is replaced
            there by a possible one."""
            return q.point(torch.where((weight[part] > 0).unsqueeze(-1), index[part], likely))

        fx = f.chunked(possible_points, points, subtracted=False)
        # Probabilities add up to 1 but for rounding, which a large mean of f would multiply.
        mean = (weight.detach() * fx.detach()).sum(0)
        value = (weight * (fx - mean)).sum(0) + mean
        return Estimate(value, value)


def _enumerated(q: Factors, points: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the category numbers of all points, their probabilities, and a likely point."""
    if not isinstance(q, IndependentFactors):
        index = q.ordered.enumerate_support()
        weight = q.log_prob(index).exp()
        best = weight.argmax(0)[None, ..., None].expand((1, *q.batch_shape, q.d))
        return index, weight, index.gather(0, best)
    index = q.ordered.all_points().reshape((points,) + (1,) * len(q.batch_shape) + (q.d,))
    return index, _joint(q), q.p.argmax(-1)


def _joint(q: IndependentFactors) -> Float[Tensor, "points *batch"]:
    """Return the probability of every point, in the order of ``torch.cartesian_prod``."""
    weight = torch.ones((1, *q.batch_shape), dtype=q.real, device=q.device)
    for i, size in enumerate(q.cardinalities):
        factor = q.probs[..., i, :size].movedim(-1, 0)
        weight = (weight.unsqueeze(1) * factor).flatten(0, 1)
    return weight
