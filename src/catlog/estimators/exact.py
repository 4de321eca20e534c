"""Exact enumeration."""

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution

from ..checks import check_chunk_size, check_count, check_generator, readable
from ..distributions.conditionals import Conditionals, view
from ..distributions.factors import Factors
from ..estimator import ANY, Function, Kind, Target, label
from ..evaluation.evaluate import evaluate_chunked
from ..evaluation.known_mean import known_mean


@dataclass(frozen=True)
class Exact:
    r"""The exact expectation: a sum over the sample space, or the mean that f itself knows.

    .. math:: \mathbb{E}[f(x)] = \sum_x q(x) f(x)

    Value and gradient are exact. All other estimators are tested against it, and it is the best
    choice if you can afford it.

    If f has a method ``expectation(q)``, its result is the estimate, at any size and without an
    evaluation of f (see :mod:`catlog.functions`). To enumerate such an f, pass ``lambda x: f(x)``.
    All other functions are enumerated.

    Cost: k^d evaluations (:math:`\prod_i k_i`), or the number of subsets or rankings. Needs:
    any f. A q with more points than ``limit`` is refused.

    Args:
        limit: the largest number of points to enumerate.
        chunk_size: evaluations of f at once (None: chosen for the device).
        validate: check f's values for NaN and inf (eager mode only).

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

    limit: int = 2**22
    chunk_size: int | None = None
    validate: bool = True

    target: ClassVar[Target] = "expectation"
    unbiased: ClassVar[bool] = True
    supports: ClassVar[frozenset[Kind]] = ANY
    differentiates_f: ClassVar[bool] = False
    randomness: ClassVar[tuple[str, ...]] = ()
    many_outputs: ClassVar[bool] = True
    reference: ClassVar[str] = "definition"

    __repr__ = label

    def __post_init__(self) -> None:
        check_count("Exact", "limit", self.limit)
        check_chunk_size("Exact", self.chunk_size)

    def rows(self, q: Distribution) -> int:
        return self.evaluations(q)

    def evaluations(self, q: Distribution) -> int:
        return _points(view(q, validate=False))

    def __call__(
        self,
        f: Function,
        q: Distribution,
        *,
        x: Tensor | None = None,
        outputs: int = 0,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*batch_outputs"]:
        if x is not None:
            raise ValueError("x: Exact evaluates f at every point of q, so it takes no `x`.")
        law = view(q, outputs=outputs, validate=self.validate)
        check_generator(generator, law.device)
        mean = known_mean(f, q, law)
        if mean is not None:
            return mean
        points = _points(law)
        if points > self.limit:
            raise ValueError(
                f"Exact: q has {readable(points)} points, more than `limit` = {self.limit}. Use "
                f"{'SCateR' if isinstance(law, Conditionals) else 'IndeCateR'} or RLOO, raise the "
                "limit if f is cheap, or give f a method `expectation`."
            )
        if isinstance(law, Conditionals):
            index = law.q.enumerate_support()
            weight = law.log_prob(index).exp()
            likely = index.gather(
                0, weight.argmax(0)[None, ..., None].expand((1, *law.batch_shape, law.d))
            )
        else:
            grid = [torch.arange(size, device=law.device) for size in law.cardinalities]
            index = torch.cartesian_prod(*grid).reshape(
                (points,) + (1,) * len(law.batch_shape) + (law.d,)
            )
            weight = _joint(law)
            likely = law.probs.argmax(-1)

        def possible_points(part: slice) -> Tensor:
            """Return points. One that is impossible in a batch element, with weight 0, is replaced
            there by a possible one."""
            return law.point(torch.where((weight[part] > 0).unsqueeze(-1), index[part], likely))

        fx = evaluate_chunked(f, possible_points, points, law, chunk_size=self.chunk_size)
        # Probabilities add up to 1 but for rounding, which a large mean of f would multiply.
        mean = (weight.detach() * fx.detach()).sum(0)
        return (weight * (fx - mean)).sum(0) + mean


def _points(law: Factors | Conditionals) -> int:
    """Return the number of points to enumerate."""
    return law.q.points if isinstance(law, Conditionals) else prod(law.cardinalities)


def _joint(law: Factors) -> Float[Tensor, "points *batch"]:
    """Return the probability of every point, in the order of ``torch.cartesian_prod``."""
    weight = torch.ones((1, *law.batch_shape), dtype=law.real, device=law.device)
    for i, size in enumerate(law.cardinalities):
        factor = law.probs[..., i, :size].movedim(-1, 0)
        weight = (weight.unsqueeze(1) * factor).flatten(0, 1)
    return weight
