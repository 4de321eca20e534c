"""q as factors: distributions of this package, of distrax or of NumPyro."""

from typing import Any

import jax

from .factors import Bernoulli, Categorical, Factors, IndependentFactors, OneHot

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

    >>> import jax.numpy as jnp
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
        factors = cls(jax.numpy.broadcast_to(logits, shape + tail))  # type: ignore[call-arg]
    if isinstance(factors, IndependentFactors):
        check_logits(factors)
    return factors


def check_logits(q: IndependentFactors) -> None:
    """Raise unless the logits are floats of at least one variable and category."""
    name, logits = type(q).__name__, q.logits
    least = 0 if isinstance(q, Bernoulli) else 1
    if not jax.numpy.issubdtype(logits.dtype, jax.numpy.floating):
        raise TypeError(f"{name}: `logits` must be floats, but they are {logits.dtype}.")
    if logits.ndim < least or logits.size == 0:
        raise ValueError(
            f"{name}: `logits` must have shape [*variables{', k' * least}] with at least one "
            f"variable, but their shape is {logits.shape}."
        )
