"""ARMS: any number of mutually antithetic draws of bits."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...distributions.factors import Factors
from ...estimator import BITS, Function
from ...evaluation.evaluate import evaluate
from ..logit_gradients import leave_one_out
from .coupling import CoupledDraws, antithetic_events, of_bits, pair_correction


@dataclass(frozen=True, repr=False)
class ARMS(CoupledDraws):
    r"""Leave-one-out REINFORCE on negatively dependent draws of bits, corrected for their
    dependence.

    .. math::
        \partial_{\eta_i} \approx \frac{1}{N-1} \sum_n \bigl(f(b^{(n)}) - \overline f\bigr)
        b_i^{(n)}\;
        \frac{\rho_i (1 - \rho_i)}{\rho_i - P_i}, \qquad \rho_i = \min(p_i, 1 - p_i)

    The draws are coupled by a Dirichlet copula: :math:`b_i^{(n)}` is the rarer value where
    :math:`(1 - d_i^{(n)})^{N-1} < \rho_i`, and
    :math:`(d_i^{(1)}, \dots, d_i^{(N)}) \sim \text{Dirichlet}(1, \dots, 1)`. Two draws are both
    rare with probability :math:`P_i = \max(0, 2 \rho_i^{1/(N-1)} - 1)^{N-1} \le \rho_i^2`. The
    value is the mean over the draws. Unbiased; with N = 2 it is :class:`DisARM`.

    Cost: ``samples`` evaluations. Needs: any f; a Bernoulli q.
    Reference: Dimitriev and Zhou, "ARMS: antithetic-REINFORCE-multi-sample gradient for binary
    variables", 2021.

    Args:
        samples: number of coupled draws N, at least 2.
        validate: check the values of f and q for NaN and inf (eager mode only).

    In place of ``x``, a call takes d as ``noise``, ``[samples, *batch, d]`` with sums 1 over the
    first dimension.

    >>> logits = torch.zeros(1, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> ARMS(samples=2)(lambda x: x[..., 0], q, noise=torch.tensor([[0.2], [0.8]])).backward()
    >>> logits.grad
    tensor([0.2500])
    """

    samples: int = 2
    validate: bool = True

    supports = BITS
    for_categories = "CARMS"
    simplex = 0
    least_samples = 2
    too_few = "One draw has no others to compare with: use Reinforce."
    reference = "Dimitriev & Zhou 2021a"

    def coupled(self, f: Function, law: Factors, noise: Tensor) -> tuple[Tensor, Tensor]:
        rare, category = law.probs.detach().min(-1)
        b = torch.where(antithetic_events(noise, rare), category, 1 - category)
        fx = evaluate(f, law.point(b), law)
        advantage = (fx - leave_one_out(fx)).detach().unsqueeze(-1)
        return fx, of_bits((advantage * b).mean(0) * pair_correction(self.samples, rare))
