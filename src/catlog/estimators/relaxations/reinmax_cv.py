"""ReinMax-CV: ReinMax with a difference of Gumbel-Rao and Gumbel-Softmax."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ...checks import check_count, check_number, check_temperature
from ...distributions.factors import Factors
from ...sampling.draw import Draws
from ...sampling.gumbel import truncated_gumbels
from ...sampling.randomness import given_or_rand
from ..logit_gradients import finite_log_probs
from .reinmax import midpoint, reinmax_mean
from .relaxation import MeanThroughDraws


@dataclass(frozen=True, repr=False)
class ReinMaxCV(MeanThroughDraws):
    r"""ReinMax, plus a control variate: Gumbel-Rao minus Gumbel-Softmax at the midpoint.

    .. math::
        \frac1N \sum_n \partial_x f(x^{(n)}) \cdot \Bigl(J_{\text{ReinMax}} + \eta\,
        \bigl(\frac1M \sum_m J(s(g^{(n,m)})) - J(s(h^{(n)}))\bigr)/\tau \Bigr)\, \partial
        \text{logits}, \qquad
        s(g) = \operatorname{softmax}\bigl((\log \tfrac{x + p}{2} + g)/\tau\bigr)

    with :math:`J_{\text{ReinMax}}` and J as in :class:`ReinMax` at tau = 1. The Gumbels h are those
    that drew x, :math:`x = \arg\max(\log p + h)`, and the g are drawn so that
    :math:`x = \arg\max(\log \tfrac{x + p}{2} + g)`. The two conditions differ, so the control
    variate's mean is small, but not 0. **Biased**, also for quadratic f, where ReinMax is exact.
    The value is unbiased.

    Cost: ``samples`` evaluations, forward and backward; M + 1 softmaxes. Needs: f differentiable; a
    Bernoulli or one-hot q.
    Reference: Wang & Bui, "Beyond ReinMax: low-variance gradient estimators for discrete latent
    variables", 2026, with the whole of ReinMax, as in the authors' code (equation 18 has a slip).

    Args:
        samples: number of draws N.
        noise_samples: number M of Gumbel vectors for each draw.
        temperature: tau > 0 of the control variate, a number, or a 0-d tensor.
        control_weight: eta, the weight of the control variate; 0 is ReinMax.
        draws: how the N draws depend on each other: "independent", "antithetic" or "latin"
            (stratified; often the best).
        validate: check f's values for NaN and inf (eager mode only).

    The uniforms behind h, then g can be given to a call as ``noise``, ``[1 + M, N, *batch, d, k]``.

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> ReinMaxCV(control_weight=0.0)(lambda x: 4 * x[..., 0], q, x=torch.ones(1, 2)).backward()
    >>> logits.grad
    tensor([1., 0.])
    """

    samples: int = 1
    noise_samples: int = 10
    temperature: float | Tensor = 1.0
    control_weight: float = 0.5
    draws: Draws = "independent"
    validate: bool = True

    randomness = ("x", "noise")
    reference = "Wang & Bui 2026"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("ReinMaxCV", "noise_samples", self.noise_samples)
        check_temperature("ReinMaxCV", self.temperature)
        check_number("ReinMaxCV", "control_weight", self.control_weight)

    def mean(
        self, law: Factors, x: Tensor, noise: Tensor | None, generator: torch.Generator | None
    ) -> Float[Tensor, "#n *batch d k"]:
        index = law.index(x)
        shape = (1 + self.noise_samples, *index.shape, law.k)
        form = "[1 + M, n, *batch, d, k]"
        u = given_or_rand(noise, shape, form, law, generator, lead=2)
        middle = midpoint(law, index)
        centre = middle.log_probs
        possible = law.possible
        h = truncated_gumbels(law, index, u[0]) - torch.where(possible, law.log_probs.detach(), 0.0)
        z = truncated_gumbels(middle, index, u[1:])
        logits = finite_log_probs(law)
        change = logits - logits.detach()
        rao = ((z + change) / self.temperature).softmax(-1).mean(0)
        drawn = ((torch.where(possible, centre, 0.0) + h + change) / self.temperature).softmax(-1)
        mean = reinmax_mean(law, x, 1.0)
        return mean + self.control_weight * (rao - drawn)
