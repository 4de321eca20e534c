"""From a distribution to its factors, for an estimator that takes some kinds."""

from torch.distributions import Distribution, Independent

from .categories import Kind
from .checks import check_outputs, is_checked
from .conversion import converted
from .counts import counts
from .dependent import DependentFactors
from .factors import Factors, RelaxableFactors, independent
from .ordered import Ordered

COUNTS = frozenset({Kind.COUNTS})
ANY = frozenset(Kind) - COUNTS


def view(
    q: Distribution,
    outputs: int = 0,
    supports: frozenset[Kind] = ANY,
    owner: str = "it",
    instead: str = "",
) -> Factors:
    """Return q as factors, or raise an error that says which distributions ``owner`` takes."""
    check_outputs(outputs)
    if supports == COUNTS:
        return counts(q, outputs)
    known, validate = converted(q), is_checked(q)
    if isinstance(known, Ordered):
        factors: Factors | None = DependentFactors(known, outputs, validate)
    else:
        factors = independent(known, outputs, validate)
    if factors is None and not isinstance(q, Distribution | type) and callable(q):
        raise TypeError(
            f"q: a distribution is needed, but {name_of(q)} was given, which can be called. Write "
            "E(f, q): the function comes first, then the distribution."
        )
    if factors is None:
        raise TypeError(
            f"q: a distribution of categorical variables is needed, but {name_of(q)} was given. "
            "Supported are Bernoulli, Categorical and OneHotCategorical of torch.distributions, "
            "each alone or inside Independent(..., dims), and catlog.distributions.Categoricals; "
            "and, for estimators of dependent variables, those of catlog.distributions "
            "(MarkovChain, Autoregressive, Subset, ...). For counts (Poisson, ...) use "
            "catlog.estimators.CountDifferences, or catlog.distributions.truncated(q). For other "
            "types there is "
            "catlog.distributions.register_distribution."
        )
    if factors.kind not in supports:
        raise TypeError(_why_not(q, factors, supports, owner, instead))
    factors.distribution = q
    return factors


def _why_not(
    q: Distribution, factors: Factors, supports: frozenset[Kind], owner: str, instead: str
) -> str:
    if factors.kind == Kind.STRUCTURED:
        return (
            f"q: the variables of {name_of(q)} depend on each other, but {owner} needs independent "
            'ones. Use an estimator whose `supports` names "structured", such as RLOO or SCateR.'
        )
    if supports == {Kind.BITS}:
        return (
            f"q: {owner} is for binary variables (Bernoulli), but {name_of(q)} was given. Use "
            f"{instead}."
        )
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
