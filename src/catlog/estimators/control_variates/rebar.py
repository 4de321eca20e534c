"""REBAR: f at a relaxed draw as a control variate."""

from math import log

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Distribution

from ...checks import check_module_device, check_number, check_positive, refuse_outputs
from ...distributions.factors import Factors, factors, relaxable
from ...estimator import RELAXABLE, FromDraws, Function
from ...evaluation.evaluate import NOT_DIFFERENTIABLE, evaluate, value_and_grad
from ..logit_gradients import squared_norm, with_logit_gradient
from ..relaxations.relaxation import RelaxedDraws, relaxed, relaxed_draws


class REBAR(FromDraws, nn.Module):
    r"""REINFORCE with f at a relaxed draw as control variate, whose gradient is added back
    pathwise.

    .. math::
        \partial f(x) + \bigl[f(x) - \eta c(\tilde z)\bigr]\, \partial \log q(x) + \eta\, \partial
        c(z)
        - \eta\, \partial c(\tilde z), \qquad c(z) = f\bigl(\operatorname{softmax}(z/\tau)\bigr)

    averaged over N draws: :math:`z = \log p + g` with Gumbel g, :math:`x = \arg\max z`, and
    :math:`\tilde z` drawn given x. The noise of :math:`\tilde z` is tied to that of z so that both
    have the same value. As functions of p they still differ, and working out the derivatives gives

    .. math::
        \bigl[f(x) - \eta c(z)\bigr]\, \partial \log q(x) + \eta \sum_{i,k} \frac{\partial
        c}{\partial z_{ik}}\,
        e^{z_{ik} - \max_j z_{ij}}\; \partial \log p_i(k)

    which needs two evaluations per draw, not three. A bit is a variable of two categories. Unbiased
    for any :math:`\eta` and :math:`\tau`. Both are learned, :math:`\tau` from the second derivative
    of f. If f has none, or to save its cost, freeze :math:`\tau` with
    ``E.log_temperature.requires_grad_(False)``.

    Cost: 2 ``samples`` evaluations, half of them with a backward pass (and one through that, for
    :math:`\tau`). Needs: f differentiable, defined between the categories; a Bernoulli or one-hot
    q; an optimiser for ``parameters()``.
    Reference: Tucker et al., "REBAR: Low-variance, unbiased gradient estimates for discrete latent
    variable models", 2017.

    Args:
        samples: number of draws N.
        eta: initial value of the coefficient.
        temperature: initial value of tau > 0.
        validate: check f's values for NaN and inf (eager mode only).

    The call takes ``noise``, uniforms ``[n, *batch, d, k]`` from which z is made, given x.

    >>> E = REBAR(samples=2)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=torch.zeros(3)), 1)
    >>> E(lambda x: (x - 0.3).square().sum(-1), q).backward()
    >>> E.eta.grad is not None, E.log_temperature.grad is not None
    (True, True)
    """

    unbiased = True
    supports = RELAXABLE
    differentiates_f = True
    randomness = ("x", "noise")
    many_outputs = False
    reference = "Tucker et al. 2017"

    def __init__(
        self, samples: int = 1, eta: float = 1.0, temperature: float = 0.5, validate: bool = True
    ) -> None:
        super().__init__()
        self.check_draws("samples", samples)
        check_number("REBAR", "eta", eta)
        check_positive("REBAR", "temperature", temperature)
        check_number("REBAR", "temperature", temperature, 1e-30)
        self.samples = samples
        self.validate = validate
        self.eta = nn.Parameter(torch.tensor(float(eta)))
        self.log_temperature = nn.Parameter(torch.tensor(log(temperature)))

    def evaluations(self, q: Distribution) -> int:
        return 2 * self.samples

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
        refuse_outputs("REBAR", outputs, "it learns a control variate of one output")
        law = factors(q, validate=self.validate)
        check_module_device(self, law.device)
        relaxable(q, law, "REBAR")
        draws = relaxed_draws(f, law, x, self.samples, noise, generator)
        if not torch.is_grad_enabled():
            return draws.fx.mean(0)

        def objective(
            eta: Float[Tensor, "*batch"], temperature: Float[Tensor, "*batch"]
        ) -> "tuple[Tensor, Tensor]":
            gradient = self._gradient(f, law, draws, eta, temperature)
            return squared_norm(law, gradient), gradient

        eta = self.eta.to(law.real)
        temperature = self.log_temperature.to(law.real).exp()
        # The parameters of f must not learn to lower the variance. So the derivatives in eta and
        # the temperature are taken first, in copies that do not belong to f's graph.
        (_, gradient), (by_eta, by_temperature) = value_and_grad(
            objective,
            eta.detach().expand(law.batch_shape),
            temperature.detach().expand(law.batch_shape),
        )
        assert by_eta is not None
        learned = by_eta * eta + (0.0 if by_temperature is None else by_temperature * temperature)
        return with_logit_gradient(draws.fx, law, gradient, learned)

    def _gradient(
        self,
        f: Function,
        law: Factors,
        draws: RelaxedDraws,
        eta: Float[Tensor, "*batch"],
        temperature: Float[Tensor, "*batch"],
    ) -> Float[Tensor, "*batch d k"]:
        """Return the gradient in the logits, differentiable in eta and the temperature."""

        def control(z: Tensor) -> "tuple[Tensor]":
            points = relaxed(law, z, temperature[..., None, None]).to(law.dtype)
            return (evaluate(f, points, law).to(law.real),)

        learns = self.log_temperature.requires_grad
        (c,), (slope,) = value_and_grad(control, draws.z, create_graph=learns)
        if slope is None:
            raise ValueError(NOT_DIFFERENTIABLE)
        c = c if learns else c.detach()
        return draws.gradient(law, eta * c, eta[..., None, None] * slope)
