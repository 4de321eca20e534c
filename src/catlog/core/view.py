"""From a distribution to its factors: torch's, those of catlog, and those that are registered."""

from collections.abc import Callable
from inspect import isclass
from typing import Any

from torch.distributions import Distribution, Independent

from .categories import Kind
from .checks import check_outputs, is_checked, refusal
from .factors import READERS, DependentFactors, Factors, RelaxableFactors, independent
from .ordered import Ordered, Rearranged
from .tracing import constant_result

Convert = Callable[[Any], Distribution]
CONVERSIONS: dict[type | str, Convert] = {}


def view(
    q: Distribution,
    outputs: int = 0,
    supports: frozenset[Kind] = Factors.kinds,
    owner: str = "it",
    instead: str = "",
) -> Factors:
    """Return q as factors, or raise an error that says which distributions ``owner`` takes."""
    check_outputs(outputs)
    known, validate = converted(q), is_checked(q)
    read = DependentFactors if isinstance(known, Ordered) else independent
    factors: Factors | None = read(known, outputs, validate)
    if factors is None or factors.kind not in supports:
        raise TypeError(_why_not(q, factors, supports, owner, instead))
    factors.distribution = q
    return factors


def _why_not(
    q: Distribution, factors: Factors | None, supports: frozenset[Kind], owner: str, instead: str
) -> str:
    """Return why an estimator does not take q; ``factors`` are None where no estimator does."""
    given = f"but {name_of(q)} was given"
    if supports == {Kind.COUNTS}:
        return (
            "q: a distribution of independent counts is needed, Poisson, Binomial, Geometric or "
            "NegativeBinomial of torch.distributions, alone or inside Independent(..., dims), "
            f"{given}."
        )
    if factors is None and not isinstance(q, Distribution | type) and callable(q):
        return (
            f"q: a distribution is needed, {given}, which can be called. Write E(f, q): the "
            "function comes first, then the distribution."
        )
    if factors is None or factors.kind == Kind.COUNTS:
        return (
            f"q: a distribution of categorical variables is needed, {given}. Supported are "
            "Bernoulli, Categorical and OneHotCategorical of torch.distributions, "
            "each alone or inside Independent(..., dims), and catlog.distributions.Categoricals; "
            "and, for estimators of dependent variables, those of catlog.distributions "
            "(MarkovChain, Autoregressive, Subset, ...). For counts (Poisson, ...) use "
            "catlog.estimators.CountDifferences, or catlog.distributions.truncated(q). For other "
            "types there is catlog.distributions.register_distribution."
        )
    if factors.kind == Kind.STRUCTURED:
        return (
            f"q: the variables of {name_of(q)} depend on each other, but {owner} needs independent "
            'ones. Use an estimator whose `supports` names "structured", such as RLOO or SCateR.'
        )
    if supports == {Kind.BITS}:
        return f"q: {owner} is for binary variables (Bernoulli), {given}. Use {instead}."
    return (
        f"q: {owner} needs points that can be relaxed to real vectors, but {name_of(q)} draws "
        "integers. Use OneHotCategorical (with the same logits) and let f read one-hot vectors"
        f"{instead}."
    )


def name_of(q: object) -> str:
    """Return the name of a distribution for a message."""
    if isinstance(q, Independent):
        return f"Independent({name_of(q.base_dist)}, {q.reinterpreted_batch_ndims})"
    return type(q).__name__


def relaxable(q: Factors, owner: str, instead: str = "") -> RelaxableFactors:
    """Return q, or raise unless its points can be relaxed to reals."""
    if not isinstance(q, RelaxableFactors):
        raise TypeError(_why_not(q.distribution, q, RelaxableFactors.kinds, owner, instead))
    return q


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
    subject = "register_distribution: `type`"
    is_name = isinstance(type, str) and "." in type
    if not is_name and (not isclass(type) or type is object):
        claim = "be a class of distributions or its full name, as 'package.module.Class'"
        raise refusal(subject, claim, f"{type!r} was given", kind=TypeError)
    if isclass(type) and (type in READERS or issubclass(type, Ordered)):
        but = f"they take {type.__name__} as it is"
        remedy = "Register a subclass of Distribution instead."
        raise refusal(subject, "be one that estimators do not know yet", but, remedy)
    if not callable(convert):
        claim, but = "be a function of q that returns a distribution", f"{convert!r} was given"
        raise refusal("register_distribution: `convert`", claim, but, kind=TypeError)
    CONVERSIONS[type] = convert


def converted(q: Any) -> Any:
    """Return q as a distribution that estimators know, if its type is registered; else q itself,
    whatever it is."""
    if isinstance(q, Independent):
        base = converted(q.base_dist)
        if isinstance(base, Ordered):
            return Rearranged(base, q.reinterpreted_batch_ndims)
        if base is q.base_dist:
            return q
        return Independent(base, q.reinterpreted_batch_ndims, validate_args=False)
    if type(q) in READERS or isinstance(q, Ordered):
        return q
    convert = next((CONVERSIONS[key] for key in _keys(type(q)) if key in CONVERSIONS), None)
    if convert is None:
        return q
    result = convert(q)
    subject = f"register_distribution: `convert` of {type(q).__name__}"
    but = f"it returned {type(result).__name__}"
    if not isinstance(result, Distribution):
        raise refusal(subject, "return a distribution", but, kind=TypeError)
    if result.batch_shape != getattr(q, "batch_shape", result.batch_shape):
        claim = f"keep the batch shape {tuple(q.batch_shape)}"
        raise refusal(subject, claim, f"{but} with {tuple(result.batch_shape)}")
    return result if type(result) is type(q) else converted(result)


@constant_result  # torch 2.6 cannot trace __mro__
def _keys(kind: type) -> tuple[type | str, ...]:
    """Return the type and its bases, the nearest first, each followed by its full name."""
    return tuple(
        key
        for base in kind.__mro__[:-1]  # the last one is object
        for key in (base, f"{base.__module__}.{base.__qualname__}")
    )
