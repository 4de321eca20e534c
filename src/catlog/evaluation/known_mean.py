"""The mean of a function that knows it."""

from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution

from ..distributions.conditionals import Conditionals, without_outputs
from ..distributions.factors import Factors
from ..estimator import Function
from .evaluate import check_finite


def knows_mean(f: Function) -> bool:
    """Return whether f has a method ``expectation(q)``; it may still not know all q."""
    return callable(getattr(f, "expectation", None))


def known_mean(
    f: Function, q: Distribution, law: Factors | Conditionals
) -> Float[Tensor, "*batch_outputs"] | None:
    """Return ``f.expectation(q)``, checked; None if f has none, or does not know it for this q."""
    if not knows_mean(f):
        return None
    try:
        mean = f.expectation(q)  # type: ignore[attr-defined]
    except NotImplementedError:
        return None
    batch = without_outputs(law)
    is_tensor = isinstance(mean, Tensor) and mean.dim() == len(batch) + law.outputs
    if not is_tensor or mean.shape[: len(batch)] != batch:
        shape = tuple(mean.shape) if isinstance(mean, Tensor) else type(mean).__name__
        tail = ["*"] * law.outputs
        raise ValueError(
            "f.expectation must return a tensor of shape "
            f"({', '.join([*map(str, batch), *tail])}), a mean per batch element of q"
            f"{' and output of f' if tail else ''}, but it returned {shape}."
        )
    if not mean.is_floating_point():
        raise TypeError(f"f.expectation must return floats, but it returned {mean.dtype}.")
    check_finite(mean, "f.expectation must return", law.validate)
    return mean.to(law.real)
