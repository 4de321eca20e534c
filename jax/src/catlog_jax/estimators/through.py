"""Estimators that differentiate f through draws: straight-through and relaxations."""

from dataclasses import KW_ONLY
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient

from ..estimator import Estimate, Estimator, once
from ..evaluator import Evaluator
from ..factors import Bernoulli, OneHot, RelaxableFactors, pick, times_jacobian, zero
from ..randomness import Randomness
from ..settings import Count, Flag, Positive, Sampling

__all__ = ["REBAR", "GumbelRao", "GumbelSoftmax", "ReinMax", "StraightThrough", "sample"]

IMPOSSIBLE = -1e30  # in place of -inf where it is multiplied: 0 times it is 0


class Through(Estimator[RelaxableFactors]):
    """The mean of f at draws of independent variables, differentiated through the draws.

    A subclass defines :meth:`points`. It can be used without f as well, by
    :func:`catlog_jax.sample`.
    """

    samples: Count = 1
    _: KW_ONLY
    sampling: Sampling = "independent"

    unbiased = False
    differentiates_f = True

    def points(self, q: RelaxableFactors, draw: Randomness) -> Array:
        """Return draws with this estimator's derivative, ``[n, *event]``."""
        raise NotImplementedError

    def estimate(self, f: Evaluator, q: RelaxableFactors, draw: Randomness) -> Estimate:
        mean = f.through(self.points(q, draw)).mean(0)
        return Estimate(mean, mean)


class StraightThrough(Through):
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
        return q.through(draw.points(self.samples, self.sampling), q.probs[None])


class ReinMax(Through):
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
        x, p, logits = draw.points(self.samples, self.sampling), q.p, q.table
        if isinstance(self.temperature, Array) or self.temperature != 1:
            p = jax.nn.softmax(stop_gradient(q.log_probs) / self.temperature, -1)
        above = q.drawn(x) - p
        # 2 J((x + p) / 2) = J(p) + (x - p) (x - p)^T / 2, as x is one-hot
        curved = above * (above * logits).sum(-1, keepdims=True) / 2
        flat = times_jacobian(p, logits) - times_jacobian(q.p, logits) / 2
        return q.through(x, flat + curved)


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
    log_probs = jnp.maximum(stop_gradient(log_probs), IMPOSSIBLE)
    index = jnp.broadcast_to(index, uniforms.shape[:-1])
    top = pick(log_e, index)[..., None]
    truncated = -jnp.logaddexp(log_e - log_probs, top)
    return jnp.where(index[..., None] == jnp.arange(log_e.shape[-1]), -top, truncated)


class GumbelSoftmax(Through):
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
    hard: Flag = False

    arrays = ("temperature",)
    twice = True  # those of the relaxation

    def points(self, q: RelaxableFactors, draw: Randomness) -> Array:
        shape = (q.d,) if isinstance(q, Bernoulli) else (q.d, q.k)
        u = draw.uniform(self.samples, *shape, sampling=self.sampling)
        temperature = jnp.broadcast_to(self.temperature, q.logits.shape).reshape(q.d, -1)
        if isinstance(q, Bernoulli):
            u = positive(u)[..., None]
            relaxed = jax.nn.sigmoid((q.flat + (jnp.log(u) - jnp.log1p(-u))) / temperature)
            discrete = (relaxed > 0.5).astype(relaxed.dtype)
        else:
            scores = (q.table + gumbels(u)) / temperature
            relaxed = jax.nn.softmax(scores, -1, where=q.possible)
            discrete = jax.nn.one_hot(relaxed.argmax(-1), q.k, dtype=relaxed.dtype)
        return q.to_point(discrete + zero(relaxed) if self.hard else relaxed)


class GumbelRao(Through):
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
    differentiates_f = True
    many_outputs = False

    def estimate(self, f: Evaluator, q: RelaxableFactors, draw: Randomness) -> Estimate:
        f.check_dependence()
        x = draw.points(self.samples)
        fx, index, f_constant = f(x), q.index(x), f.constant
        z = gumbels_given_argmax(q.log_probs, index, draw.uniform(*index.shape, q.k))
        score = jax.nn.one_hot(index, q.k, dtype=q.real) - q.p
        weight = jnp.exp(z - z.max(-1, keepdims=True))

        def control(z: Array, temperature: Array) -> Array:
            scaled = jnp.where(q.possible, z, 0.0) / temperature
            relaxed = jax.nn.softmax(scaled, -1, where=q.possible)
            return f_constant(q.to_point(relaxed[None])[0])

        def gradient(eta: Array, temperature: Array) -> tuple[Array, Array]:
            """Return the squared norm of the gradient in the logits, and the gradient."""
            c, slope = f.map(lambda z: jax.value_and_grad(control)(z, temperature), z)
            pathwise = slope * weight
            pathwise = pathwise - q.p * pathwise.sum(-1, keepdims=True)
            residual = (stop_gradient(fx) - eta * c)[:, None, None]
            mean = (residual * score + eta * pathwise).mean(0)[:, -q.flat.shape[-1] :]
            return (mean**2).sum(), mean

        settings = [jnp.asarray(s, q.real) for s in (self.eta, self.temperature)]
        # The compiler drops these derivatives where nothing is learned.
        slopes, mean = jax.grad(gradient, (0, 1), has_aux=True)(*map(stop_gradient, settings))
        value = fx.mean(0)
        surrogate = value + q.with_gradient(mean)
        if isinstance(self.eta, Array) or isinstance(self.temperature, Array):
            surrogate = with_objective(surrogate, sum(map(jnp.multiply, slopes, settings)))
        return Estimate(value, surrogate)


@jax.custom_vjp
def with_objective(surrogate: Array, objective: Any) -> Array:
    """Return ``surrogate``. In a backward pass, ``objective`` gets the *squared* gradient.

    If the loss is a sum of estimates times weights w, the variance of its gradient is that of the
    squared norms times w^2.
    """
    return surrogate


with_objective.defvjp(
    lambda surrogate, objective: (surrogate, None), lambda _, gradient: (gradient, gradient**2)
)


def sample(key: Array, q: Any, estimator: Through | None = None) -> Array:
    """Return one point of q with an estimator's derivative: a layer in a network.

    The loss is then differentiated through the draw, with the bias of the estimator. Where the rest
    of the network can be written as a function f, a call ``E(key, f, q)`` may be unbiased.

    Args:
        key: a key of ``jax.random``.
        q: a distribution of bits or one-hot vectors, or an array: the logits of one-hot vectors,
            with the categories last.
        estimator: ReinMax (None), StraightThrough, GumbelSoftmax or GumbelRao, with one draw.

    >>> sample(jax.random.key(0), jnp.zeros((5, 3))).sum(-1)
    Array([1., 1., 1., 1., 1.], dtype=float32)
    """
    E = ReinMax() if estimator is None else estimator
    if not isinstance(E, Through) or E.samples != 1:
        raise TypeError(
            "sample: `estimator` must be ReinMax, StraightThrough, GumbelSoftmax or GumbelRao with "
            f"samples=1, but it is {E!r}. With other estimators write the rest of the network as a "
            "function f of the draw, and call E(key, f, q)."
        )
    factors = E.view(OneHot(q) if isinstance(q, Array) else q)
    points = E.points(factors, Randomness(key, factors))[0]  # type: ignore[arg-type]
    return points if isinstance(E, GumbelSoftmax) else once(points)
