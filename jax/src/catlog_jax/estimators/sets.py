"""UnorderedSet: draws without replacement."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.lax import stop_gradient

from ..dependent import Chain
from ..estimator import Count, Estimate, Estimator
from ..evaluator import Evaluator
from ..factors import IndependentFactors, expand, inverse_cdf, pick
from ..randomness import Randomness

__all__ = ["UnorderedSet"]

MOST = 10


class UnorderedSet(Estimator[IndependentFactors | Chain]):
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
    >>> UnorderedSet(3)(jax.random.key(0), lambda x: x**2.0, q).round(3)
    Array(2.906, dtype=float32)
    """

    samples: Count = 2

    least_samples = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples > MOST:
            raise ValueError(
                f"UnorderedSet: `samples` must be at most {MOST}, but it is {self.samples}. The "
                "weights need 2^samples sums: use RLOO."
            )

    def estimate(self, f: Evaluator, q: Any, draw: Randomness) -> Estimate:
        if draw.x is None:
            u = draw.uniform(self.samples, q.d)
            index = q.from_uniforms(u[:1])
            for row in range(1, self.samples):
                index = jnp.concatenate([index, drawn_outside(q, index, u[row])[None]])
        else:
            index = q.index(draw.points(self.samples))
        is_same = (index[:, None] == index).all(-1)
        is_new = ~jnp.tril(is_same, -1).any(-1)
        fx = f(q.point(index))
        log_prob = q.log_prob(index)
        p = jnp.where(is_new, jnp.exp(stop_gradient(log_prob)), 0.0)
        first, second = chances(p)
        first, second = expand(first, fx), second.reshape(second.shape + (1,) * (fx.ndim - 1))
        fixed = stop_gradient(fx)
        advantage = (second * (fixed[:, None] - fixed)).sum(1)
        value = (first * fx).sum(0)
        return Estimate(value, value + (first * advantage * expand(log_prob, fx)).sum(0))


def drawn_outside(q: Any, members: Array, u: Array) -> Array:
    """Return one point ``[d]`` that is drawn from q outside the members ``[m, d]``.

    Nothing is rejected: a category has its conditional probability times the share of it outside.
    If no point is outside, a member is drawn.
    """
    log_probs = stop_gradient(q.log_conditionals(members))
    log_probs = jnp.broadcast_to(log_probs, (*members.shape, q.k))
    later = jnp.cumsum(pick(log_probs, members)[:, ::-1], 1)[:, ::-1]  # [m, d]: from i on
    later = jnp.concatenate([later[:, 1:], jnp.zeros((len(later), 1), later.dtype)], 1)
    same = (members[:, None] == members).all(-1)
    is_new = ~jnp.tril(same, -1).any(-1)

    def choose(follows: Array, probs: Array, now: Any) -> tuple[Array, Array]:
        category, later, u = now
        one_hot = category[:, None] == jnp.arange(q.k)
        taken = ((follows & is_new) * jnp.exp(later)) @ one_hot.astype(later.dtype)
        share = jnp.maximum(1 - taken, 0.0)
        left = jnp.where(share > ROUNDING * jnp.finfo(share.dtype).eps, probs * share, 0.0)
        total = left.sum()
        left = jnp.where(total > 0, left / jnp.where(total > 0, total, 1.0), probs)
        chosen = inverse_cdf(left, u)
        return follows & (category == chosen), chosen

    start = jnp.ones(len(members), bool)
    rows = (members.T, later.T, u)
    if isinstance(q, Chain):
        return q.walk(choose, start, rows)
    step = lambda follows, row: choose(follows, row[0], row[1:])  # noqa: E731
    return jax.lax.scan(step, start, (q.p, *rows))[1]


ROUNDING = 16  # times the machine's precision: a share that small is 0 but for rounding


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
        rows = jax.nn.logsumexp(smaller, 1) - log_remaining[subsets]
        table = table.at[subsets].set(rows)
    without_one = table[(2**n - 1) ^ bit]
    without_two = table[(2**n - 1) ^ bit[:, None] ^ bit]
    second = jnp.where(jnp.eye(n, dtype=bool), 0.0, jnp.exp(without_two - without_one[:, None]))
    return jnp.exp(without_one - table[-1]), second
