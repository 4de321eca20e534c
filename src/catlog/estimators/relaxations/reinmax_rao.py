"""ReinMax-Rao: ReinMax with Gumbel-Rao's derivative at its midpoint."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ...checks import check_count, check_temperature
from ...distributions.factors import Factors
from ...sampling.draw import Draws
from ...sampling.gumbel import gumbels_given_argmax
from ..logit_gradients import finite_log_probs
from .reinmax import midpoint, times_jacobian
from .relaxation import MeanThroughDraws


@dataclass(frozen=True, repr=False)
class ReinMaxRao(MeanThroughDraws):
    r"""ReinMax, with the derivative at the midpoint averaged as in Gumbel-Rao.

    .. math::
        \frac1N \sum_n \partial_x f(x^{(n)}) \cdot \Bigl(\frac2M \sum_m
        \partial \operatorname{softmax}\bigl((\log \tfrac{x^{(n)} + p}{2} + g^{(n,m)})/\tau\bigr)
        - \tfrac12 \partial p\Bigr),
        \qquad g \sim \text{Gumbel} \mid \arg\max(\log \tfrac{x^{(n)} + p}{2} + g) = x^{(n)}

    x and g are held fixed in the derivative. :class:`ReinMax` has :math:`2 J(\tfrac{x + p}{2})` as
    its first term. This estimator smooths the spread of that term over draws; a higher temperature
    smooths more. **Biased**, also for quadratic f. The value is unbiased.

    Cost: ``samples`` evaluations, forward and backward; M softmaxes. Needs: f differentiable; a
    Bernoulli or one-hot q.
    Reference: Wang & Bui, "Beyond ReinMax: low-variance gradient estimators for discrete latent
    variables", 2026, with the second term at p, as in the authors' code (equation 17 has a slip).

    Args:
        samples: number of draws N.
        noise_samples: number M of Gumbel vectors for each draw.
        temperature: tau > 0, a number, or a 0-d tensor.
        draws: how the N draws depend on each other: "independent", "antithetic" or "latin"
            (stratified; often the best).
        validate: check f's values for NaN and inf (eager mode only).

    The uniforms behind the Gumbels can be given to a call as ``noise``, ``[M, N, *batch, d, k]``.

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> ReinMaxRao()(lambda x: 4 * x[..., 0], q, x=torch.ones(1, 2)).backward()
    >>> logits.grad.isfinite().all(), logits.grad[1]
    (tensor(True), tensor(0.))
    """

    samples: int = 1
    noise_samples: int = 10
    temperature: float | Tensor = 1.0
    draws: Draws = "independent"
    validate: bool = True

    randomness = ("x", "noise")
    reference = "Wang & Bui 2026"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("ReinMaxRao", "noise_samples", self.noise_samples)
        check_temperature("ReinMaxRao", self.temperature)

    def mean(
        self, law: Factors, x: Tensor, noise: Tensor | None, generator: torch.Generator | None
    ) -> Float[Tensor, "#n *batch d k"]:
        index = law.index(x)
        z = gumbels_given_argmax(
            midpoint(law, index), index, noise, (self.noise_samples,), generator
        )
        logits = finite_log_probs(law)
        soft = ((z + (logits - logits.detach())) / self.temperature).softmax(-1).mean(0)
        return 2 * soft - times_jacobian(law.probs.detach(), logits) / 2
