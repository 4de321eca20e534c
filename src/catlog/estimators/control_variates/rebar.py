"""REBAR: the relaxed f as a control variate."""

from math import log
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Distribution

from ...checks import check_count, check_number, check_positive
from ...distributions.factors import factors, relaxable
from ...estimator import RELAXABLE, Function, Kind, Target, attach, label
from ...evaluation.evaluate import NOT_DIFFERENTIABLE, evaluate, value_and_grad
from ...sampling.draw import base_draws
from ..logit_gradients import logit_surrogate, score_in_logits, squared_norm, to_logit_gradient
from ..relaxations.relaxation import conditional_gumbels, relaxed


class REBAR(nn.Module):
    r"""REINFORCE less that of the relaxed f, plus the pathwise derivative of the relaxed f.

    .. math::
        \partial f(x) + \bigl[f(x) - \eta c(\tilde z)\bigr]\, \partial \log q(x) + \eta\, \partial c(z)
        - \eta\, \partial c(\tilde z), \qquad c(z) = f\bigl(\operatorname{softmax}(z/\tau)\bigr)

    averaged over N draws: :math:`z = \log p + g` with Gumbel g, :math:`x = \arg\max z`, and :math:`\tilde z` drawn given x. The
    noise of :math:`\tilde z` is tied to that of z so that both have the same value; as functions of p they still differ, and
    with the derivatives worked out what is left is

    .. math::
        \bigl[f(x) - \eta c(z)\bigr]\, \partial \log q(x) + \eta \sum_{i,k} \frac{\partial c}{\partial z_{ik}}\,
        e^{z_{ik} - \max_j z_{ij}}\; \partial \log p_i(k)

    which needs two evaluations a draw, not three. Bits are two categories. Unbiased for any :math:`\eta` and :math:`\tau`;
    both are learned, :math:`\tau` by the second derivative of f: freeze it by ``E.log_temperature.requires_grad_(False)``
    where f has none, or to save its cost.

    Cost: 2 ``samples`` evaluations, half of them with a backward pass (and one through that, for :math:`\tau`). Needs: f
    differentiable, defined between the categories; a Bernoulli or one-hot law; an optimiser for ``parameters()``.
    Reference: Tucker et al., "REBAR: Low-variance, unbiased gradient estimates for discrete latent variable models", 2017.

    Args:
        samples: number of draws N.
        eta: the coefficient to start from.
        temperature: tau > 0 to start from.
        validate: check f's values for NaN and inf (eager mode only).

    The call takes ``noise``, uniforms ``[n, *batch, d, k]`` that make z of x.

    >>> E = REBAR(samples=2)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=torch.zeros(3)), 1)
    >>> E(lambda x: (x - 0.3).square().sum(-1), q).backward()
    >>> E.eta.grad is not None, E.log_temperature.grad is not None
    (True, True)
    """

    target: ClassVar[Target] = "expectation"
    unbiased: ClassVar[bool] = True
    supports: ClassVar[frozenset[Kind]] = RELAXABLE
    differentiates_f: ClassVar[bool] = True
    randomness: ClassVar[tuple[str, ...]] = ("x", "noise")
    reference: ClassVar[str] = "Tucker et al. 2017"

    __repr__ = label

    def __init__(
        self, samples: int = 1, eta: float = 1.0, temperature: float = 0.5, validate: bool = True
    ) -> None:
        super().__init__()
        check_count("REBAR", "samples", samples)
        check_number("REBAR", "eta", eta)
        check_positive("REBAR", "temperature", temperature)
        self.samples, self.validate = samples, validate
        self.eta = nn.Parameter(torch.tensor(float(eta)))
        self.log_temperature = nn.Parameter(torch.tensor(log(temperature)))

    def rows(self, q: Distribution) -> int:
        return self.samples

    def evaluations(self, q: Distribution) -> int:
        return 2 * self.samples

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
        relaxable(q, law, "REBAR")
        x = base_draws(law, x, self.samples, generator=generator, validate=self.validate)
        fx = evaluate(f, x, law, validate=self.validate)
        index = law.index(x)
        score = score_in_logits(law, index)[1]
        given, left = conditional_gumbels(law, index, noise, generator, self.validate)
        if not torch.is_grad_enabled():
            return fx.mean(0)

        def objective(
            eta: Float[Tensor, "*batch"], temperature: Float[Tensor, "*batch"]
        ) -> "tuple[Tensor, Tensor]":
            """The squared norm of the gradient in the logits, and the gradient."""

            def control(z: Tensor) -> "tuple[Tensor]":
                points = relaxed(law, z, temperature[..., None, None]).to(law.dtype)
                return (evaluate(f, points, law, validate=self.validate).to(law.real),)

            learns = self.log_temperature.requires_grad
            (c,), (slope,) = value_and_grad(control, given, create_graph=learns)
            if slope is None:
                raise ValueError(NOT_DIFFERENTIABLE)
            c = c if learns else c.detach()
            rest = fx.detach().to(law.real) - eta * c
            gradient = rest[..., None, None] * score + to_logit_gradient(
                law, eta[..., None, None] * slope * left
            )
            gradient = gradient.mean(0)
            return squared_norm(law, gradient), gradient

        eta, temperature = self.eta.to(law.real), self.log_temperature.to(law.real).exp()
        own = [each.detach().expand(law.batch_shape) for each in (eta, temperature)]
        # f's own parameters must not learn to lower the variance: the derivatives in ours are taken apart from its graph.
        (_, gradient), (by_eta, by_temperature) = value_and_grad(objective, *own)
        gradient = gradient.detach()
        assert by_eta is not None
        learned = by_eta * eta + (0.0 if by_temperature is None else by_temperature * temperature)
        value = fx.mean(0)
        return attach(value, value + logit_surrogate(law, gradient), learned)
