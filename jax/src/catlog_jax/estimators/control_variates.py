"""REBAR: a score-function estimator with f at relaxed draws as its control variate."""

from dataclasses import KW_ONLY
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient

from ..estimator import Count, Estimate, Estimator, Positive
from ..evaluator import Evaluator
from ..factors import RelaxableFactors
from ..randomness import Randomness
from .straight_through import gumbels_given_argmax

__all__ = ["REBAR"]


class REBAR(Estimator[RelaxableFactors]):
    r"""REINFORCE with f at a relaxed draw as control variate, whose gradient is added back
    pathwise.

    .. math::
        \bigl[f(x) - \eta c(z)\bigr]\, \partial \log q(x) + \eta \sum_{i,k} \frac{\partial
        c}{\partial z_{ik}}\,
        e^{z_{ik} - \max_j z_{ij}}\; \partial \log p_i(k), \qquad c(z) =
        f\bigl(\operatorname{softmax}(z/\tau)\bigr)

    averaged over N draws: :math:`z = \log p + g` with Gumbel g and :math:`x = \arg\max z`. The
    noise of z given x is tied to that of z, which needs two evaluations per draw, not three. A bit
    is a variable of two categories. Unbiased for any :math:`\eta` and :math:`\tau`.

    Both can be learned. Where ``eta`` or ``temperature`` is an array, ``jax.grad`` gives it the
    gradient of the *variance* of the loss, whatever the sign and the scale of the loss, so an
    optimiser lowers it::

        def loss(params, key):
            E = REBAR(8, eta=params["eta"], temperature=jnp.exp(params["log_temperature"]))
            return E(key, f, Bernoulli(params["logits"]))

    Cost: 2 ``samples`` evaluations, half of them with a backward pass (and one through that, where
    it learns). Needs: f differentiable, defined between the categories; a Bernoulli or one-hot q.
    Reference: Tucker et al., "REBAR: Low-variance, unbiased gradient estimates for discrete latent
    variable models", 2017.

    Args:
        samples: number of draws N.
        eta: the coefficient.
        temperature: tau > 0.

    The call takes ``noise``, uniforms ``[n, d, k]`` from which z is made, given x.

    >>> E = REBAR(samples=2)
    >>> E(jax.random.key(0), lambda x: ((x - 0.3) ** 2).sum(), Bernoulli(jnp.zeros(3))).shape
    ()
    """

    samples: Count = 1
    _: KW_ONLY
    eta: float | Array = 1.0
    temperature: Positive = 0.5

    arrays = ("eta", "temperature")
    many_outputs: ClassVar[bool] = False

    @property
    def differentiates_f(self) -> bool:
        return True

    def estimate(self, f: Evaluator, q: RelaxableFactors, draw: Randomness) -> Estimate:
        f.check_dependence()
        x = draw.points(self.samples)
        fx, index = f(x), q.index(x)
        f.evaluations += len(x)  # those of the control variate
        z = gumbels_given_argmax(q.log_probs, index, draw.uniform(*index.shape, q.k))
        f_constant, score = f.constant, q.score(index)
        weight = jnp.exp(z - z.max(-1, keepdims=True))

        def control(z: Array, temperature: Array) -> Array:
            scaled = jnp.where(q.possible, z, 0.0) / temperature
            relaxed = jax.nn.softmax(scaled, -1, where=q.possible)
            return f_constant(q.to_point(relaxed[None])[0])

        def gradient(eta: Array, temperature: Array) -> tuple[Array, Array]:
            """Return the squared norm of the gradient in the logits, and the gradient."""
            c, slope = jax.vmap(jax.value_and_grad(control), (0, None))(z, temperature)
            pathwise = slope * weight
            pathwise = pathwise - q.p * pathwise.sum(-1, keepdims=True)
            residual = (stop_gradient(fx) - eta * c)[:, None, None]
            mean = (residual * score + eta * pathwise).mean(0)
            return q.squared_norm(mean), mean

        value = fx.mean(0)
        settings = [jnp.asarray(s, q.real) for s in (self.eta, self.temperature)]
        if not any(isinstance(s, jax.Array) for s in (self.eta, self.temperature)):
            return Estimate(value, value + q.with_gradient(gradient(*settings)[1]))
        fixed = [stop_gradient(s) for s in settings]
        by_setting, mean = jax.grad(gradient, (0, 1), has_aux=True)(*fixed)
        objective = sum(by * s for by, s in zip(by_setting, settings, strict=True))
        surrogate = with_objective(value + q.with_gradient(mean), objective)
        return Estimate(value, surrogate)


@jax.custom_vjp
def with_objective(surrogate: Array, objective: Any) -> Array:
    """Return ``surrogate``. In a backward pass, ``objective`` gets the *squared* gradient.

    If the loss is a sum of estimates times weights w, the variance of its gradient is that of the
    squared norms times w^2.
    """
    return surrogate


def _forward(surrogate: Array, objective: Array) -> tuple[Array, None]:
    return surrogate, None


def _backward(residuals: None, gradient: Array) -> tuple[Array, Array]:
    return gradient, gradient**2


with_objective.defvjp(_forward, _backward)
