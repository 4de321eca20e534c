"""The mean of f at draws, differentiated through the draws: straight-through and relaxations."""

from dataclasses import KW_ONLY
from typing import ClassVar, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from ..estimator import Count, Estimate, Estimator, Positive
from ..evaluator import Evaluator
from ..factors import Bernoulli, RelaxableFactors, pick, times_jacobian, zero
from ..randomness import Randomness, Sampling

__all__ = ["GumbelRao", "GumbelSoftmax", "ReinMax", "StraightThrough"]

R = TypeVar("R", bound=RelaxableFactors)
IMPOSSIBLE = -1e30  # in place of -inf where it is multiplied: 0 times it is 0


class Through(Estimator[R]):
    """The mean of f at draws of independent variables, differentiated through the draws.

    A subclass defines :meth:`points`. It can be used without f as well, by
    :func:`catlog_jax.sample`.
    """

    samples: Count = 1
    _: KW_ONLY
    sampling: Sampling = "independent"

    unbiased: ClassVar[bool] = False

    @property
    def differentiates_f(self) -> bool:
        return True

    def points(self, q: R, draw: Randomness) -> Array:
        """Return draws with this estimator's derivative, ``[n, *event]``."""
        raise NotImplementedError

    def estimate(self, f: Evaluator, q: R, draw: Randomness) -> Estimate:
        mean = f.through(self.points(q, draw)).mean(0)
        return Estimate(mean, mean)


class StraightThrough(Through[RelaxableFactors]):
    r"""The derivative of f at the draw, used as the derivative of f in the probabilities.

    .. math:: \frac1N \sum_n \partial_x f(x^{(n)}) \cdot \partial p

    **Biased**, except for f that is multilinear in x (there it is exact in expectation). The value
    is unbiased.

    Cost: ``samples`` evaluations, forward and backward. Needs: f differentiable; a Bernoulli or
    one-hot q.
    Reference: Bengio et al., "Estimating or propagating gradients through stochastic neurons",
    2013.

    Args:
        samples: number of draws N.
        sampling: how the N draws depend on each other: "independent", "antithetic" or "latin".

    >>> jax.grad(
    ...     lambda logits: StraightThrough()(
    ...         jax.random.key(0), lambda x: 4 * x[0], Bernoulli(logits)
    ...     )
    ... )(jnp.zeros(2))
    Array([1., 0.], dtype=float32)
    """

    def points(self, q: RelaxableFactors, draw: Randomness) -> Array:
        return q.weighted(draw.points(self.samples, self.sampling), 1.0, 0.0)


class ReinMax(Through[RelaxableFactors]):
    r"""Straight-through of second order: differences of f are approximated by the trapezoidal rule.

    .. math::
        \frac1N \sum_n \partial_x f(x^{(n)}) \cdot
        \bigl(2 J(\tfrac{x^{(n)} + p_\tau}{2}) - \tfrac12 J(p)\bigr)\, \partial \text{logits},
        \qquad
        J(p) = \operatorname{diag}(p) - p p^\top, \quad p_\tau =
        \operatorname{softmax}(\text{logits} / \tau)

    In expectation, at tau = 1, every difference of f between two categories is replaced by the mean
    of its slopes at both. **Biased**, except (at tau = 1) for f that is quadratic in each variable
    given the others: there it is exact in expectation. The value is unbiased.

    Cost: ``samples`` evaluations, forward and backward. Needs: f differentiable; a Bernoulli or
    one-hot q.
    Reference: Liu et al., "Bridging discrete and backpropagation: straight-through and beyond",
    2023.

    Args:
        samples: number of draws N.
        temperature: tau > 0; above 1 it trades bias for variance.
        sampling: how the N draws depend on each other: "independent", "antithetic" or "latin"
            (stratified; often the best).

    >>> jax.grad(
    ...     lambda logits: ReinMax()(jax.random.key(0), lambda x: 4 * x[0], Bernoulli(logits))
    ... )(jnp.zeros(2))
    Array([1., 0.], dtype=float32)
    """

    _: KW_ONLY
    temperature: Positive = 1.0

    arrays = ("temperature",)

    def points(self, q: RelaxableFactors, draw: Randomness) -> Array:
        x = draw.points(self.samples, self.sampling)
        if isinstance(self.temperature, int | float) and self.temperature == 1:
            return q.weighted(x, 0.5, 0.5)
        log_probs = jnp.where(q.possible, q.table, -jnp.inf)
        tempered = jax.nn.softmax(jax.lax.stop_gradient(log_probs) / self.temperature, -1)
        drawn, logits = q.drawn(x), q.table
        # 2 J((x + p) / 2) = 1/2 sum_k p_k (k - x) (k - x)^T + 1/2 J(p), with k and x one-hot
        change = tempered / 2 * (logits - (drawn * logits).sum(-1, keepdims=True))
        change = change - drawn * change.sum(-1, keepdims=True)
        flat = times_jacobian(tempered, logits) - times_jacobian(q.p, logits)
        return q.through(x, change + flat / 2)


def positive(uniforms: Array) -> Array:
    """Return the uniforms, positive: the logarithm of 0 is infinite."""
    return jnp.maximum(uniforms, jnp.finfo(uniforms.dtype).tiny)


def gumbels(uniforms: Array) -> Array:
    """Return standard Gumbel noise, made from uniforms in [0, 1)."""
    return -jnp.log(-jnp.log(positive(uniforms)))


def gumbels_given_argmax(log_probs: Array, index: Array, uniforms: Array) -> Array:
    r"""Return :math:`z = \log p + g` with Gumbel noise g, given that its argmax is ``index``.

    With :math:`e_k` standard exponential (:math:`-\log` of the uniforms) and j the argmax: the
    maximum is independent of its position, :math:`z_j = -\log e_j`, and the others are Gumbels
    truncated there, :math:`z_k = -\log(e_k / p_k + e_j)`. An impossible category has a very low
    number.
    """
    log_e = -gumbels(uniforms)
    log_probs = jnp.maximum(jax.lax.stop_gradient(log_probs), IMPOSSIBLE)
    index = jnp.broadcast_to(index, uniforms.shape[:-1])
    top = pick(log_e, index)[..., None]
    others = -jnp.logaddexp(log_e - log_probs, top)
    return jnp.where(index[..., None] == jnp.arange(log_e.shape[-1]), -top, others)


class GumbelSoftmax(Through[RelaxableFactors]):
    r"""The gradient of f through a continuous relaxation of the draw.

    .. math::
        \frac1N \sum_n \partial f\bigl(\operatorname{softmax}((\log p + g^{(n)})/\tau)\bigr), \qquad
        g \sim \text{Gumbel}

    A Bernoulli q uses the binary Concrete :math:`\sigma((\text{logit} + \ell)/\tau)` with logistic
    noise. With ``hard``, f sees the discrete draw (the argmax) and only the derivative is that of
    the relaxed one. The variance is low. It is **biased** for every temperature. Without ``hard``
    the value is also that of the relaxed draw.

    Cost: ``samples`` evaluations, forward and backward. Needs: f differentiable, defined between
    the categories; a Bernoulli or one-hot q.
    Reference: Jang et al., "Categorical reparameterization with Gumbel-Softmax", 2017; Maddison et
    al., "The Concrete distribution", 2017.

    Args:
        samples: number of draws N.
        temperature: tau > 0, a number, or an array that broadcasts to the logits of q.
        hard: straight-through.
        sampling: how the N draws depend on each other: "independent", "antithetic" or "latin".

    In place of ``x``, a call takes uniforms as ``noise``, ``[samples, d]`` for bits, else
    ``[samples, d, k]``.

    >>> E = GumbelSoftmax(samples=8, temperature=0.5)
    >>> E(jax.random.key(0), jnp.sum, Bernoulli(jnp.zeros(2))).shape
    ()
    """

    _: KW_ONLY
    temperature: Positive = 1.0
    hard: bool = False

    arrays = ("temperature",)
    twice = True  # those of the relaxation

    def points(self, q: RelaxableFactors, draw: Randomness) -> Array:
        shape = (q.d,) if isinstance(q, Bernoulli) else (q.d, q.k)
        temperature = jnp.broadcast_to(jnp.asarray(self.temperature), q.logits.shape).reshape(shape)
        u = draw.uniforms(self.samples, *shape, sampling=self.sampling)
        if isinstance(q, Bernoulli):
            u = positive(u)
            logistic = jnp.log(u) - jnp.log1p(-u)
            relaxed = jax.nn.sigmoid((q.flat + logistic) / temperature)
            discrete = (relaxed > 0.5).astype(relaxed.dtype)
            draws = q.point(discrete + zero(relaxed) if self.hard else relaxed)
        else:
            scores = (q.table + gumbels(u)) / temperature
            relaxed = jax.nn.softmax(scores, -1, where=q.possible)
            discrete = jax.nn.one_hot(relaxed.argmax(-1), q.k, dtype=relaxed.dtype)
            draws = q.to_point(discrete + zero(relaxed) if self.hard else relaxed)
        return draws


class GumbelRao(Through[RelaxableFactors]):
    r"""Straight-through Gumbel-Softmax, averaged over the noise that gives the same draw.

    .. math::
        \frac1N \sum_n \partial_x f(x^{(n)}) \cdot \frac1M \sum_{m}
        \partial \operatorname{softmax}\bigl((\log p + g^{(n,m)})/\tau\bigr),
        \qquad g \sim \text{Gumbel} \mid \arg\max(\log p + g) = x^{(n)}

    The noise g is held fixed in the derivative, as in ``GumbelSoftmax(hard=True)``, of which this
    is the conditional mean given the draw: the same expectation, also **biased**, at a lower
    variance. The value is unbiased.

    Cost: ``samples`` evaluations, forward and backward; M softmaxes. Needs: f differentiable, a
    Bernoulli or one-hot q.
    Reference: Paulus et al., "Rao-Blackwellizing the straight-through Gumbel-Softmax gradient
    estimator", 2021.

    Args:
        samples: number of draws N.
        noise_samples: number M of Gumbel vectors for each draw.
        temperature: tau > 0.
        sampling: how the N draws depend on each other: "independent", "antithetic" or "latin".

    The uniforms behind the Gumbels can be given to a call as ``noise``, ``[M, N, d, k]``.

    >>> E = GumbelRao(noise_samples=100, temperature=0.5)
    >>> E(jax.random.key(0), jnp.sum, Bernoulli(jnp.zeros(2))).shape
    ()
    """

    _: KW_ONLY
    noise_samples: Count = 10
    temperature: Positive = 1.0

    arrays = ("temperature",)

    def points(self, q: RelaxableFactors, draw: Randomness) -> Array:
        x = draw.points(self.samples, self.sampling)
        index = q.index(x)
        u = draw.uniform(self.noise_samples, *index.shape, q.k)
        z = gumbels_given_argmax(q.log_probs, index, u)
        scores = (z + zero(q.table)) / self.temperature
        return q.through(x, jax.nn.softmax(scores, -1, where=q.possible).mean(0))
