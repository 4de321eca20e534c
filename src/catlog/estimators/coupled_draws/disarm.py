"""DisARM, also known as U2G: ARM with its noise integrated out."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution

from ...distributions.factors import Factors
from ...estimator import BITS, Function
from ...evaluation.evaluate import evaluate
from ...sampling.draw import categories
from .coupling import CoupledDraws, of_bits


@dataclass(frozen=True, repr=False)
class DisARM(CoupledDraws):
    r"""The difference of f at an antithetic pair of draws, credited to the bits in which the pair
    differs.

    .. math::
        \partial_{\eta_i} \approx \frac1N \sum_n \tfrac12 \bigl(f(b^{(n)}) - f(\tilde b^{(n)})\bigr)
        (b_i^{(n)} - \tilde b_i^{(n)})\, \sigma(|\eta_i|), \qquad b = 1[u > 1 - p],\; \tilde b = 1[u
        < p]

    It is the conditional expectation of :class:`ARM` given the pair, so it never has more variance.
    With one pair it is also :class:`ARMS` with two draws. The value is the mean over all 2N points.
    A q given by probabilities gets the same gradient, through
    :math:`\partial p_i = p_i (1 - p_i)\, \partial \eta_i`.

    Cost: 2 ``samples`` evaluations. Needs: any f; a Bernoulli q.
    Reference: Dong et al., "DisARM: an antithetic gradient estimator for binary latent variables",
    2020; Yin et al., "Probabilistic best subset selection via gradient-based optimization" (U2G),
    2020.

    Args:
        samples: number of pairs N.
        validate: check the values of f and q for NaN and inf (eager mode only).

    In place of ``x``, a call takes the uniforms as ``noise``, ``[samples, *batch, d]``.

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> DisARM()(lambda x: x[..., 0], q, noise=torch.tensor([[0.9, 0.2]])).backward()
    >>> logits.grad
    tensor([ 0.2500, -0.2500])
    """

    samples: int = 1
    validate: bool = True

    supports = BITS
    for_categories = "DisARMTree"
    reference = "Dong et al. 2020; Yin et al. 2020"

    def evaluations(self, q: Distribution) -> int:
        return 2 * self.samples

    def coupled(self, f: Function, law: Factors, noise: Tensor) -> tuple[Tensor, Tensor]:
        b, anti = categories(law, noise), categories(law, 1 - noise)
        fx = evaluate(f, law.point(torch.cat([b, anti])), law)
        values, anti_values = fx.detach().chunk(2)
        change = ((values - anti_values).unsqueeze(-1) * (b - anti)).mean(0)
        return fx, of_bits(change * law.probs.detach().amax(-1) / 2)
