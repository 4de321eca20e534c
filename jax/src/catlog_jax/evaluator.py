"""f as estimators call it. The user's f takes ONE point."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient

from .factors import Factors, RelaxableFactors, expand

__all__ = ["Evaluator"]

Function = Callable[[Any], Any]

NOT_DIFFERENTIABLE = (
    "f: its derivative in x is needed by this estimator, but f's value does not depend "
    "differentiably on x. Use a black-box estimator (RLOO, IndeCateR without `variables`, or with "
    "control='none'), or make f differentiable."
)
NOT_SCALAR = (
    "f must return a scalar, but it returned shape {shape} for a point of shape {point}. f gets "
    "ONE point, and q has no batch: E.batch maps over a batch. With outputs=True a call estimates "
    "one expectation per output."
)


@dataclass
class Evaluator:
    """f, for one call of an estimator. Its values are floats of at least 32 bits, ``[n, *out]``.

    Attributes:
        f: the function that the user gave.
        q: the factors of its points.
        chunk_size: evaluations at once where many points are made; None: chosen for the device.
        outputs: whether f may return more than a scalar.
        batch: how many calls are mapped together.
        evaluations: how many of f were asked for.
    """

    f: Function
    q: Factors
    chunk_size: int | None = None
    outputs: bool = False
    batch: int = 1
    evaluations: int = 0

    def __post_init__(self) -> None:
        if not callable(self.f):
            name = type(self.f).__name__
            raise TypeError(f"f must be a function of one point, but {name} was given.")

    def value_at(self, x: Array) -> Array:
        """Return f at one point, checked while it is traced."""
        fx = jnp.asarray(self.f(x))
        if fx.ndim and not self.outputs:
            raise ValueError(NOT_SCALAR.format(shape=fx.shape, point=x.shape))
        if not jnp.issubdtype(fx.dtype, jnp.floating) and fx.dtype != bool:
            raise TypeError(
                f"f must return floats or bools, but it returned {fx.dtype}: convert it to floats."
            )
        return fx.astype(jnp.promote_types(fx.dtype, jnp.float32))

    def __call__(self, x: Array) -> Array:
        """Return f at points ``[n, *event]``: ``[n, *out]``."""
        return self.map(self.value_at, x)

    def map(self, function: Callable[..., Any], *rows: Array) -> Any:
        """Return a function of one row that calls f once, mapped over rows, a chunk at a time."""
        count = len(rows[0])
        self.evaluations += count
        most = self.chunk_size or self._default_chunk_size()
        if count <= most:
            return jax.vmap(function)(*rows)
        return jax.lax.map(lambda row: function(*row), rows, batch_size=most)

    def _default_chunk_size(self) -> int:
        """Return how many evaluations of one call are made at once.

        On a CPU, those of a batch together are few enough to stay near its caches. On other
        devices they fill it: 2**28 numbers are 1 GiB of float32 input.
        """
        numbers = max(1, prod(self.q.like.shape))
        on_cpu = jax.default_backend() == "cpu"
        most = max(1024, min(4096, 2**20 // numbers)) if on_cpu else 2**28 // numbers
        return max(1, most // self.batch)

    @property
    def constant(self) -> Function:
        """f of one point, without derivatives in what f has closed over.

        A stopped gradient of the *result* would still carry tangents through f and its chunks.
        """
        closed, values = jax.closure_convert(self.value_at, self.q.like)
        values = [stop_gradient(value) for value in values]
        return lambda x: closed(x, *values)

    def through(self, x: Array) -> Array:
        """Return f at points that carry a derivative, or raise if f does not depend on it."""
        self.check_dependence()
        return self(x)

    def slope(self, x: Array) -> Array:
        """Return f's derivative at points by category, ``[n, d, k, *out]``, a constant.

        The compiler shares the values of f with those of a call at the same points.
        """
        q, f = self.q, self.constant
        assert isinstance(q, RelaxableFactors)
        self.check_dependence()
        of_table = jax.jacrev(lambda table: f(q.to_point(table[None])[0]))
        slopes = jax.vmap(of_table)(q.drawn(stop_gradient(x)))  # [n, *out, d, k]
        return jnp.moveaxis(slopes, (-2, -1), (1, 2))

    def check_dependence(self) -> None:
        """Raise if the tangent of f in x is a symbolic zero. It runs while tracing only."""
        f, is_reached = self.constant, []

        @jax.custom_jvp
        def probe(fx: Array) -> Array:
            return fx

        @probe.defjvp
        def rule(primals: Any, tangents: Any) -> tuple[Array, Array]:
            is_reached.append(True)  # JAX calls no rule where all tangents are symbolic zeros
            return primals[0], tangents[0]

        jax.eval_shape(lambda x: jax.jvp(lambda x: probe(f(x)), (x,), (x,)), self.q.like)
        if not is_reached:
            raise ValueError(NOT_DIFFERENTIABLE)

    def neighbours(
        self,
        index: Array,
        fx: Array,
        possible: Array,
        variables: Array | None = None,
        redrawn: Callable[..., Array] = lambda others_stay, *_: others_stay,
    ) -> Array:
        """Return ``f(x with x_i = c) - f(x)`` for all categories, ``[n, m, k, *out]``, constants.

        An impossible category has 0, and f never sees it.

        Args:
            index: the category numbers of the points x, ``[n, d]``.
            fx: f there.
            possible: whether a category can be drawn, ``[n, d, k]`` or ``[1, d, k]``.
            variables: those to change, ``[n, m]``; None: all.
            redrawn: makes a row of category numbers with x_i = c from that in which the other
                variables stay, the number of the draw, i and c.
        """
        (n, d), k, f, q = index.shape, self.q.k, self.constant, self.q
        if variables is None:
            variables = jnp.broadcast_to(jnp.arange(d), (n, d))

        def changed(row: Array, i: Array, c: Array) -> Array:
            others_stay = jnp.where(jnp.arange(d) == i, c, index[row])
            return f(q.point(redrawn(others_stay, row, i, c)[None])[0])

        row = jnp.arange(n)[:, None, None]
        drawn = jnp.take_along_axis(index, variables, 1)[..., None]  # [n, m, 1]
        category = (drawn + jnp.arange(1, k)) % k
        possible = jnp.broadcast_to(possible, (n, d, k))[row, variables[..., None], category]
        seen = jnp.where(possible, category, drawn)
        changes = jnp.broadcast_arrays(row, variables[..., None], seen)
        values = self.map(changed, *(part.ravel() for part in changes))
        values = values.reshape(seen.shape + values.shape[1:]) - stop_gradient(fx)[:, None, None]
        values = jnp.where(expand(possible, values), values, 0.0)
        values = jnp.concatenate([values, jnp.zeros_like(values[:, :, :1])], 2)
        turn = (jnp.arange(k) - drawn - 1) % k  # category c is change c - drawn - 1
        return jnp.take_along_axis(values, expand(turn, values), 2)
