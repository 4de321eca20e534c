"""RELAX: a learned network as a control variate."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Distribution

from ...checks import (
    check_module_device,
    check_network,
    check_number,
    check_positive,
    refuse_outputs,
)
from ...distributions.factors import factors, relaxable
from ...estimator import RELAXABLE, FromDraws, Function
from ...evaluation.evaluate import value_and_grad
from ...evaluation.networks import call_network
from ..logit_gradients import squared_norm, with_logit_gradient
from ..relaxations.relaxation import relaxed, relaxed_draws


class RELAX(FromDraws, nn.Module):
    r"""REINFORCE with a network of the relaxed draw as control variate, whose gradient is added
    back pathwise.

    .. math::
        \frac1N \sum_n \partial f(x) + \bigl[f(x) - c(z)\bigr]\, \partial \log q(x) + \sum_{i,k}
        \frac{\partial c}{\partial z_{ik}}\, e^{z_{ik} - \max_j z_{ij}}\; \partial \log p_i(k),
        \qquad
        z = \log p + g,\ x = \arg\max z

    with Gumbel g and :math:`c(z) = \text{network}(\operatorname{softmax}(z/\tau))`: :class:`REBAR`
    with a network in place of f, which stays a black box. The paper's
    :math:`\partial c(z) - \partial c(\tilde z)` is taken with both noises tied (see
    :class:`REBAR`). Unbiased for any network; the network is trained to lower the variance. Without
    one it is :class:`Reinforce`.

    Cost: ``samples`` evaluations of f, and of the network with its second derivative. Needs:
    any f; a Bernoulli or one-hot q; an optimiser for ``parameters()``.
    Reference: Grathwohl et al., "Backpropagation through the void", 2018.

    Args:
        samples: number of draws N.
        network: c, a smooth module (no ReLU) that maps relaxed points ``[n, *batch, *event]``,
            written as f sees them but between the categories, to ``[n, *batch, 1]`` or ``[n,
            *batch]``; None: zero.
        temperature: tau > 0 of the relaxation.
        validate: check f's values for NaN and inf (eager mode only).

    The call takes ``noise``, uniforms ``[n, *batch, d, k]`` that make z of x.

    >>> network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    >>> E = RELAX(samples=2, network=network)
    >>> bits = torch.distributions.Bernoulli(logits=torch.zeros(5, 3))
    >>> q = torch.distributions.Independent(bits, 1)
    >>> E(lambda x: (x.sum(-1) > 1).float(), q).sum().backward()
    >>> network[0].weight.grad.shape
    torch.Size([8, 3])
    """

    unbiased = True
    supports = RELAXABLE
    differentiates_f = False
    randomness = ("x", "noise")
    many_outputs = False
    reference = "Grathwohl et al. 2018"

    def __init__(
        self,
        samples: int = 1,
        network: nn.Module | None = None,
        temperature: float = 1.0,
        validate: bool = True,
    ) -> None:
        super().__init__()
        self.check_draws("samples", samples)
        check_network("RELAX", network)
        check_positive("RELAX", "temperature", temperature)
        check_number("RELAX", "temperature", temperature, 1e-30)
        self.samples = samples
        self.network = network
        self.temperature = temperature
        self.validate = validate

    def forward(
        self,
        f: Function,
        q: Distribution,
        *,
        x: Tensor | None = None,
        noise: Tensor | None = None,
        outputs: int = 0,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*batch"]:
        refuse_outputs("RELAX", outputs, "it learns a control variate of one output")
        law = factors(q, validate=self.validate)
        check_module_device(self, law.device)
        relaxable(q, law, "RELAX")
        draws = relaxed_draws(f, law, x, self.samples, noise, generator)
        if self.network is None:
            signal = draws.fx.detach().to(law.real)[..., None, None]
            return with_logit_gradient(draws.fx, law, (signal * draws.score).mean(0))
        network = self.network

        def control(z: Tensor) -> "tuple[Tensor]":
            points = relaxed(law, z, self.temperature)
            return (call_network("RELAX", network, points, draws.fx.shape),)

        (c,), (slope,) = value_and_grad(control, draws.z, create_graph=True)
        gradient = draws.gradient(law, c, slope)
        return with_logit_gradient(draws.fx, law, gradient, squared_norm(law, gradient))
