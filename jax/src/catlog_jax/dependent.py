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

    def redraw(self, u: Array, index: Array, kept: Array) -> Array:
        """Return category numbers ``[d]`` of one point: those of ``index`` where they are
        ``kept``, and drawn from uniforms ``[d]`` elsewhere, given the earlier ones."""
        raise NotImplementedError

    def from_uniforms(self, u: Array) -> Array:
        none = jnp.zeros(self.d, jnp.int32)
        return jax.vmap(lambda u: self.redraw(u, none, none > 0))(u)


class Chain(DependentFactors):
    """Variables whose conditionals are made by :meth:`advance`, one step after the other."""

    def start(self) -> Any:
        """Return the state before the first variable."""
        raise NotImplementedError

    def advance(self, state: Any, previous: Array) -> tuple[Any, Array]:
        """Return the next state and the logits ``[k]``, given the previous category (first: k)."""
        raise NotImplementedError

    @property
    def real(self) -> Any:
        first = jax.ShapeDtypeStruct((), jnp.int32)
        logits = jax.eval_shape(lambda i: self.advance(self.start(), i)[1], first)
        return jnp.promote_types(logits.dtype, jnp.float32)

    def walk(
        self, choose: Callable[[Any, Array, Any], tuple[Any, Array]], carry: Any, xs: Any
    ) -> Array:
        """Return the categories ``[d]`` that ``choose(carry, probs, x) -> (carry, category)``
        takes from the conditional probabilities ``[k]`` of every variable in turn."""

        def step(state: Any, x: Any) -> tuple[Any, Array]:
            inner, previous, carry = state
            inner, logits = self.advance(inner, previous)
            carry, category = choose(carry, jax.nn.softmax(stop_gradient(logits)), x)
            category = category.astype(jnp.int32)
            return (inner, category, carry), category

        return jax.lax.scan(step, (self.start(), jnp.int32(self.k), carry), xs)[1]

    def redraw(self, u: Array, index: Array, kept: Array) -> Array:
        def choose(carry: None, probs: Array, now: Any) -> tuple[None, Array]:
            u, category, kept = now
            return None, jnp.where(kept, category, inverse_cdf(probs, u))

        return self.walk(choose, None, (u, index, kept))

    def log_conditionals(self, index: Array) -> Array:
        def of_one(index: Array) -> Array:
            previous = jnp.concatenate([jnp.full(1, self.k, jnp.int32), index[:-1]])
            logits = jax.lax.scan(self.advance, self.start(), previous)[1]
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

    @property
    def d(self) -> int:
        return self.length

    @property
    def k(self) -> int:
        return self.initial.shape[-1]

    def start(self) -> Any:
        return ()

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
    def d(self) -> int:
        return self.length

    @property
    def k(self) -> int:
        return self.categories

    def start(self) -> Any:
        return self.init

    def advance(self, state: Any, previous: Array) -> tuple[Any, Array]:
        return self.step(self.params, state, previous)
