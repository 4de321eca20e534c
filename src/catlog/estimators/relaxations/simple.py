"""SIMPLE: straight-through by exact marginals, for subsets."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution

from ...distributions.conditionals import view
from ...distributions.factors import factors, relaxable
from ...distributions.subset import Subset
from ...estimator import RELAXABLE, FromDraws, Function, once
from ...evaluation.evaluate import evaluate_through
from ...sampling.draw import draws_for
from .relaxation import mean_through, straight_through, to_point


@dataclass(frozen=True, repr=False)
class SIMPLE(FromDraws):
    r"""The derivative of f at exact draws of a :class:`catlog.Subset`, used as the derivative of f
    in the exact marginals.

    .. math:: \frac1N \sum_n \partial_x f(x^{(n)}) \cdot \partial \mu, \qquad \mu_i = q(x_i = 1)

    **Biased**, except for f that is linear in x: there it is exact, without noise. The value is
    unbiased. f gets the bits of a subset as floats, so that it can be differentiated in them. For
    independent variables the marginals are the probabilities, and SIMPLE is
    :class:`StraightThrough`.

    Cost: ``samples`` evaluations, forward and backward. Needs: f differentiable; a Subset, or a
    Bernoulli or one-hot q.
    Reference: Ahmed et al., "SIMPLE: a gradient estimator for k-subset sampling", 2023.

    Args:
        samples: number of draws N.
        validate: check f's values for NaN and inf (eager mode only).

    >>> from catlog import Subset
    >>> logits = torch.zeros(4, requires_grad=True)
    >>> SIMPLE()(lambda x: 3 * x[..., 0], Subset(logits, k=2)).backward()
    >>> logits.grad
    tensor([ 0.7500, -0.2500, -0.2500, -0.2500])
    """

    samples: int = 1
    validate: bool = True

    unbiased = False
    supports = RELAXABLE
    differentiates_f = True
    reference = "Ahmed et al. 2023"

    def __call__(
        self,
        f: Function,
        q: Distribution,
        *,
        x: Tensor | None = None,
        outputs: int = 0,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*batch_outputs"]:
        if not isinstance(q, Subset):
            law = factors(q, outputs=outputs, validate=self.validate)
            relaxable(q, law, "SIMPLE")
            x = draws_for(self, law, x, generator)
            return mean_through(f, law, straight_through(law, x, to_point(law, law.probs)))
        subset = view(q, outputs=outputs, validate=self.validate)
        x = draws_for(self, subset, x, generator)
        mean = q.mean.reshape(subset.batch_shape + subset.event_shape)
        points = x.to(mean.dtype) + (mean - mean.detach())
        return once(evaluate_through(f, points, subset).mean(0))
