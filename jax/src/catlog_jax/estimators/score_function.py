"""Estimators that score whole draws: REINFORCE and its baselines."""

from dataclasses import KW_ONLY
from math import log

import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient
from jax.nn import logsumexp

from ..estimator import Count, Estimate, Estimator
from ..evaluator import Evaluator
from ..factors import Factors, expand
from ..randomness import Randomness

__all__ = ["RLOO", "VIMCO", "Reinforce"]


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

    samples: Count = 2

    twice = True
    least_samples = 2

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

    samples: Count = 2

    many_outputs = False
    least_samples = 2

    def estimate(self, f: Evaluator, q: Factors, draw: Randomness) -> Estimate:
        x = draw.points(self.samples)
        n, log_w = len(x), f(x)
        value = logsumexp(log_w) - log(n)
        constant = stop_gradient(log_w)
        is_same_draw = jnp.eye(n, dtype=bool)
        replaced = jnp.where(is_same_draw, leave_one_out(constant)[:, None], constant)
        advantage = stop_gradient(value) - (logsumexp(replaced, 1) - log(n))
        return Estimate(value, value + (advantage * q.log_prob_at(x)).sum())
