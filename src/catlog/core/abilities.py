"""What a function f may offer besides its values. Everything here is optional.

A function with these methods or attributes is recognised by them; it need not inherit anything.
"""

from typing import Protocol, TypeGuard

from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor
from torch.distributions import Distribution


class HasTable(Protocol):
    """A function that computes its values at all single-variable changes of x by itself."""

    def __call__(self, x: Tensor, /) -> Tensor: ...

    def neighbours(
        self, x: Shaped[Tensor, "n *batch_event"], variables: Int64[Tensor, "n *batch m"] = ..., /
    ) -> Shaped[Tensor, "n *batch m k"]:
        """Return f(x with x_i = k), ``[n, *batch, d, k]``, with outputs last; or for ``variables``
        of each draw alone, ``[n, *batch, m, k]``. Entries of impossible categories are not read.
        :func:`catlog.check` compares entries with f."""


class HasMean(Protocol):
    """A function that knows its mean. :class:`~catlog.Exact` uses it, at any size of q."""

    def __call__(self, x: Tensor, /) -> Tensor: ...

    def expectation(self, q: Distribution, /) -> Float[Tensor, "*batch_outputs"]:
        """Return E[f(x)], differentiable; NotImplementedError if it is not known for this q."""


class HasLogMean(Protocol):
    """A function that knows the logarithm of its mean, also where the mean underflows."""

    def log_expectation(self, q: Distribution, /) -> Float[Tensor, "*batch"]:
        """Return log E[f(x)], differentiable; NotImplementedError if it is not known for this q."""


class Touches(Protocol):
    """A function with many outputs that says which variables each of them depends on most."""

    @property
    def touches(self) -> Bool[Tensor, "d *outputs"]:
        """Return for each variable the outputs whose value is averaged over it."""


class Ranked(Protocol):
    """A function that divides its rows among several processes."""

    @property
    def ranks(self) -> int:
        """Return the number of processes: chunks are larger by this factor."""


def has_table(f: object) -> TypeGuard[HasTable]:
    """Return whether f has a table of its own."""
    return getattr(f, "neighbours", None) is not None


def has_mean(f: object) -> TypeGuard[HasMean]:
    """Return whether f knows its mean; it may still not know it for all q."""
    return callable(getattr(f, "expectation", None))


def has_log_mean(f: object) -> TypeGuard[HasLogMean]:
    """Return whether f knows the logarithm of its mean."""
    return callable(getattr(f, "log_expectation", None))


def has_touches(f: object) -> TypeGuard[Touches]:
    """Return whether f says which variables an output depends on."""
    return getattr(f, "touches", None) is not None
