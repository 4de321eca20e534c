"""The contract of every estimator, and the one line that ties a value to a gradient."""

from collections.abc import Callable
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution

Function = Callable[[Tensor], Tensor]


@runtime_checkable
class Estimator(Protocol):
    r"""An estimator *is* the expectation operator: ``E(f, q)`` estimates :math:`\mathbb{E}_{x\sim q}[f(x)]`.

    q: a law with ``batch_shape = [*batch]`` (separate expectations) and ``event_shape = [*event]`` (the random vector).
    f: called with points ``[n, *batch, *event]``, written as ``q.sample()`` writes them; returns floats (or bools, for
       indicators) ``[n, *batch]``. f may be a black box unless ``differentiates_f``; it may hold parameters of its own. An f
       with a method ``neighbours(x)`` gives its own table (see :mod:`catlog.functions`).
    x: points to use instead of drawing them, ``[rows(q), *batch, *event]``: replay, common random numbers, exact tests.
    generator: the source of randomness; torch's default one where none is given.

    Returns ``[*batch]``: the *value* is an estimate of the expectation, and its *gradient* (by ``backward``) is this method's
    estimate of the expectation's gradient, in the law's parameters and in f's own. Values compose: ``E(f, q).log()``, sums
    and products are differentiated by the ordinary chain rule.
    """

    unbiased: ClassVar[bool]
    reference: ClassVar[str]

    @property
    def differentiates_f(self) -> bool:
        """Whether the derivative of f in its input is used."""
        ...

    def rows(self, q: Distribution) -> int:
        """Number of base draws: the leading dimension of ``x``."""
        ...

    def evaluations(self, q: Distribution) -> int:
        """Number of points of f evaluated, per batch element."""
        ...

    def __call__(
        self, f: Function, q: Distribution, *, x: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Float[Tensor, "*batch"]: ...


def attach(value: Float[Tensor, "*batch"], surrogate: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """A tensor with the value of ``value`` and the gradient of ``surrogate``.

    >>> theta = torch.tensor(3.0, requires_grad=True)
    >>> y = attach(torch.tensor(10.0), theta**2)
    >>> y.backward()
    >>> y.item(), theta.grad.item()
    (10.0, 6.0)
    """
    return value.detach() + (surrogate - surrogate.detach())
