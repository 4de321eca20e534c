"""DARN's estimators for bits, of first and second order."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ...checks import check_count
from ...distributions.factors import Factors
from ...estimator import BITS
from ...sampling.draw import Draws
from .relaxation import MeanThroughDraws, weighted_log_odds


@dataclass(frozen=True, repr=False)
class DARN(MeanThroughDraws):
    r"""REINFORCE for bits, with a baseline that is predicted from the derivative of f at the draw.

    .. math::
        \text{order 1:}\quad \frac1N \sum_n \sum_i f_i'(x^{(n)})\, (x^{(n)}_i - p_i)\, \partial \log
        q(x^{(n)}_i), \qquad
        \text{order 2:}\quad \frac1N \sum_n \sum_i \tfrac12 f_i'(x^{(n)})\, \frac{\partial
        p_i}{q(x^{(n)}_i)}

    Order 1 takes the baseline :math:`f(x) + f_i'(x)(p_i - x_i)`, Taylor's f at the mean, and is
    exact in expectation for f that is linear in each bit given the others. Order 2, the
    "1/2-estimator", weighs the slopes at both values of the bit equally,
    :math:`f(1) - f(0) \approx \tfrac12 (f'(0) + f'(1))`, and is exact in expectation for f that is
    *quadratic* in each bit. Otherwise **biased**: the baseline depends on the draw and its mean is
    left out. The value is unbiased. :class:`ReinMax` is order 2 for categories.

    Cost: ``samples`` evaluations, forward and backward. Needs: f differentiable; a Bernoulli q.
    Reference: Gregor et al., "Deep autoregressive networks", 2014; Gu et al., "MuProp", 2016,
    section 3.

    Args:
        samples: number of draws N.
        order: 1 or 2.
        draws: how the N draws depend on each other: "independent", "antithetic" or "latin"
            (stratified; often the best).
        validate: check f's values for NaN and inf (eager mode only).

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> DARN()(lambda x: 4 * x[..., 0], q, x=torch.ones(1, 2)).backward()
    >>> logits.grad
    tensor([1., 0.])
    """

    samples: int = 1
    order: int = 2
    draws: Draws = "independent"
    validate: bool = True

    supports = BITS
    for_categories = "ReinMax, which is the same for categories"
    reference = "Gregor et al. 2014"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("DARN", "order", self.order, most=2)

    def mean(
        self, law: Factors, x: Tensor, noise: Tensor | None, generator: torch.Generator | None
    ) -> Float[Tensor, "#n *batch d k"]:
        bit, p = law.flat(x).to(law.real), law.probs.detach()[..., 1]
        # The weight of f' in the derivative in the bit's logit.
        weight = (bit - p).square() if self.order == 1 else (bit - p).abs() / 2
        return weighted_log_odds(law, weight)
