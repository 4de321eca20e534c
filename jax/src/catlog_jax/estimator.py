"""The contract of every estimator, and the one place where it is called."""

import typing
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient

from .evaluator import Evaluator, Function
from .factors import Factors, view
from .randomness import Randomness
from .settings import Count, check_setting

__all__ = ["Estimate", "Estimator"]

Q = TypeVar("Q", bound=Factors)

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
    """

    accepts: ClassVar[type[Factors]] = Factors
    arrays: ClassVar[tuple[str, ...]] = ()
    unbiased: ClassVar[bool] = True
    twice: ClassVar[bool] = False
    differentiates_f: ClassVar[bool] = False
    many_outputs: ClassVar[bool] = True
    _kinds: ClassVar[dict[str, Any]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for base in getattr(cls, "__orig_bases__", ()):
            cls.accepts = typing.get_args(base)[0]
        cls._kinds = typing.get_type_hints(cls, include_extras=True)
        dataclass(frozen=True, repr=False)(cls)
        settings = {field.name for field in fields(cls)}  # type: ignore[arg-type]
        leaves = settings.intersection(cls.arrays)
        jax.tree_util.register_dataclass(cls, sorted(leaves), sorted(settings - leaves))

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            value, kind = getattr(self, field.name), self._kinds[field.name]
            check_setting(type(self).__name__, field.name, value, kind)

    def __repr__(self) -> str:
        """Return the name and the settings that are not defaults."""
        shown = [
            repr(value) if field.name == "samples" else f"{field.name}={value!r}"
            for field in fields(self)  # type: ignore[arg-type]
            if (value := getattr(self, field.name)) is not field.default or field.name == "samples"
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
        batch: int = 1,
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
            batch: how many calls ``jax.vmap`` makes together, which share a default chunk.
            options: what a method takes besides; see its class.
        """
        factors, name = self.view(q), type(self).__name__
        if outputs and not self.many_outputs:
            raise ValueError(
                f"outputs: {name} takes functions with one output. Make one call for each, or use "
                "RLOO or IndeCateR."
            )
        tape: Any = None if noise is None else [noise] if hasattr(noise, "shape") else list(noise)
        points = None if x is None else self._checked_points(x, factors)
        draw = Randomness(key, factors, points, tape)
        evaluator = Evaluator(f, factors, getattr(self, "chunk_size", None), outputs, batch)
        value, surrogate = self.estimate(evaluator, factors, draw, **options)  # type: ignore[arg-type]
        draw.check_used(name)
        result = stop_gradient(value) + (surrogate - stop_gradient(surrogate))
        return result if self.twice else once(result)

    def batch(self, key: Array, f: Callable[..., Any], q: Any, *data: Any, **options: Any) -> Array:
        """Return the estimates ``[batch]`` of ``f(x, *datum)``, for a batch of q and of data.

        q and the data have one leading dimension: a ``Bernoulli`` with logits ``[batch, d]`` is a
        batch of vectors of d bits. It is ``jax.vmap`` of a call with as many keys, and knows the
        size of the batch where it divides evaluations into chunks. For another layout (a q whose
        parameters are shared, say) write that ``vmap``, and give ``batch`` to the call.
        """
        q = self.view(q)
        size = len(jax.tree.leaves((q, data))[0])

        def of_row(key: Array, q: Factors, datum: Any) -> Array:
            return self(key, lambda x: f(x, *datum), q, batch=size, **options)

        return jax.vmap(of_row)(jax.random.split(key, size), q, data)

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
        check_setting(type(self).__name__, "x.shape[0]", len(x), self._kinds.get("samples", Count))
        return stop_gradient(x).astype(like.dtype)


@jax.custom_jvp
def once(estimate: Array) -> Array:
    """Return the estimate, whose derivative raises an error when it is differentiated again.

    A surrogate has the right first derivative. Its second one is wrong, because it treats the
    weights as constants.
    """
    return estimate


@jax.custom_jvp
def _guard(estimate: Array) -> Array:
    """Return ones that cannot be differentiated, not even once."""
    return jnp.ones_like(estimate)


@_guard.defjvp
def _refuse(primals: Any, tangents: Any) -> tuple[Array, Array]:
    raise TypeError(TWICE)


once.defjvps(lambda tangent, _, estimate: tangent * _guard(estimate))
