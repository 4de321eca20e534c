"""ARMS: any number of mutually antithetic draws of bits."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution

from ...distributions.factors import bits_only, factors
from ...estimator import BITS, FromDraws, Function, attach
from ...evaluation.evaluate import evaluate
from ..logit_gradients import leave_one_out, logit_surrogate
from .coupling import antithetic_events, coupling_noise, pair_correction


@dataclass(frozen=True, repr=False)
class ARMS(FromDraws):
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

    Cost: ``samples`` evaluations. Needs: nothing of f; a Bernoulli q.
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

    unbiased = True
    supports = BITS
    differentiates_f = False
    randomness = ("noise",)
    least_samples = 2
    too_few = "One draw has no others to compare with: use Reinforce."
    reference = "Dimitriev & Zhou 2021a"

    def __call__(
        self,
        f: Function,
        q: Distribution,
        *,
        x: Tensor | None = None,
        noise: Tensor | None = None,
        outputs: int = 0,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*batch_outputs"]:
        law = factors(q, outputs=outputs, validate=self.validate)
        bits_only(q, law, "ARMS", "CARMS")
        n = self.samples
        shape = (n, *law.batch_shape, law.d)
        noise = coupling_noise(self, law, shape, x, noise, generator, simplex=0)
        rare, category = law.probs.detach().min(-1)
        b = torch.where(antithetic_events(noise, rare), category, 1 - category)
        fx = evaluate(f, law.point(b), law, validate=self.validate)
        values = fx.detach()
        advantage = (values - leave_one_out(values)).unsqueeze(-1)
        slope = (advantage * b).mean(0) * pair_correction(n, rare)
        value = fx.mean(0)
        return attach(value, value + logit_surrogate(law, torch.stack([-slope, slope], -1)))
