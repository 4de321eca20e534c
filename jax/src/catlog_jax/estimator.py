"""The contract of every estimator, and the one place where it is called."""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, replace
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    Literal,
    NamedTuple,
    Self,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient

from .evaluator import Evaluator, Function
from .factors import Factors, view
from .randomness import Randomness

__all__ = ["Estimate", "Estimator"]

Q = TypeVar("Q", bound=Factors)
Count = Annotated[int, "at least 1"]
Positive = Annotated[float | Array, "positive"]
Share = Annotated[float, "in [0, 1]"]

KINDS: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    bool: ("True or False", lambda v: isinstance(v, bool)),
    Positive: ("positive", lambda v: is_number(v) and not (isinstance(v, int | float) and v <= 0)),
    Share: ("in [0, 1]", lambda v: is_number(v) and 0 <= v <= 1),
}

TWICE = (
    "E(key, f, q): this estimate has an unbiased first derivative, but not a second one. For "
    "second derivatives (jax.hessian) use Reinforce, RLOO or, where q has few points, Exact."
)


class Estimate(NamedTuple):
    """What an estimator returns.

    Attributes:
        value: of the estimate, ``[*out]``.
        surrogate: whose derivative is that of the estimate.
    """

    value: Array
    surrogate: Array


@dataclass_transform(frozen_default=True)
class Estimator(Generic[Q]):
    r"""An expectation operator: ``E(key, f, q)`` estimates :math:`\mathbb{E}_{x\sim q}[f(x)]`.

    - ``q``: a distribution of this package, or such a one of distrax or NumPyro.
    - ``f``: a function of ONE point, which returns a scalar. It may have parameters, and it may be
      a black box unless ``differentiates_f``.

    Returns an array: the *value* is an estimate of the expectation, and its *gradient* (by
    ``jax.grad``) is this method's estimate of the expectation's gradient, in the parameters of q
    and of f. Values compose: sums, products and functions of them are differentiated by the chain
    rule. *Second* derivatives are right with Exact, Reinforce and RLOO. With GumbelSoftmax they are
    those of the relaxation. The other estimators raise an error while they are traced.

    **A method of your own** is a subclass ``class Mine(Estimator[IndependentFactors])``. The type
    in brackets says which factors it takes. It is a frozen dataclass of its settings, which are
    checked by their annotations, and defines one method, :meth:`estimate`.

    Attributes:
        accepts: the factors that q may be, from the type in brackets.
        arrays: the settings that may be arrays (leaves of the estimator as a pytree).
        unbiased: whether value and gradient are right in expectation.
        twice: whether second derivatives are right, or are meant as they are; else they raise.
        differentiates_f: whether the derivative of f in its input is used.
        many_outputs: whether f may have outputs, which needs an estimate that is linear in f.
        least_samples: the fewest draws that the method works with.
    """

    accepts: ClassVar[type[Factors]] = Factors
    arrays: ClassVar[tuple[str, ...]] = ()
    unbiased: ClassVar[bool] = True
    twice: ClassVar[bool] = False
    differentiates_f: ClassVar[bool] = False
    many_outputs: ClassVar[bool] = True
    least_samples: ClassVar[int] = 1

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for base in getattr(cls, "__orig_bases__", ()):
            if get_args(base) and not isinstance(get_args(base)[0], TypeVar):
                cls.accepts = get_args(base)[0]
        dataclass(frozen=True, repr=False)(cls)
        settings = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        leaves = [name for name in settings if name in cls.arrays]
        jax.tree_util.register_dataclass(
            cls, leaves, [name for name in settings if name not in leaves]
        )

    def __post_init__(self) -> None:
        kinds = get_type_hints(type(self), include_extras=True)
        for field in fields(self):  # type: ignore[arg-type]
            least = self.least_samples if field.name == "samples" else 1
            check_setting(
                type(self).__name__, field.name, getattr(self, field.name), kinds[field.name], least
            )

    def __repr__(self) -> str:
        """Return the name and the settings that are not defaults."""
        shown = [
            repr(value) if field.name == "samples" else f"{field.name}={value!r}"
            for field in fields(self)  # type: ignore[arg-type]
            if (value := getattr(self, field.name)) is not field.default
            or (field.name == "samples" and field.default is not MISSING)
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    def estimate(self, f: Evaluator, q: Q, draw: Randomness) -> Estimate:
        """Return the value of the estimate, and a surrogate that has its gradient.

        Args:
            f: ``f(x)`` evaluates the function at n points; see :class:`Evaluator`.
            q: the factors of the distribution.
            draw: ``draw.points(n)`` draws from q; see :class:`Randomness`.
        """
        raise NotImplementedError

    def __call__(
        self,
        key: Array,
        f: Function,
        q: Any,
        *,
        x: Array | None = None,
        noise: Array | tuple[Array, ...] | None = None,
        outputs: bool = False,
        **options: Any,
    ) -> Array:
        """Return the estimate, a scalar, or ``[*out]`` with ``outputs``.

        Args:
            key: a key of ``jax.random``.
            f: the function, of one point.
            q: the distribution.
            x: points to use instead of drawing them, ``[n, *event]``: replay, exact tests.
            noise: uniforms to use instead of all else that is drawn, in that order.
            outputs: whether f returns an array, for an expectation per output.
            options: what a method takes besides; see its class.
        """
        factors = self.view(q)
        tape = None if noise is None else [noise] if isinstance(noise, Array) else list(noise)
        points = None if x is None else self._checked_points(x, factors)
        draw = Randomness(key, factors, points, tape)
        result = self.evaluate(f, factors, draw, outputs=outputs, **options)
        draw.check_used(type(self).__name__)
        return result

    def evaluate(
        self,
        f: Function,
        q: Factors,
        draw: Randomness,
        *,
        outputs: bool = False,
        batch: int = 1,
        **options: Any,
    ) -> Array:
        """Return the estimate of factors from a tape of randomness."""
        if outputs and not self.many_outputs:
            raise ValueError(
                f"outputs: {type(self).__name__} takes functions with one output. Make one call "
                "for each, or use RLOO or IndeCateR."
            )
        evaluator = Evaluator(f, q, getattr(self, "chunk_size", None), outputs, batch)
        value, surrogate = self.estimate(evaluator, q, draw, **options)  # type: ignore[arg-type]
        result = stop_gradient(value) + (surrogate - stop_gradient(surrogate))
        return result if self.twice else once(result)

    def batch(self, key: Array, f: Callable[..., Any], q: Any, *data: Any, **options: Any) -> Array:
        """Return the estimates ``[batch]`` of ``f(x, *datum)``, for a batch of q and of data.

        q and the data have one leading dimension: a ``Bernoulli`` with logits ``[batch, d]`` is a
        batch of vectors of d bits. It is ``jax.vmap`` of a call with as many keys, and knows the
        size of the batch where it divides evaluations into chunks. For another layout (a q whose
        parameters are shared, say) write that ``vmap``.
        """
        q = self.view(q)
        size = len(jax.tree.leaves((q, data))[0])

        def one(key: Array, q: Factors, datum: Any) -> Array:
            draw = Randomness(key, q)
            return self.evaluate(lambda x: f(x, *datum), q, draw, batch=size, **options)

        return jax.vmap(one)(jax.random.split(key, size), q, data)

    def evaluations(self, q: Any) -> int:
        """Return how often a call evaluates f, by counting while one is traced."""
        factors = self.view(q)
        evaluator = Evaluator(lambda x: x.astype(factors.real).sum(), factors)
        count = lambda key: self.estimate(evaluator, factors, Randomness(key, factors))  # type: ignore[arg-type] # noqa: E731
        jax.eval_shape(count, jax.random.key(0))
        return evaluator.evaluations

    def replace(self, **settings: Any) -> Self:
        """Return this estimator with other settings."""
        return replace(self, **settings)  # type: ignore[type-var]

    def view(self, q: Any) -> Factors:
        """Return q as factors, or raise if this method does not take them."""
        factors = view(q)
        if not isinstance(factors, self.accepts):
            raise TypeError(
                f"q: {type(self).__name__} takes {self.accepts.kinds}, but "
                f"{type(factors).__name__} was given."
            )
        return factors

    def _checked_points(self, x: Any, q: Factors) -> Array:
        x, like = jnp.asarray(x), q.like
        if x.shape[1:] != like.shape or x.ndim == 0:
            raise ValueError(
                f"x must have shape [n, *event] = (n, {', '.join(map(str, like.shape))}), but "
                f"{x.shape} was given."
            )
        check_setting(type(self).__name__, "x.shape[0]", len(x), Count, self.least_samples)
        return stop_gradient(x).astype(like.dtype)


def is_number(value: object) -> bool:
    """Return whether a setting may be a number, perhaps traced."""
    return not isinstance(value, bool | str)


def check_setting(owner: str, name: str, value: object, kind: Any, least: int = 1) -> None:
    """Raise unless a setting is what its annotation says. Arrays may be traced, and are not read.

    >>> check_setting("Exact", "limit", 0, Count)
    Traceback (most recent call last):
    ValueError: Exact: `limit` must be an int of at least 1, but it is 0.
    """
    kinds = get_args(kind) if get_origin(kind) is UnionType else (kind,)
    wanted, test = KINDS.get(kinds[0], ("a number", is_number))
    if get_origin(kinds[0]) is Literal:
        wanted, test = f"one of {', '.join(map(repr, get_args(kind)))}", get_args(kind).__contains__
    elif kinds[0] is Count:
        wanted, test = f"an int of at least {least}", lambda v: type(v) is int and v >= least
    if not test(value) and not (value is None and type(None) in kinds):
        raise ValueError(f"{owner}: `{name}` must be {wanted}, but it is {value!r}.")


@jax.custom_jvp
def once(estimate: Array) -> Array:
    """Return the estimate, whose derivative raises an error when it is differentiated again.

    A surrogate has the right first derivative. Its second one is wrong, because it treats the
    weights as constants.
    """
    return estimate


@once.defjvp
def _once_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    return once(primals[0]), tangents[0] * _guard(primals[0])


@jax.custom_jvp
def _guard(estimate: Array) -> Array:
    """Return ones that cannot be differentiated, not even once."""
    return jnp.ones_like(estimate)


@_guard.defjvp
def _guard_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    raise TypeError(TWICE)
