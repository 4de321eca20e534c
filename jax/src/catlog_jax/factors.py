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


def ratio(top: Array | float, bottom: Array, otherwise: Array | float) -> Array:
    """Return top / bottom, and what to put where bottom is 0."""
    known = bottom > 0
    return jnp.where(known, top / jnp.where(known, bottom, 1.0), otherwise)


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
        d: the number of variables.
        k: the largest number of categories of a variable.
        real: the dtype of probabilities and uniforms, float32 or wider.
    """

    kinds: ClassVar[str] = "any distribution"

    @property
    def d(self) -> int:
        raise NotImplementedError

    @property
    def k(self) -> int:
        raise NotImplementedError

    @property
    def real(self) -> Any:
        raise NotImplementedError

    def redraw(self, u: Array, index: Array, kept: Array) -> Array:
        """Return category numbers ``[d]`` of one point: those of ``index`` where they are
        ``kept``, and made by the inverse CDF from uniforms ``[d]`` elsewhere, given the earlier
        ones."""
        raise NotImplementedError

    def from_uniforms(self, u: Array) -> Array:
        """Return the category numbers that the inverse CDF makes from uniforms ``[n, d]``."""
        none = jnp.zeros(self.d, jnp.int32)
        return jax.vmap(lambda u: self.redraw(u, none, none > 0))(u)

    def log_conditionals(self, index: Array) -> Array:
        """Return log q(x_i = k | x_<i), ``[n, d, k]`` or ``[1, d, k]``; -inf where impossible."""
        raise NotImplementedError

    def index(self, x: Array) -> Array:
        """Return the category numbers ``[n, d]`` of points."""
        return stop_gradient(x).astype(jnp.int32)

    def point(self, index: Array) -> Array:
        """Return the points with these category numbers."""
        return index.astype(jnp.int32)

    @property
    def like(self) -> jax.ShapeDtypeStruct:
        """The shape and dtype of one point."""
        one = jax.eval_shape(self.point, jax.ShapeDtypeStruct((1, self.d), jnp.int32))
        return jax.ShapeDtypeStruct(one.shape[1:], one.dtype)

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

    kinds = "independent variables (Categorical, OneHot, Bernoulli)"
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
        return jnp.result_type(self.logits, jnp.float32)

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

    def redraw(self, u: Array, index: Array, kept: Array) -> Array:
        return jnp.where(kept, index, inverse_cdf(self.p, u))

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


def times_jacobian(p: Array, table: Array) -> Array:
    """Return J(p) times a table ``[..., w]``, where J(p) = diag(p) - p p^T."""
    weighted = p * table
    return weighted - p * weighted.sum(-1, keepdims=True)


class RelaxableFactors(IndependentFactors):
    """Bits or one-hot vectors: points are reals, in which f may have a derivative."""

    kinds = "Bernoulli or OneHot"

    @property
    def scores(self) -> Array:
        """Logits ``[d, w]``, with w = k for a one-hot vector; w = 1 for a bit: its log-odds."""
        return self.table

    def drawn(self, x: Array) -> Array:
        """Return points as tables of ones and zeros, ``[n, d, k]``."""
        raise NotImplementedError

    def to_point(self, table: Array) -> Array:
        """Return tables ``[n, d, k]``, or the last w columns of such, as points."""
        raise NotImplementedError

    def through(self, x: Array, table: Array) -> Array:
        """Return the points x exactly, with the derivative of the tables ``[n, d, k]``."""
        return stop_gradient(x) + self.to_point(zero(table)).astype(x.dtype)


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

    def index(self, x: Array) -> Array:
        return stop_gradient(x).reshape(len(x), self.d, self.k).argmax(-1).astype(jnp.int32)

    def point(self, index: Array) -> Array:
        return self.to_point(jax.nn.one_hot(index, self.k, dtype=self.logits.dtype))

    def drawn(self, x: Array) -> Array:
        return x.reshape(len(x), self.d, self.k).astype(self.real)

    def to_point(self, table: Array) -> Array:
        return table.reshape(len(table), *self.logits.shape).astype(self.logits.dtype)


@pytree
class Bernoulli(RelaxableFactors):
    """Bits. A point holds floats 0 or 1, ``[*variables]``.

    Args:
        logits: the log-odds of 1, ``[*variables]``; an infinite one is a bit that is certain.

    >>> Bernoulli(jnp.array([jnp.inf, -jnp.inf])).sample(jax.random.key(0))
    Array([1., 0.], dtype=float32)
    """

    logits: Array

    kinds = "Bernoulli"

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

    @property
    def scores(self) -> Array:
        return self.odds[:, None]

    def log_prob_at(self, x: Array) -> Array:
        bits = stop_gradient(x).reshape(len(x), self.d).astype(self.real)
        return (bits * self.odds - jax.nn.softplus(self.odds)).sum(-1)

    def point(self, index: Array) -> Array:
        return index.reshape(len(index), *self.shape).astype(self.logits.dtype)

    def drawn(self, x: Array) -> Array:
        bits = x.reshape(len(x), self.d).astype(self.real)
        return jnp.stack([1 - bits, bits], -1)

    def to_point(self, table: Array) -> Array:
        return self.point(table[..., -1])


# The classes of distrax and NumPyro begin with these names, which saves importing them.
NAMES: dict[str, type[IndependentFactors]] = {
    "Bernoulli": Bernoulli,
    "Categorical": Categorical,
    "OneHotCategorical": OneHot,
}
WRAPPERS = ("Independent", "ExpandedDistribution", "MaskedDistribution")


def view(q: Any) -> Factors:
    """Return q as factors. All dimensions of a distribution of distrax or NumPyro are variables of
    one point, those of its batch too.

    >>> import jnp as jnp
    >>> view(Categorical(jnp.zeros((3, 2)))).d
    3
    """
    if isinstance(q, Factors):
        factors = q
    else:
        shape = tuple(getattr(q, "batch_shape", ())) + tuple(getattr(q, "event_shape", ()))
        while type(q).__name__ in WRAPPERS:
            q = getattr(q, "base_dist", None) or q.distribution
        name = type(q).__name__
        cls = NAMES.get(name.removesuffix("Logits").removesuffix("Probs"))
        if cls is None or not hasattr(q, "logits"):
            raise TypeError(
                "q must be one of Bernoulli, Categorical, OneHot, MarkovChain, Autoregressive, or "
                f"such a distribution of distrax or NumPyro, but it is {name}."
            )
        logits = q.logits
        tail = logits.shape[-1:] if cls is Categorical else ()
        factors = cls(jnp.broadcast_to(logits, shape + tail))  # type: ignore[call-arg]
    if isinstance(factors, IndependentFactors):
        check_logits(factors)
    return factors


def check_logits(q: IndependentFactors) -> None:
    """Raise unless the logits are floats of at least one variable and category."""
    name, logits = type(q).__name__, q.logits
    least = 0 if isinstance(q, Bernoulli) else 1
    kind = getattr(logits, "dtype", None)
    if kind is None or not jnp.issubdtype(kind, jnp.floating):
        given = kind or f"a {type(logits).__name__}"
        raise TypeError(f"{name}: `logits` must be floats in an array, but they are {given}.")
    if logits.ndim < least or logits.size == 0:
        raise ValueError(
            f"{name}: `logits` must have shape [*variables{', k' * least}] with at least one "
            f"variable, but their shape is {logits.shape}."
        )
