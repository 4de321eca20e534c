"""Distributions over variables that depend on each other, drawn one after the other."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient

from .factors import Factors, inverse_cdf, pytree, static

__all__ = ["Autoregressive", "DependentFactors", "MarkovChain"]


class DependentFactors(Factors):
    """Variables that depend on earlier ones. Points are category numbers ``[d]``."""


class Chain(DependentFactors):
    """Variables whose conditionals are made by :meth:`advance`, one step after the other."""

    length: int
    init: Any  # the state before the first variable

    def advance(self, state: Any, previous: Array) -> tuple[Any, Array]:
        """Return the next state and the logits ``[k]``, given the previous category (first: k)."""
        raise NotImplementedError

    @property
    def d(self) -> int:
        return self.length

    @property
    def real(self) -> Any:
        first = jax.ShapeDtypeStruct((), jnp.int32)
        logits = jax.eval_shape(lambda i: self.advance(self.init, i)[1], first)
        return jnp.promote_types(logits.dtype, jnp.float32)

    def redraw(self, u: Array, index: Array, kept: Array) -> Array:
        def step(state: Any, now: Any) -> tuple[Any, Array]:
            u, category, is_kept = now
            inner, logits = self.advance(*state)
            drawn = inverse_cdf(jax.nn.softmax(stop_gradient(logits)), u)
            category = jnp.where(is_kept, category, drawn).astype(jnp.int32)
            return (inner, category), category

        return jax.lax.scan(step, (self.init, jnp.int32(self.k)), (u, index, kept))[1]

    def log_conditionals(self, index: Array) -> Array:
        def of_one(index: Array) -> Array:
            previous = jnp.concatenate([jnp.full(1, self.k, jnp.int32), index[:-1]])
            logits = jax.lax.scan(self.advance, self.init, previous)[1]
            return jax.nn.log_softmax(logits.astype(self.real), -1)

        return jax.vmap(of_one)(index)


@pytree
class MarkovChain(Chain):
    """A Markov chain. A point holds category numbers ``[length]``.

    Args:
        initial: logits ``[k]`` of the first variable.
        transition: logits ``[k, k]``, one row for each category of the previous variable.
        length: the number of variables.

    >>> q = MarkovChain(jnp.zeros(2), jnp.zeros((2, 2)), length=5)
    >>> q.sample(jax.random.key(0)).shape
    (5,)
    """

    initial: Array
    transition: Array
    length: int = static()

    init = ()

    @property
    def k(self) -> int:
        return self.initial.shape[-1]

    def advance(self, state: Any, previous: Array) -> tuple[Any, Array]:
        return state, jnp.concatenate([self.transition, self.initial[None]])[previous]


@pytree
class Autoregressive(Chain):
    """A sequence whose conditionals are made by a recurrent network.

    A point holds category numbers ``[length]``.

    Args:
        params: the parameters of the network, any pytree.
        init: the state before the first variable, any pytree.
        step: ``step(params, state, previous) -> (state, logits [categories])``, where ``previous``
            is the previous category; for the first variable it is the number ``categories``.
        length: the number of variables.
        categories: the number of categories.

    >>> def step(table, state, previous):
    ...     return state, table[previous]
    >>> q = Autoregressive(jnp.zeros((4, 3)), (), step, length=5, categories=3)
    >>> q.sample(jax.random.key(0)).shape
    (5,)
    """

    params: Any
    init: Any
    step: Callable[..., tuple[Any, Array]] = static()
    length: int = static()
    categories: int = static()

    @property
    def k(self) -> int:
        return self.categories

    def advance(self, state: Any, previous: Array) -> tuple[Any, Array]:
        return self.step(self.params, state, previous)
