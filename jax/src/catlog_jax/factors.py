"""Distributions over vectors of categorical variables, as small pytrees.

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
    "Autoregressive",
    "Bernoulli",
    "Categorical",
    "Factors",
    "IndependentFactors",
    "MarkovChain",
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
    is_picked = index[..., None] == jnp.arange(table.shape[-1])
    return jnp.where(is_picked, table, 0.0).sum(-1)


class Factors:
    """A distribution over x = (x_1, ..., x_d), as the product of its conditionals.

    Attributes:
        d: the number of variables.
        k: the largest number of categories of a variable.
        real: the dtype of probabilities and uniforms; JAX's default unless a class says otherwise.
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
        return jnp.result_type(float)

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
        return stop_gradient(x).reshape(len(x), self.d).astype(jnp.int32)

    def point(self, index: Array) -> Array:
        """Return the points with these category numbers."""
        return index.astype(jnp.int32)

    @property
    def like(self) -> jax.ShapeDtypeStruct:
        """The shape and dtype of one point."""
        row = jax.eval_shape(self.point, jax.ShapeDtypeStruct((1, self.d), jnp.int32))
        return jax.ShapeDtypeStruct(row.shape[1:], row.dtype)

    def log_prob(self, index: Array) -> Array:
        """Return log q(x), ``[n]``."""
        return pick(self.log_conditionals(index), index).sum(-1)

    def log_prob_at(self, x: Array) -> Array:
        """Return log q(x), ``[n]``, for the sake of its derivatives."""
        return self.log_prob(self.index(x))

    def sample(self, key: Array, shape: tuple[int, ...] = ()) -> Array:
        """Return independent points, ``[*shape, *event]``."""
        u = jax.random.uniform(key, (prod(shape), self.d), self.real)
        x = self.point(self.from_uniforms(u))
        return x.reshape(shape + x.shape[1:])


class IndependentFactors(Factors):
    """Independent variables of k categories, given by ``logits [*variables, k]``.

    A logit of -inf masks a category: f never sees it, and it has no gradient.
    """

    kinds = "independent variables (Categorical, OneHot, Bernoulli)"
    has_categories: ClassVar[bool] = True  # the last dimension of the logits
    logits: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the variables."""
        return self.logits.shape[:-1] if self.has_categories else self.logits.shape

    @property
    def d(self) -> int:
        return prod(self.shape)

    @property
    def k(self) -> int:
        return self.logits.shape[-1] if self.has_categories else 2

    @property
    def real(self) -> Any:
        return jnp.result_type(self.logits, jnp.float32)

    @property
    def flat(self) -> Array:
        """Logits ``[d, w]``, where w = k; for bits the log-odds, where w = 1."""
        return self.logits.reshape(self.d, -1).astype(self.real)

    @property
    def log_probs(self) -> Array:
        """Log-probabilities ``[d, k]``, -inf for impossible categories."""
        return jax.nn.log_softmax(self.flat, -1)

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

    def point(self, index: Array) -> Array:
        return index.reshape(len(index), *self.shape).astype(jnp.int32)

    def mean(self, table: Array) -> Array:
        """Return the mean of a table ``[d, k, *out]`` over the categories, ``[d, *out]``."""
        return (expand(self.probs, table) * table).sum(1)


def times_jacobian(p: Array, table: Array) -> Array:
    """Return J(p) times a table ``[..., w]``, where J(p) = diag(p) - p p^T."""
    weighted = p * table
    return weighted - p * weighted.sum(-1, keepdims=True)


class RelaxableFactors(IndependentFactors):
    """Bits or one-hot vectors: points are reals, in which f may have a derivative.

    In a point each variable has w numbers: a bit is a one-hot vector without its first number.
    """

    kinds = "Bernoulli or OneHot"

    @property
    def scores(self) -> Array:
        """What gradients are given for, ``[d, w]``: the logits, up to a constant per variable."""
        return self.table

    def with_gradient(self, gradient: Array) -> Array:
        """Return zeros ``[*out]`` with this gradient ``[d, w, *out]`` in the logits. Over the
        categories of a variable it adds up to 0."""
        return (expand(zero(self.scores), gradient) * stop_gradient(gradient)).sum((0, 1))

    def drawn(self, x: Array) -> Array:
        """Return points as tables of ones and zeros, ``[n, d, k]``."""
        table = x.reshape(len(x), self.d, -1).astype(self.real)
        return table if self.has_categories else jnp.concatenate([1 - table, table], -1)

    def to_point(self, table: Array) -> Array:
        """Return tables ``[n, d, k]``, or the last w columns of such, as points."""
        numbers = table if self.has_categories else table[..., -1]
        return numbers.reshape(len(table), *self.logits.shape).astype(jnp.result_type(self.logits))

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
        return self.drawn(stop_gradient(x)).argmax(-1).astype(jnp.int32)

    def point(self, index: Array) -> Array:
        return self.to_point(jax.nn.one_hot(index, self.k, dtype=self.real))


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
    has_categories = False

    @property
    def log_probs(self) -> Array:
        return jax.nn.log_sigmoid(jnp.concatenate([-self.flat, self.flat], -1))

    @property
    def scores(self) -> Array:
        return jnp.where(jnp.isinf(self.flat), 0.0, self.flat)

    def log_prob_at(self, x: Array) -> Array:
        bits, odds = stop_gradient(x).reshape(len(x), self.d), self.scores[:, 0]
        return (bits * odds - jax.nn.softplus(odds)).sum(-1)

    def point(self, index: Array) -> Array:
        return self.to_point(index[..., None])


class Chain(Factors):
    """Variables that depend on earlier ones. Points are category numbers ``[d]``.

    The conditionals are made by :meth:`advance`, one step after the other.
    """

    length: int
    init: Any  # the state before the first variable

    def advance(self, state: Any, previous: Array) -> tuple[Any, Array]:
        """Return the next state and the logits ``[k]``, given the previous category (first: k)."""
        raise NotImplementedError

    @property
    def d(self) -> int:
        return self.length

    def step_on(self, state: Any, previous: Array) -> tuple[Any, Array]:
        """Advance, and raise unless the logits are one float for each category."""
        state, logits = self.advance(state, previous)
        if logits.shape != (self.k,) or not jnp.issubdtype(logits.dtype, jnp.floating):
            raise ValueError(
                f"{type(self).__name__}: the logits of a variable must be {self.k} floats, one for "
                f"each category, but they are {logits.dtype} of shape {logits.shape}."
            )
        return state, logits.astype(self.real)

    def redraw(self, u: Array, index: Array, kept: Array) -> Array:
        def step(state: Any, now: Any) -> tuple[Any, Array]:
            u, category, is_kept = now
            inner, logits = self.step_on(*state)
            drawn = inverse_cdf(jax.nn.softmax(stop_gradient(logits)), u)
            category = jnp.where(is_kept, category, drawn).astype(jnp.int32)
            return (inner, category), category

        return jax.lax.scan(step, (self.init, jnp.int32(self.k)), (u, index, kept))[1]

    def log_conditionals(self, index: Array) -> Array:
        def of_one(index: Array) -> Array:
            previous = jnp.concatenate([jnp.full(1, self.k, jnp.int32), index[:-1]])
            return jax.nn.log_softmax(jax.lax.scan(self.step_on, self.init, previous)[1], -1)

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
        if self.transition.shape != (self.k, self.k):
            raise ValueError(
                f"MarkovChain: `transition` must have shape {(self.k, self.k)}, a row for each "
                f"previous category, but its shape is {self.transition.shape}."
            )
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


# The classes of distrax and NumPyro begin with these names, which saves importing them.
NAMES = {"Bernoulli": Bernoulli, "Categorical": Categorical, "OneHotCategorical": OneHot}
WRAPPERS = ("Independent", "ExpandedDistribution", "MaskedDistribution")


def view(q: Any) -> Factors:
    """Return q as factors. All dimensions of a distribution of distrax or NumPyro are variables of
    one point, those of its batch too.

    >>> view(Categorical(jnp.zeros((3, 2)))).d
    3
    """
    if not isinstance(q, Factors):
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
        tail = q.logits.shape[-1:] if cls is Categorical else ()
        q = cls(jnp.broadcast_to(q.logits, shape + tail))
    if isinstance(q, IndependentFactors):
        check_logits(q)
    return q


def check_logits(q: IndependentFactors) -> None:
    """Raise unless the logits are floats of at least one variable and category."""
    name, logits, least = type(q).__name__, q.logits, int(q.has_categories)
    if not jnp.issubdtype(getattr(logits, "dtype", object), jnp.floating):
        raise TypeError(f"{name}: `logits` must be floats in an array, but {logits!r} was given.")
    if logits.ndim < least or logits.size == 0:
        raise ValueError(
            f"{name}: `logits` must have shape [*variables{', k' * least}] with at least one "
            f"variable, but their shape is {logits.shape}."
        )
