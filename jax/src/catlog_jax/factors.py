"""Distributions over independent categorical variables, as small pytrees.

A distribution has no batch: all its dimensions are variables of one random vector, and batches are
made by ``jax.vmap``. A *point* is what f sees. Its *index* holds the category numbers of its d
variables. Methods take n points at once.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any, ClassVar, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient

__all__ = [
    "Bernoulli",
    "Categorical",
    "Factors",
    "IndependentFactors",
    "OneHot",
    "RelaxableFactors",
]

T = TypeVar("T")
static: Callable[..., Any] = partial(field, metadata={"static": True})


@dataclass_transform(frozen_default=True, field_specifiers=(field, static))
def pytree(cls: type[T]) -> type[T]:
    """Make a frozen dataclass and a pytree of a class."""
    made: type[T] = jax.tree_util.register_dataclass(dataclass(frozen=True)(cls))
    return made


def zero(x: Array) -> Array:
    """Return zeros, with the derivative of x."""
    return x - stop_gradient(x)


def expand(weights: Array, like: Array) -> Array:
    """Append dimensions of size 1, those of outputs of f."""
    return weights.reshape(weights.shape + (1,) * (like.ndim - weights.ndim))


def inverse_cdf(probs: Array, u: Array) -> Array:
    """Return the category whose interval of the CDF contains u, never an impossible one."""
    cdf = jnp.cumsum(probs, -1)
    steps = jnp.where(cdf >= cdf[..., -1:], jnp.inf, cdf)[..., :-1]
    return (u[..., None] >= steps).sum(-1, dtype=jnp.int32)


def pick(table: Array, index: Array) -> Array:
    """Return the entries of a table ``[..., k]`` at category numbers ``[...]``."""
    return jnp.take_along_axis(table, index[..., None], -1).squeeze(-1)


class Factors:
    """A distribution over x = (x_1, ..., x_d), as the product of its conditionals.

    Attributes:
        form: how f sees points: bits, integers or one-hot vectors.
        d: the number of variables.
        k: the largest number of categories of a variable.
        real: the dtype of probabilities and uniforms, float32 or wider.
    """

    form: ClassVar[str] = "integers"

    @property
    def d(self) -> int:
        raise NotImplementedError

    @property
    def k(self) -> int:
        raise NotImplementedError

    @property
    def real(self) -> Any:
        raise NotImplementedError

    def from_uniforms(self, u: Array) -> Array:
        """Return the category numbers that the inverse CDF makes from uniforms ``[n, d]``."""
        raise NotImplementedError

    def log_conditionals(self, index: Array) -> Array:
        """Return log q(x_i = k | x_<i), ``[n, d, k]`` or ``[1, d, k]``; -inf where impossible."""
        raise NotImplementedError

    def index(self, x: Array) -> Array:
        """Return the category numbers ``[n, d]`` of points."""
        return stop_gradient(x).astype(jnp.int32)

    def point(self, index: Array) -> Array:
        """Return the points with these category numbers."""
        return index.astype(jnp.int32)

    def log_prob(self, index: Array) -> Array:
        """Return log q(x), ``[n]``."""
        table = self.log_conditionals(index)
        return pick(jnp.broadcast_to(table, (*index.shape, self.k)), index).sum(-1)

    def log_prob_at(self, x: Array) -> Array:
        """Return log q(x), ``[n]``, for the sake of its derivatives."""
        return self.log_prob(self.index(x))

    def sample(self, key: Array, shape: tuple[int, ...] = ()) -> Array:
        """Return independent points, ``[*shape, *event]``."""
        x = self.point(
            self.from_uniforms(jax.random.uniform(key, (prod(shape), self.d), self.real))
        )
        return x.reshape(shape + x.shape[1:])


class IndependentFactors(Factors):
    """Independent variables of k categories, given by ``logits [*variables, k]``.

    A logit of -inf masks a category: f never sees it, and it has no gradient.
    """

    logits: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the variables."""
        return self.logits.shape[:-1]

    @property
    def d(self) -> int:
        return prod(self.shape)

    @property
    def k(self) -> int:
        return self.logits.shape[-1]

    @property
    def real(self) -> Any:
        return jnp.promote_types(self.logits.dtype, jnp.float32)

    @property
    def log_probs(self) -> Array:
        """Log-probabilities ``[d, k]``, -inf for impossible categories."""
        return jax.nn.log_softmax(self.logits.reshape(self.d, self.k).astype(self.real), -1)

    @property
    def probs(self) -> Array:
        """Probabilities ``[d, k]``, differentiable."""
        return jnp.exp(self.log_probs)

    @property
    def p(self) -> Array:
        """Probabilities ``[d, k]``, constants."""
        return stop_gradient(self.probs)

    @property
    def possible(self) -> Array:
        """Whether a category can be drawn, ``[d, k]``."""
        return self.p > 0

    @property
    def table(self) -> Array:
        """Log-probabilities ``[d, k]``, 0 without a gradient for impossible categories."""
        return jnp.where(self.possible, self.log_probs, 0.0)

    def from_uniforms(self, u: Array) -> Array:
        return inverse_cdf(self.p, u)

    def log_conditionals(self, index: Array) -> Array:
        return self.log_probs[None]

    def index(self, x: Array) -> Array:
        return stop_gradient(x).reshape(len(x), self.d).astype(jnp.int32)

    def point(self, index: Array) -> Array:
        return index.reshape(len(index), *self.shape).astype(jnp.int32)

    def mean(self, table: Array) -> Array:
        """Return the mean of a table ``[d, k, *out]`` over the categories, ``[d, *out]``."""
        return (expand(self.probs, table) * table).sum(1)

    def score(self, index: Array) -> Array:
        """Return the score in the logits, a constant, ``[n, d, k]``."""
        return jax.nn.one_hot(index, self.k, dtype=self.real) - self.p

    def with_gradient(self, gradient: Array) -> Array:
        """Return zeros ``[*out]`` with this gradient ``[d, k, *out]`` in the logits."""
        possible = expand(self.possible, gradient)
        gradient = jnp.where(possible, stop_gradient(gradient), 0.0)
        mean = gradient.sum(1, keepdims=True) / possible.sum(1, keepdims=True)
        return (expand(zero(self.table), gradient) * (gradient - possible * mean)).sum((0, 1))

    def squared_norm(self, gradient: Array) -> Array:
        """Return the squared norm of a gradient ``[d, k]`` in the logits."""
        return (gradient**2).sum()


def times_jacobian(p: Array, table: Array) -> Array:
    """Return J(p) times a table ``[..., w]``, where J(p) = diag(p) - p p^T."""
    weighted = p * table
    return weighted - p * weighted.sum(-1, keepdims=True)


class RelaxableFactors(IndependentFactors):
    """Bits or one-hot vectors: points are reals, in which f may have a derivative."""

    def drawn(self, x: Array) -> Array:
        """Return points as tables of ones and zeros, ``[n, d, k]``."""
        raise NotImplementedError

    def to_point(self, table: Array) -> Array:
        """Return tables ``[n, d, k]`` as points."""
        raise NotImplementedError

    def by_category(self, slope: Array) -> Array:
        """Return the derivative of f in points as tables ``[n, d, k]``."""
        raise NotImplementedError

    # Coordinates of the logits: k numbers per one-hot vector, w = 1 per bit. J(p) is the same.

    def coordinates(self, x: Array) -> Array:
        """Return points by coordinates of the logits, ``[n, d, w]``."""
        return self.drawn(x)

    def from_coordinates(self, table: Array) -> Array:
        """Return points by their coordinates ``[n, d, w]``."""
        return self.to_point(table)

    def coordinates_of_q(self) -> tuple[Array, Array]:
        """Return the probabilities ``[d, w]``, a constant, and the differentiable logits."""
        return self.p, self.table

    def through(self, x: Array, table: Array) -> Array:
        """Return the points x exactly, with the derivative of the tables ``[n, d, k]``."""
        return stop_gradient(x) + self.to_point(zero(table)).astype(x.dtype)

    def weighted(self, x: Array, straight: float | Array, outer: float | Array) -> Array:
        r"""Return the points x, through which the slope G of f is differentiated as
        :math:`(a J(p) + b (x - p)(x - p)^\top) G` in the logits of each variable."""
        above = self.drawn(x) - self.p
        along = (above * self.table).sum(-1, keepdims=True)
        moved = straight * times_jacobian(self.p, self.table) + outer * above * along
        return self.through(x, moved)


@pytree
class Categorical(IndependentFactors):
    """Categorical variables. A point holds category numbers ``[*variables]``.

    Args:
        logits: ``[*variables, k]``, normalised or not.

    >>> Categorical(jnp.zeros((3, 4))).sample(jax.random.key(0)).shape
    (3,)
    """

    logits: Array


@pytree
class OneHot(RelaxableFactors):
    """One-hot vectors. A point holds floats ``[*variables, k]``.

    Args:
        logits: ``[*variables, k]``, normalised or not.

    >>> OneHot(jnp.zeros((3, 4))).sample(jax.random.key(0)).sum(-1)
    Array([1., 1., 1.], dtype=float32)
    """

    logits: Array

    form = "one-hot"

    def index(self, x: Array) -> Array:
        return stop_gradient(x).reshape(len(x), self.d, self.k).argmax(-1).astype(jnp.int32)

    def point(self, index: Array) -> Array:
        return self.to_point(jax.nn.one_hot(index, self.k, dtype=self.logits.dtype))

    def drawn(self, x: Array) -> Array:
        return x.reshape(len(x), self.d, self.k).astype(self.real)

    def to_point(self, table: Array) -> Array:
        return table.reshape(len(table), *self.logits.shape).astype(self.logits.dtype)

    def by_category(self, slope: Array) -> Array:
        return slope.reshape(len(slope), self.d, self.k).astype(self.real)


@pytree
class Bernoulli(RelaxableFactors):
    """Bits. A point holds floats 0 or 1, ``[*variables]``.

    Args:
        logits: the log-odds of 1, ``[*variables]``; an infinite one is a bit that is certain.

    >>> Bernoulli(jnp.array([jnp.inf, -jnp.inf])).sample(jax.random.key(0))
    Array([1., 0.], dtype=float32)
    """

    logits: Array

    form = "bits"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.logits.shape

    @property
    def k(self) -> int:
        return 2

    @property
    def flat(self) -> Array:
        """The log-odds ``[d]``."""
        return self.logits.reshape(self.d).astype(self.real)

    @property
    def odds(self) -> Array:
        """The log-odds ``[d]``; 0 and no gradient for a bit that is certain."""
        return jnp.where(jnp.isinf(self.flat), 0.0, self.flat)

    @property
    def log_probs(self) -> Array:
        pair = jax.nn.log_sigmoid(jnp.stack([-self.odds, self.odds], -1))
        certain = jnp.stack([-self.flat, self.flat], -1)  # +-inf
        return jnp.where(jnp.isinf(certain), jnp.where(certain > 0, 0.0, -jnp.inf), pair)

    def log_prob_at(self, x: Array) -> Array:
        bits = stop_gradient(x).reshape(len(x), self.d).astype(self.real)
        return (bits * self.odds - jax.nn.softplus(self.odds)).sum(-1)

    def point(self, index: Array) -> Array:
        return index.reshape(len(index), *self.shape).astype(self.logits.dtype)

    def with_odds_gradient(self, gradient: Array) -> Array:
        """Return zeros ``[*out]`` with this gradient ``[d, *out]`` in the log-odds."""
        return (expand(zero(self.odds), gradient) * stop_gradient(gradient)).sum(0)

    def squared_norm(self, gradient: Array) -> Array:
        return (gradient[:, 1] ** 2).sum()

    def drawn(self, x: Array) -> Array:
        bits = x.reshape(len(x), self.d).astype(self.real)
        return jnp.stack([1 - bits, bits], -1)

    def to_point(self, table: Array) -> Array:
        return self.point(table[..., 1])

    def by_category(self, slope: Array) -> Array:
        flat = slope.reshape(len(slope), self.d).astype(self.real)
        return jnp.stack([jnp.zeros_like(flat), flat], -1)

    def coordinates(self, x: Array) -> Array:
        return x.reshape(len(x), self.d, 1).astype(self.real)

    def from_coordinates(self, table: Array) -> Array:
        return self.point(table[..., 0])

    def coordinates_of_q(self) -> tuple[Array, Array]:
        return self.p[:, 1:], self.odds[:, None]
