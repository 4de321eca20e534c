"""ARM: augment, REINFORCE, merge."""

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
class ARM(CoupledDraws):
    r"""The difference of f at an antithetic pair of draws, weighted by the uniform noise behind the
    pair.

    .. math::
        \partial_{\eta_i} \approx \frac1N \sum_n \bigl(f(b^{(n)}) - f(\tilde
        b^{(n)})\bigr)\bigl(u_i^{(n)} - \tfrac12\bigr),
        \qquad b = 1[u > 1 - p],\; \tilde b = 1[u < p],\; u \sim \text{Uniform}

    with :math:`\eta` the log-odds; the value is the mean over all 2N points, and the gradient in
    the parameters of f is that of the value. It is unbiased and needs no tuning. :class:`DisARM`
    has the same cost and never more variance, so use it instead.

    Cost: 2 ``samples`` evaluations. Needs: any f; a Bernoulli q.
    Reference: Yin and Zhou, "ARM: augment-REINFORCE-merge gradient for stochastic binary networks",
    2019.

    Args:
        samples: number of pairs N.
        validate: check the values of f and q for NaN and inf (eager mode only).

    In place of ``x``, a call takes the uniforms as ``noise``, ``[samples, *batch, d]``.

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> ARM()(lambda x: x[..., 0], q, noise=torch.tensor([[0.75, 0.5]])).backward()
    >>> logits.grad
    tensor([0.2500, 0.0000])
    """

    samples: int = 1
    validate: bool = True

    supports = BITS
    for_categories = "ARSM"
    reference = "Yin & Zhou 2019"

    def evaluations(self, q: Distribution) -> int:
        return 2 * self.samples

    def coupled(self, f: Function, law: Factors, noise: Tensor) -> tuple[Tensor, Tensor]:
        index = torch.cat([categories(law, noise), categories(law, 1 - noise)])
        fx = evaluate(f, law.point(index), law)
        values, anti_values = fx.detach().chunk(2)
        return fx, of_bits(((values - anti_values).unsqueeze(-1) * (noise - 0.5)).mean(0))
