"""RELAX: a learned network as a control variate."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Distribution

from ...checks import check_count, check_network, check_positive
from ...distributions.factors import factors, relaxable
from ...estimator import RELAXABLE, Function, Kind, Target, attach, label
from ...evaluation.evaluate import evaluate, value_and_grad
from ...evaluation.networks import call_network
from ...sampling.draw import base_draws
from ..logit_gradients import logit_surrogate, score_in_logits, squared_norm, to_logit_gradient
from ..relaxations.relaxation import conditional_gumbels, relaxed


class RELAX(nn.Module):
    r"""REINFORCE less that of a network on relaxed points, plus the network's pathwise derivative.

    .. math::
        \frac1N \sum_n \partial f(x) + \bigl[f(x) - c(z)\bigr]\, \partial \log q(x) + \sum_{i,k}
        \frac{\partial c}{\partial z_{ik}}\, e^{z_{ik} - \max_j z_{ij}}\; \partial \log p_i(k), \qquad
        z = \log p + g,\ x = \arg\max z

    with Gumbel g and :math:`c(z) = \text{network}(\operatorname{softmax}(z/\tau))`: :class:`REBAR` with a network in place of f,
    which stays a black box. The paper's :math:`\partial c(z) - \partial c(\tilde z)` is there with both noises tied (see
    :class:`REBAR`). Unbiased for any network; it is trained to lower the variance. Without one it is :class:`Reinforce`.

    Cost: ``samples`` evaluations of f, and of the network with its second derivative. Needs: nothing of f; a Bernoulli or
    one-hot law; an optimiser for ``parameters()``.
    Reference: Grathwohl et al., "Backpropagation through the void", 2018.

    Args:
        samples: number of draws N.
        network: c, a smooth module (no ReLU) that maps relaxed points ``[n, *batch, *event]``, written as f sees them but between
            the categories, to ``[n, *batch, 1]`` or ``[n, *batch]``; None: zero.
        temperature: tau > 0 of the relaxation.
        validate: check f's values for NaN and inf (eager mode only).

    The call takes ``noise``, uniforms ``[n, *batch, d, k]`` that make z of x.

    >>> network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    >>> E = RELAX(samples=2, network=network)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=torch.zeros(5, 3)), 1)
    >>> E(lambda x: (x.sum(-1) > 1).float(), q).sum().backward()
    >>> network[0].weight.grad.shape
    torch.Size([8, 3])
    """

    target: ClassVar[Target] = "expectation"
    unbiased: ClassVar[bool] = True
    supports: ClassVar[frozenset[Kind]] = RELAXABLE
    differentiates_f: ClassVar[bool] = False
    randomness: ClassVar[tuple[str, ...]] = ("x", "noise")
    reference: ClassVar[str] = "Grathwohl et al. 2018"

    __repr__ = label

    def __init__(
        self,
        samples: int = 1,
        network: nn.Module | None = None,
        temperature: float = 1.0,
        validate: bool = True,
    ) -> None:
        super().__init__()
        check_count("RELAX", "samples", samples)
        check_network("RELAX", network)
        check_positive("RELAX", "temperature", temperature)
        self.samples, self.network, self.temperature, self.validate = (
            samples,
            network,
            temperature,
            validate,
        )

    def rows(self, q: Distribution) -> int:
        return self.samples

    def evaluations(self, q: Distribution) -> int:
        return self.samples

    def forward(
        self,
        f: Function,
        q: Distribution,
        *,
        x: Tensor | None = None,
        noise: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*batch"]:
        law = factors(q, validate=self.validate)
        relaxable(q, law, "RELAX")
        x = base_draws(law, x, self.samples, generator=generator, validate=self.validate)
        fx = evaluate(f, x, law, validate=self.validate)
        index = law.index(x)
        score = score_in_logits(law, index)[1]
        given, left = conditional_gumbels(law, index, noise, generator, self.validate)
        value, signal = fx.mean(0), fx.detach().to(law.real)
        if self.network is None:
            return attach(
                value, value + logit_surrogate(law, (signal[..., None, None] * score).mean(0))
            )
        network = self.network

        def control(z: Tensor) -> "tuple[Tensor]":
            return (call_network("RELAX", network, relaxed(law, z, self.temperature), fx.shape),)

        (c,), (slope,) = value_and_grad(control, given, create_graph=True)
        gradient = (signal - c)[..., None, None] * score
        if slope is not None:
            gradient = gradient + to_logit_gradient(law, slope * left)
        gradient = gradient.mean(0)
        return attach(value, value + logit_surrogate(law, gradient), squared_norm(law, gradient))
