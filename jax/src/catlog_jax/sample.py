"""One draw that carries an estimator's derivative: a layer in a network."""

from typing import Any

from jax import Array

from .estimator import once
from .estimators.straight_through import GumbelSoftmax, ReinMax, Through
from .factors import OneHot
from .randomness import Randomness

__all__ = ["sample"]


def sample(key: Array, q: Any, estimator: Through[Any] | None = None) -> Array:
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
