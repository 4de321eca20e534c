"""Distributions of other types, converted to those that estimators know."""

from collections.abc import Callable
from inspect import isclass
from typing import Any

from torch.distributions import Distribution, Independent

from .copies import Copies
from .factors import READERS
from .ordered import Ordered
from .tracing import constant_result

Convert = Callable[[Any], Distribution]
_CONVERSIONS: dict[type | str, Convert] = {}


def register_distribution(type: "type | str", convert: Convert) -> None:
    """Let every estimator take distributions of a further type.

    ``E(f, q)`` converts such a q, and f sees the points of the converted distribution. Subclasses
    are converted as well, unless they are registered themselves, and so are distributions inside
    ``Independent``. A later registration replaces an earlier one.

    Registered from the start are torch's ``MixtureSameFamily`` and ``Multinomial``, and the masked
    and one-hot categorical distributions of torchrl.

    Args:
        type: a class, or its full name, as "package.module.Class", if it should not be imported. It
            need not be a subclass of torch's Distribution: stable-baselines3 wraps distributions in
            classes of its own.
        convert: a function of q that returns a distribution which estimators know: of
            torch.distributions or of catlog, with the batch shape of q (if q has one) and
            differentiable in its parameters.

    >>> import torch
    >>> from torch.distributions import Bernoulli
    >>> class Coin(torch.distributions.Distribution):
    ...     arg_constraints = {}
    ...     def __init__(self, p):
    ...         self.p = p
    ...         super().__init__(p.shape, validate_args=False)
    >>> register_distribution(Coin, lambda q: Bernoulli(q.p))
    >>> from catlog import Exact
    >>> Exact()(lambda x: 3 * x, Coin(torch.tensor(0.5)))
    tensor(1.5000)
    """
    is_name = isinstance(type, str) and "." in type
    if not is_name and (not isclass(type) or type is object):
        raise TypeError(
            "register_distribution: `type` must be a class of distributions or its full name, as "
            f"'package.module.Class', but {type!r} was given."
        )
    if isclass(type) and (type in READERS or issubclass(type, Ordered)):
        raise ValueError(
            "register_distribution: `type` must be one that estimators do not know yet, but they "
            f"take {type.__name__} as it is. Register a subclass of Distribution instead."
        )
    if not callable(convert):
        raise TypeError(
            "register_distribution: `convert` must be a function of q that returns a distribution, "
            f"but {convert!r} was given."
        )
    _CONVERSIONS[type] = convert


def converted(q: Any) -> Any:
    """Return q as a distribution that estimators know, if its type is registered; else q itself,
    whatever it is."""
    if isinstance(q, Independent):
        base = converted(q.base_dist)
        if isinstance(base, Ordered):
            return Copies(base, q.reinterpreted_batch_ndims)
        if base is q.base_dist:
            return q
        return Independent(base, q.reinterpreted_batch_ndims, validate_args=False)
    if type(q) in READERS or isinstance(q, Ordered):
        return q
    convert = _conversion(type(q))
    if convert is None:
        return q
    result = convert(q)
    name = type(q).__name__
    if not isinstance(result, Distribution):
        raise TypeError(
            f"register_distribution: `convert` of {name} must return a distribution, but it "
            f"returned {type(result).__name__}."
        )
    if result.batch_shape != getattr(q, "batch_shape", result.batch_shape):
        raise ValueError(
            f"register_distribution: `convert` of {name} must keep the batch shape "
            f"{tuple(q.batch_shape)}, but it returned {type(result).__name__} with "
            f"{tuple(result.batch_shape)}."
        )
    return result if type(result) is type(q) else converted(result)


def _conversion(kind: type) -> Convert | None:
    """Return how the type is converted: by its own registration, or that of its nearest base."""
    for key in _keys(kind):
        if key in _CONVERSIONS:
            return _CONVERSIONS[key]
    return None


@constant_result  # torch 2.6 cannot trace __mro__
def _keys(kind: type) -> tuple[type | str, ...]:
    """Return the type and its bases, the nearest first, each followed by its full name."""
    return tuple(
        key
        for base in kind.__mro__[:-1]  # the last one is object
        for key in (base, f"{base.__module__}.{base.__qualname__}")
    )
