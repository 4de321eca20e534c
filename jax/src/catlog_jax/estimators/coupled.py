"""f at coupled draws of bits, with a gradient in the logits from the values there."""

import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient

from ..estimator import Count, Estimate, Estimator
from ..evaluator import Evaluator
from ..factors import Bernoulli, expand
from ..randomness import Randomness
from .score_function import leave_one_out
from .straight_through import positive

__all__ = ["ARMS", "DisARM"]


class DisARM(Estimator[Bernoulli]):
    r"""The difference of f at an antithetic pair of draws, credited to the bits in which the pair
    differs.

    .. math::
        \partial_{\eta_i} \approx \frac1N \sum_n \tfrac12 \bigl(f(b^{(n)}) - f(\tilde b^{(n)})\bigr)
        (b_i^{(n)} - \tilde b_i^{(n)})\, \sigma(|\eta_i|), \qquad b = 1[u > 1 - p],\; \tilde b = 1[u
        < p]

    with :math:`\eta` the log-odds. Unbiased. The value is the mean over all 2N points.

    Cost: 2 ``samples`` evaluations. Needs: any f; a Bernoulli q.
    Reference: Dong et al., "DisARM: an antithetic gradient estimator for binary latent variables",
    2020; Yin et al. (U2G), 2020.

    Args:
        samples: number of pairs N.

    In place of ``x``, a call takes the uniforms as ``noise``, ``[samples, d]``.

    >>> noise = jnp.array([[0.9, 0.2]])
    >>> jax.grad(
    ...     lambda logits: DisARM()(
    ...         jax.random.key(0), lambda x: x[0], Bernoulli(logits), noise=noise
    ...     )
    ... )(jnp.zeros(2))
    Array([ 0.25, -0.25], dtype=float32)
    """

    samples: Count = 1

    def estimate(self, f: Evaluator, q: Bernoulli, draw: Randomness) -> Estimate:
        u = draw.uniform(self.samples, q.d)
        b, anti = q.from_uniforms(u), q.from_uniforms(1 - u)
        fx = f(q.point(jnp.concatenate([b, anti])))
        values, anti_values = jnp.split(stop_gradient(fx), 2)
        difference = (values - anti_values)[:, None]
        change = (difference * expand(b - anti, difference)).mean(0)  # [d, *out]
        value = fx.mean(0)
        gradient = change * expand(q.p.max(-1) / 2, change)
        return Estimate(value, value + q.with_odds_gradient(gradient))


class ARMS(Estimator[Bernoulli]):
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

    In place of ``x``, a call takes uniforms as ``noise``, ``[samples, d]``: u such that d is
    -log u, divided by its sum over the draws.

    >>> noise = jnp.array([[0.2], [0.8]])
    >>> jax.grad(
    ...     lambda logits: ARMS()(jax.random.key(0), jnp.sum, Bernoulli(logits), noise=noise)
    ... )(jnp.zeros(1))
    Array([0.25], dtype=float32)
    """

    samples: Count = 2

    least_samples = 2

    def estimate(self, f: Evaluator, q: Bernoulli, draw: Randomness) -> Estimate:
        n = self.samples
        exponential = -jnp.log(positive(draw.uniform(n, q.d)))
        dirichlet = exponential / exponential.sum(0)
        rare, category = q.p.min(-1), q.p.argmin(-1)
        b = jnp.where((1 - dirichlet) ** (n - 1) < rare, category, 1 - category)
        fx = f(q.point(b))
        advantage = stop_gradient(fx - leave_one_out(fx))[:, None]
        mean = (advantage * expand(b, advantage)).mean(0)  # [d, *out]
        value = fx.mean(0)
        gradient = mean * expand(pair_correction(n, rare), mean)
        return Estimate(value, value + q.with_odds_gradient(gradient))


def pair_correction(n: int, chance: Array) -> Array:
    """Return the ratio of P(one of two events happens) for independent and for antithetic events.

    It is c (1 - c) / (c - P(both)), which is at most 1. Both happen where both noises exceed
    t = 1 - c^(1 / (n - 1)), and P(noise_1 > t, noise_2 > t) = max(0, 1 - 2t)^(n - 1).
    """
    both = jnp.maximum(2 * chance ** (1 / (n - 1)) - 1, 0) ** (n - 1)
    return (1 - chance) / (1 - both / positive(chance))
