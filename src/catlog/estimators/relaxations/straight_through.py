"""The straight-through estimator."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ...distributions.factors import Factors
from ...sampling.draw import Draws
from .relaxation import MeanThroughDraws


@dataclass(frozen=True, repr=False)
class StraightThrough(MeanThroughDraws):
    r"""The derivative of f at the draw, used as the derivative of f in the probabilities.

    .. math:: \frac1N \sum_n \partial_x f(x^{(n)}) \cdot \partial p

    **Biased**, except for f that is multilinear in x (there it is exact in expectation). The value
    is unbiased.

    Cost: ``samples`` evaluations, forward and backward. Needs: f differentiable; a Bernoulli or
    one-hot q.
    Reference: Bengio et al., "Estimating or propagating gradients through stochastic neurons",
    2013.

    Args:
        samples: number of draws N.
        draws: how the N draws depend on each other: "independent", "antithetic" or "latin"
            (stratified; often the best).
        validate: check f's values for NaN and inf (eager mode only).

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> StraightThrough()(lambda x: 4 * x[..., 0], q, x=torch.ones(1, 2)).backward()
    >>> logits.grad
    tensor([1., 0.])
    """

    samples: int = 1
    draws: Draws = "independent"
    validate: bool = True

    reference = "Bengio et al. 2013"

    def mean(
        self, law: Factors, x: Tensor, noise: Tensor | None, generator: torch.Generator | None
    ) -> Float[Tensor, "#n *batch d k"]:
        return law.probs.unsqueeze(0)
