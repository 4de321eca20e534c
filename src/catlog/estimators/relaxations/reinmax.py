"""ReinMax: straight-through of second order."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ...checks import check_temperature
from ...distributions.factors import Factors
from ...estimator import Kind
from ...sampling.draw import Draws
from ..logit_gradients import finite_log_probs, is_drawn
from .relaxation import MeanThroughDraws, drawn_categories, weighted_log_odds


@dataclass(frozen=True, repr=False)
class ReinMax(MeanThroughDraws):
    r"""Straight-through of second order: differences of f are approximated by the trapezoidal rule.

    .. math::
        \frac1N \sum_n \partial_x f(x^{(n)}) \cdot
        \bigl(2 J(\tfrac{x^{(n)} + p_\tau}{2}) - \tfrac12 J(p)\bigr)\, \partial \text{logits},
        \qquad
        J(p) = \operatorname{diag}(p) - p p^\top, \quad p_\tau =
        \operatorname{softmax}(\text{logits} / \tau)

    In expectation, at tau = 1, every difference of f between two categories is replaced by the mean
    of its slopes at both, :math:`\tfrac12 (\partial f(a) + \partial f(b)) \cdot (a - b)`.
    **Biased**, except (at tau = 1) for f that is quadratic in each variable given the others: there
    it is exact in expectation. For bits it is :class:`DARN`. The value is unbiased.

    Cost: ``samples`` evaluations, forward and backward. Needs: f differentiable; a Bernoulli or
    one-hot q.
    Reference: Liu et al., "Bridging discrete and backpropagation: straight-through and beyond",
    2023.

    Args:
        samples: number of draws N.
        temperature: tau > 0, a number, or a 0-d tensor; above 1 it trades bias for variance.
        draws: how the N draws depend on each other: "independent", "antithetic" or "latin"
            (stratified; often the best).
        validate: check f's values for NaN and inf (eager mode only).

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> ReinMax()(lambda x: 4 * x[..., 0], q, x=torch.ones(1, 2)).backward()
    >>> logits.grad
    tensor([1., 0.])
    """

    samples: int = 1
    temperature: float | Tensor = 1.0
    draws: Draws = "independent"
    validate: bool = True

    reference = "Liu et al. 2023"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_temperature("ReinMax", self.temperature)

    def mean(
        self, law: Factors, x: Tensor, noise: Tensor | None, generator: torch.Generator | None
    ) -> Float[Tensor, "#n *batch d k"]:
        return reinmax_mean(law, x, self.temperature)


def reinmax_mean(
    law: Factors, x: Float[Tensor, "n *batch_event"], temperature: float | Tensor
) -> Float[Tensor, "n *batch d k"]:
    """Return what ReinMax differentiates in place of the draws x."""
    p = law.probs.detach()
    is_tempered = isinstance(temperature, Tensor) or temperature != 1
    if law.kind == Kind.BITS and not is_tempered:
        return weighted_log_odds(law, (law.flat(x).to(law.real) - p[..., 1]).abs() / 2)
    logits, drawn = finite_log_probs(law), drawn_categories(law, x)
    tempered = (law.log_probs.detach() / temperature).softmax(-1) if is_tempered else p
    # 2 J((x + p) / 2) = 1/2 sum_k p_k (k - x) (k - x)^T + 1/2 J(p), with k and x one-hot.
    change = tempered / 2 * (logits - (drawn * logits).sum(-1, keepdim=True))
    mean = change - drawn * change.sum(-1, keepdim=True)
    if not is_tempered:
        return mean
    return mean + (times_jacobian(tempered, logits) - times_jacobian(p, logits)) / 2


def times_jacobian(p: Float[Tensor, "*lead k"], logits: Tensor) -> Float[Tensor, "*lead k"]:
    """Return J(p) times the logits, where J(p) is the derivative of softmax at probabilities p."""
    return p * logits - p * (p * logits).sum(-1, keepdim=True)


def midpoint(law: Factors, index: Int64[Tensor, "n *batch d"]) -> Factors:
    """Return the distribution halfway between q and each draw, a constant."""
    middle = (is_drawn(law, index) + law.probs.detach()) / 2
    return law.with_probs(middle, middle.log())
