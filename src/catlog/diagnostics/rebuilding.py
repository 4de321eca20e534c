"""Distributions of independent variables, rebuilt from other logits or probabilities."""

from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, OneHotCategorical

from ..core.categories import Kind
from ..core.factors import base_distribution, given_form, was_clamped
from ..core.ordered import Ordered
from ..core.view import view
from ..distributions.categoricals import Categoricals


def kind_of(q: Distribution) -> Kind:
    """Return the kind of distribution, as estimators name it."""
    if isinstance(q, Ordered):
        return Kind.STRUCTURED
    is_mixed = isinstance(base_distribution(q), Categoricals)
    return Kind.MIXED if is_mixed else view(q, validate=False).kind


def with_parameter(q: Distribution) -> Bernoulli | Categorical | Categoricals:
    """Return the distribution inside q that has the logits or probabilities."""
    base = base_distribution(q)
    inner = base._categorical if isinstance(base, OneHotCategorical) else base
    assert isinstance(inner, Bernoulli | Categorical | Categoricals)
    return inner


def parameter_of(q: Distribution) -> Tensor:
    """Return the tensor that q was built from: logits or probabilities."""
    view(q, validate=False)  # raises an error that lists the distributions, if this is none
    inner = with_parameter(q)
    parameter: Tensor = getattr(inner, _form(inner))
    return parameter


def _form(q: Bernoulli | Categorical | Categoricals) -> str:
    """Return "logits" if q can be rebuilt from them, else "probs"."""
    form = given_form(q)
    if form == "unknown":
        return "probs" if bool(was_clamped(q).any()) else "logits"
    return form


def rebuilt(q: Distribution, parameter: Tensor) -> Distribution:
    """Return q with other logits (or probabilities), which may have further leading dimensions.

    torch normalises the logits of a Categorical. A second time changes neither them nor gradients.
    """
    if isinstance(q, Independent):
        return Independent(
            rebuilt(q.base_dist, parameter), q.reinterpreted_batch_ndims, validate_args=False
        )
    if isinstance(q, Categoricals):
        return Categoricals(parameter, q.cardinalities, validate_args=False)
    assert isinstance(q, Bernoulli | Categorical | OneHotCategorical)
    return type(q)(**{_form(with_parameter(q)): parameter}, validate_args=False)


def detached_copy(q: Distribution) -> tuple[list[Tensor], Distribution]:
    """Return a copy of q with logits (or probabilities) that are a leaf of the graph."""
    if isinstance(q, Ordered):
        raise ValueError(
            "q: none of its parameters has requires_grad=True, so it has no gradient to estimate. "
            "Call requires_grad_() on them before q is built from them."
        )
    leaf = parameter_of(q).detach().clone().requires_grad_()
    return [leaf], rebuilt(q, leaf)
