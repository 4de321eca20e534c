"""Exact enumeration."""

from dataclasses import KW_ONLY

import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient

from ..estimator import Count, Estimate, Estimator
from ..evaluator import Evaluator
from ..factors import Factors, expand
from ..randomness import Randomness

__all__ = ["Exact"]


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
