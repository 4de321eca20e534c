"""The gapped straight-through estimator."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ...checks import check_number, check_temperature
from ...distributions.factors import Factors
from ...estimator import Kind
from ...sampling.draw import Draws
from ..logit_gradients import finite_log_probs, is_drawn
from .relaxation import MeanThroughDraws, is_learned, weighted_log_odds


@dataclass(frozen=True, repr=False)
class GappedStraightThrough(MeanThroughDraws):
    r"""Straight-through at logits that are moved, so that they favour the draw by a gap.

    .. math::
        \frac1N \sum_n \partial_x f(x^{(n)}) \cdot
        \partial \operatorname{softmax}\bigl((\text{logits} + m_1 - m_2)/\tau\bigr), \qquad
        m_1 = (\max \text{logits} - \text{logits}) \odot x, \quad
        m_2 = (\text{logits} - \max \text{logits} + \text{gap})_+ \odot (1 - x)

    The moves :math:`m_1` and :math:`m_2` are held fixed in the derivative. They lift the logit of
    the drawn category to the largest one and push those of the others at least a gap below, the two
    properties of the Gumbel-Softmax's noisy logits that matter, without its noise. **Biased**, also
    for linear f. The value is unbiased.

    Cost: ``samples`` evaluations, forward and backward. Needs: f differentiable; a Bernoulli or
    one-hot q.
    Reference: Fan et al., "Training discrete deep generative models via gapped straight-through
    estimator", 2022.

    Args:
        samples: number of draws N.
        temperature: tau > 0, a number, or a 0-d tensor.
        gap: at least 0. None: :math:`-\log(1 - p(x)) / p(x)` for the drawn category, as the
            authors' code offers it.
        draws: how the N draws depend on each other: "independent", "antithetic" or "latin"
            (stratified; often the best).
        validate: check f's values for NaN and inf (eager mode only).

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> GappedStraightThrough(gap=0.0)(lambda x: 4 * x[..., 0], q, x=torch.ones(1, 2)).backward()
    >>> logits.grad
    tensor([1., 0.])
    """

    samples: int = 1
    temperature: float | Tensor = 1.0
    gap: float | None = 1.0
    draws: Draws = "independent"
    validate: bool = True

    reference = "Fan et al. 2022"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_temperature("GappedStraightThrough", self.temperature)
        if self.gap is not None:
            check_number("GappedStraightThrough", "gap", self.gap, least=0)

    def mean(
        self, law: Factors, x: Tensor, noise: Tensor | None, generator: torch.Generator | None
    ) -> Float[Tensor, "#n *batch d k"]:
        if law.kind == Kind.BITS and not is_learned(self.temperature):
            return weighted_log_odds(law, self._weight(law, law.flat(x).to(law.real)))
        drawn = is_drawn(law, law.index(x))
        logits = law.log_probs.detach()
        top = logits.amax(-1, keepdim=True)
        gap: float | Tensor | None = self.gap
        if gap is None:
            gap = automatic_gap((law.probs.detach() * drawn).sum(-1, keepdim=True))
        lowered = logits - (logits - top + gap).clamp(min=0)
        moved = torch.where(drawn, top, lowered)
        free = finite_log_probs(law)
        return ((moved + (free - free.detach())) / self.temperature).softmax(-1)

    def _weight(
        self, law: Factors, bit: Float[Tensor, "n *batch d"]
    ) -> Float[Tensor, "n *batch d"]:
        """Return the derivative of the softmax at the moved logits in the log-odds of the bit.

        The moved logits differ by the log-odds of the drawn value, or by the gap if that is more.
        """
        logits = law.log_probs.detach()
        odds = (2 * bit - 1) * (logits[..., 1] - logits[..., 0])
        if self.gap is None:
            p = law.probs.detach()
            odds = odds.maximum(automatic_gap(torch.where(bit > 0, p[..., 1], p[..., 0])))
        else:
            odds = odds.clamp(min=self.gap)
        other = (-odds / self.temperature).sigmoid()
        return other * (1 - other) / self.temperature


def automatic_gap(p: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return the gap that the authors' code offers for a drawn category of probability p."""
    p = p * (1 - 1e-5)  # a certain category would have an infinite gap
    return -(-p).log1p() / p
