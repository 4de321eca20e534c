"""Estimators that need no derivative of f, and score whole draws: REINFORCE and its baselines."""

from dataclasses import KW_ONLY
from math import log
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.lax import stop_gradient
from jax.nn import logsumexp

from ..estimator import Estimate, Estimator
from ..evaluator import Evaluator
from ..factors import Bernoulli, Factors, expand, inverse_cdf, pick, ratio
from ..randomness import Randomness
from ..settings import Count, Several
from .through import positive

__all__ = ["ARMS", "RLOO", "VIMCO", "DisARM", "Exact", "Reinforce", "UnorderedSet"]

# Points of a set: its weights need 2^samples sums.
Few = Annotated[int, "an int from 2 to 10", lambda v: type(v) is int and 2 <= v <= 10]
ROUNDING = 16  # times the machine's precision: a share that small is 0 but for rounding


class Exact(Estimator[Factors]):
    r"""The exact expectation: a sum over the sample space.

    .. math:: \mathbb{E}[f(x)] = \sum_x q(x) f(x)

    Value and all derivatives are exact. All other estimators are tested against it.

    Cost: k^d evaluations. Needs: any f. A q with more points than ``limit`` is refused.

    Args:
        limit: the largest number of points to enumerate.
        chunk_size: evaluations of f at once; None: chosen for the device.

    >>> Exact()(jax.random.key(0), jnp.sum, Bernoulli(jnp.zeros(3)))
    Array(1.5, dtype=float32)
    """

    _: KW_ONLY
    limit: Count = 2**20
    chunk_size: Count | None = None

    twice = True

    def estimate(self, f: Evaluator, q: Factors, draw: Randomness) -> Estimate:
        if q.k**q.d > self.limit:
            raise ValueError(
                f"Exact: q has {q.k}**{q.d} points, more than `limit` = {self.limit}. Use RLOO, or "
                "raise the limit if f is cheap."
            )
        index = jnp.asarray(np.indices((q.k,) * q.d, dtype=np.int32).reshape(q.d, -1).T)
        weight = jnp.exp(q.log_prob(index))
        # f never sees an impossible point.
        fx = f(q.point(jnp.where(weight[:, None] > 0, index, index[weight.argmax()])))
        weight = expand(weight, fx)
        # Probabilities add up to 1 but for rounding, which a large mean of f would multiply.
        mean = stop_gradient((weight * fx).sum(0))
        value = (weight * (fx - mean)).sum(0) + mean
        return Estimate(value, value)


def leave_one_out(terms: Array) -> Array:
    """Return for every draw the mean over the other draws."""
    return (terms.sum(0) - terms) / (len(terms) - 1)


def with_baseline(q: Factors, x: Array, fx: Array, baseline: Array | float) -> Estimate:
    r"""Return the mean of f, with the derivatives of its expectation of any order.

    The first derivative of the ratio is the score. A mean of f times this ratio has, in
    expectation, all derivatives of E[f]; so has that of f less a baseline (Foerster et al., 2018).
    """
    log_prob = q.log_prob_at(x)
    # q(x) / q(x) - 1 with the denominator held fixed: 0, with the derivatives of q(x) over q(x).
    change = expand(jnp.expm1(log_prob - stop_gradient(log_prob)), fx)
    mean = (fx + (fx - baseline) * change).mean(0)
    return Estimate(mean, mean)


class Reinforce(Estimator[Factors]):
    r"""The score-function estimator: f at each draw times the gradient of the draw's
    log-probability.

    .. math::
        \frac1N \sum_n \partial f(x^{(n)}) + \bigl(f(x^{(n)}) - b\bigr)\, \partial \log q(x^{(n)})

    Unbiased for any baseline b that does not depend on the draws of this call. It works for every q
    and f, but it is noisy. Its second derivatives are also unbiased.

    Cost: ``samples`` evaluations. Needs: any f.
    Reference: Williams, "Simple statistical gradient-following algorithms", 1992.

    Args:
        samples: number of draws N.
        baseline: b, a number or an array, such as a running mean of the loss in earlier steps.

    >>> q = Bernoulli(jnp.zeros(3))
    >>> Reinforce(samples=4)(jax.random.key(0), jnp.sum, q, x=jnp.eye(4, 3))
    Array(0.75, dtype=float32)
    """

    samples: Count = 1
    _: KW_ONLY
    baseline: float | Array = 0.0

    arrays = ("baseline",)
    twice = True

    def estimate(self, f: Evaluator, q: Factors, draw: Randomness) -> Estimate:
        x = draw.points(self.samples)
        return with_baseline(q, x, f(x), stop_gradient(self.baseline))


class RLOO(Estimator[Factors]):
    r"""REINFORCE whose baseline for each draw is the mean of the other draws.

    .. math::
        \frac1N \sum_n \partial f(x^{(n)})
        + \frac{1}{N-1} \sum_n \bigl(f(x^{(n)}) - \overline{f}\bigr)\, \partial \log q(x^{(n)})

    It is unbiased, needs no tuning, and is hard to beat with a budget of only a few evaluations.
    Its second derivatives are also unbiased.

    Cost: ``samples`` evaluations. Needs: any f; at least two draws.
    Reference: Salimans and Knowles, 2014; Kool et al., "Buy 4 REINFORCE samples, get a baseline for
    free!", 2019.

    Args:
        samples: number of draws N, at least 2.

    >>> loss = lambda logits: RLOO(2)(
    ...     jax.random.key(0), lambda x: x[0], Bernoulli(logits), x=jnp.eye(2)
    ... )
    >>> jax.grad(loss)(jnp.zeros(2))
    Array([ 0.5, -0.5], dtype=float32)
    """

    samples: Several = 2

    twice = True

    def estimate(self, f: Evaluator, q: Factors, draw: Randomness) -> Estimate:
        x = draw.points(self.samples)
        fx = f(x)
        return with_baseline(q, x, fx, leave_one_out(stop_gradient(fx)))


class VIMCO(Estimator[Factors]):
    r"""REINFORCE for the importance-weighted bound, with a leave-one-out baseline for each draw.

    **It does not estimate E[f] but the bound** that N draws give. f returns the *log-weight*
    :math:`\log w(x) = \log p(x, \text{data}) - \log q(x)`, and both value and gradient are unbiased
    for

    .. math::
        \mathcal{L}_N = \mathbb{E}\Bigl[\log \frac1N \sum_n w(x^{(n)})\Bigr] \ge \mathbb{E}[f(x)]

    The value is :math:`\hat L = \log \frac1N \sum_n w_n`, the gradient

    .. math::
        \sum_n \frac{w_n}{\sum_m w_m}\, \partial \log w_n + \bigl(\hat L - \hat L_{-n}\bigr)\,
        \partial \log q(x^{(n)}),
        \qquad \hat L_{-n} = \hat L \text{ with } \log w_n \to \frac{1}{N-1} \sum_{m \ne n} \log w_m

    f may depend on q's parameters, as :math:`\log q` does. Maximise the value.

    Cost: ``samples`` evaluations, and N^2 numbers. Needs: any f; at least two draws.
    Reference: Mnih and Rezende, "Variational inference for Monte Carlo objectives", 2016.

    Args:
        samples: number of draws N, at least 2; more of them make the bound tighter.

    >>> x = jnp.array([[0.0, 0.0], [1.0, 1.0]])
    >>> bound = VIMCO(2)(
    ...     jax.random.key(0), lambda x: jnp.log1p(x.sum()), Bernoulli(jnp.zeros(2)), x=x
    ... )
    >>> jnp.exp(bound).round(4)
    Array(2., dtype=float32)
    """

    samples: Several = 2

    many_outputs = False

    def estimate(self, f: Evaluator, q: Factors, draw: Randomness) -> Estimate:
        x = draw.points(self.samples)
        n, log_w = len(x), f(x)
        value = logsumexp(log_w) - log(n)
        constant = stop_gradient(log_w)
        is_same_draw = jnp.eye(n, dtype=bool)
        replaced = jnp.where(is_same_draw, leave_one_out(constant)[:, None], constant)
        advantage = stop_gradient(value) - (logsumexp(replaced, 1) - log(n))
        return Estimate(value, value + (advantage * q.log_prob_at(x)).sum())


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
        return Estimate(value, value + q.with_gradient(gradient[:, None]))


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

    samples: Several = 2

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
        return Estimate(value, value + q.with_gradient(gradient[:, None]))


def pair_correction(n: int, chance: Array) -> Array:
    """Return the ratio of P(one of two events happens) for independent and for antithetic events.

    It is c (1 - c) / (c - P(both)), which is at most 1. Both happen where both noises exceed
    t = 1 - c^(1 / (n - 1)), and P(noise_1 > t, noise_2 > t) = max(0, 1 - 2t)^(n - 1).
    """
    both = jnp.maximum(2 * chance ** (1 / (n - 1)) - 1, 0) ** (n - 1)
    return (1 - chance) / (1 - both / positive(chance))


class UnorderedSet(Estimator[Factors]):
    r"""REINFORCE on a set S of draws without replacement, each with the others as its baseline.

    .. math::
        \sum_{s \in S} w_s\, \partial f(s) + \sum_{s \in S} w_s\, \partial \log q(s) \sum_{t \in S}
        v_{t|s} (f(s) - f(t)),
        \qquad w_s = \frac{H(S \setminus s)}{H(S)}, \quad
        v_{t|s} = \frac{H(S \setminus \{s, t\})}{H(S \setminus s)}

    The points are drawn one after the other, each from q without the earlier ones. :math:`w_s` is
    the probability that s came first, given the set, :math:`v_{t|s}` that t came second times the
    probability of all but s. Both come from
    :math:`H(U) = \sum_{u \in U} H(U \setminus u) / (1 - q(S \setminus U))`,
    :math:`H(\emptyset) = 1`, a sum of positive numbers over the subsets of S. It is unbiased, and
    exact if S is the whole support.

    Cost: ``samples`` evaluations; the weights take 2^samples numbers. Needs: any f.
    Reference: Kool et al., "Estimating gradients for discrete random variables by sampling without
    replacement", 2020.

    Args:
        samples: number of different points, 2 to 10. If q has fewer, the surplus has weight 0.

    >>> q = Categorical(jnp.array([0.0, 1.0, 2.0]))
    >>> f"{UnorderedSet(3)(jax.random.key(0), lambda x: x**2.0, q):.3f}"
    '2.906'
    """

    samples: Few = 2

    def estimate(self, f: Evaluator, q: Factors, draw: Randomness) -> Estimate:
        if draw.x is None:
            u = draw.uniform(self.samples, q.d)
            index = q.from_uniforms(u[:1])
            for row in range(1, self.samples):
                index = jnp.concatenate([index, drawn_outside(q, index, u[row])[None]])
        else:
            index = q.index(draw.points(self.samples))
        fx = f(q.point(index))
        log_prob = q.log_prob(index)
        p = jnp.where(is_first(index), jnp.exp(stop_gradient(log_prob)), 0.0)
        first, second = chances(p)
        first, fixed = expand(first, fx), stop_gradient(fx)
        difference = fixed[:, None] - fixed  # [n, n, *out]
        advantage = (expand(second, difference) * difference).sum(1)
        value = (first * fx).sum(0)
        return Estimate(value, value + (first * advantage * expand(log_prob, fx)).sum(0))


def is_first(index: Array) -> Array:
    """Return which points ``[m, d]`` are not equal to an earlier one."""
    return ~jnp.tril((index[:, None] == index).all(-1), -1).any(-1)


def drawn_outside(q: Factors, members: Array, u: Array) -> Array:
    """Return one point ``[d]`` that is drawn from q outside the members ``[m, d]``.

    Nothing is rejected: while the point agrees with members, a category has its conditional
    probability times the share of it outside. If no point is outside, a member is drawn.
    """
    log_probs = stop_gradient(q.log_conditionals(members))
    log_probs = jnp.broadcast_to(log_probs, (*members.shape, q.k))
    later = jnp.cumsum(pick(log_probs, members)[:, ::-1], 1)[:, ::-1]  # [m, d]: from i on
    later = jnp.concatenate([later[:, 1:], jnp.zeros((len(later), 1), later.dtype)], 1)
    is_new = is_first(members)

    def choose(follows: Array, now: Any) -> tuple[Array, Any]:
        category, later, log_probs, u = now
        probs = jnp.exp(log_probs[follows.argmax()])
        one_hot = category[:, None] == jnp.arange(q.k)
        taken = ((follows & is_new) * jnp.exp(later)) @ one_hot.astype(later.dtype)
        share = jnp.maximum(1 - taken, 0.0)
        outside = jnp.where(share > ROUNDING * jnp.finfo(share.dtype).eps, probs * share, 0.0)
        chosen = inverse_cdf(ratio(outside, outside.sum(), probs), u)
        return follows & (category == chosen), (chosen, follows.any())

    start = jnp.ones(len(members), bool)
    rows = (members.T, later.T, jnp.swapaxes(log_probs, 0, 1), u)
    index, agrees = jax.lax.scan(choose, start, rows)[1]
    return q.redraw(u, index, agrees)


def chances(p: Array) -> tuple[Array, Array]:
    """Return w ``[n]`` and v ``[n, n]`` of the docstring, for points of probabilities p.

    H is computed for all subsets, by size, in logarithms.
    """
    n = len(p)
    number = np.arange(2**n)  # of a subset: its bits say what it holds
    bit = 2 ** np.arange(n)
    holds = (number[:, None] & bit) > 0
    rest = jnp.maximum(1 - p.sum(), jnp.finfo(p.dtype).tiny)
    log_remaining = jnp.log(rest + holds.astype(p.dtype) @ p)
    table = jnp.zeros(2**n, p.dtype)
    for size in range(1, n + 1):
        subsets = number[holds.sum(1) == size]
        members = holds[subsets].nonzero()[1].reshape(-1, size)
        smaller = table[subsets[:, None] ^ bit[members]]
        rows = logsumexp(smaller, 1) - log_remaining[subsets]
        table = table.at[subsets].set(rows)
    without_one = table[(2**n - 1) ^ bit]
    without_two = table[(2**n - 1) ^ bit[:, None] ^ bit]
    second = jnp.where(jnp.eye(n, dtype=bool), 0.0, jnp.exp(without_two - without_one[:, None]))
    return jnp.exp(without_one - table[-1]), second
