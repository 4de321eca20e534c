"""A test problem (a function, a distribution and the right gradient) and the registry."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from math import prod
from typing import Literal

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Distribution, Independent, OneHotCategorical

from ..core.abilities import HasMean
from ..core.checks import readable
from ..core.estimator import Estimator
from ..core.evaluator import Function
from ..core.view import view
from ..diagnostics.moments import Moments
from ..estimators import Exact

Size = Literal["small", "large"]
SIZES = ("small", "large")
How = Literal["closed form", "enumeration", "pooled"]


@dataclass(frozen=True, eq=False)
class Reference:
    r"""The expectation and its gradient, with their errors.

    Attributes:
        value: :math:`\mathbb{E}[f(x)]`, ``[*batch]``.
        gradient: the gradient of its sum over the batch, one tensor per parameter.
        error: the standard error of every entry of ``gradient``; zeros where the gradient is exact.
        how: "closed form" (from the structure of f and q, at any size), "enumeration" (every point)
            or "pooled" (the mean of many unbiased estimates).
    """

    value: Tensor
    gradient: tuple[Tensor, ...]
    error: tuple[Tensor, ...]
    how: How


@dataclass(frozen=True, eq=False)
class Problem:
    r"""f, q and the gradient of :math:`\mathbb{E}_{x \sim q}[f(x)]` in the parameters of q.

    A problem comes in one encoding, the one that most estimators accept. Independent variables with
    equally many categories are bits (Bernoulli) or one-hot vectors. Variables are integers only
    where the numbers of categories differ (``mixed``) or where the variables depend on each other.

    Attributes:
        f: maps points ``[..., *batch, *event]``, as ``q.sample()`` returns them, to values ``[...,
            *batch]``; a black box.
        parameters: leaves with ``requires_grad``.
        distribution: maps the parameters to q, with a new graph at every call. Parameters with the
            same further dimensions in front give a distribution with these dimensions in front of
            its batch.
        structured: the same f as a function that knows its table (:mod:`catlog.functions`), where
            there is one.
        expectation: the exact E[f] as a differentiable function of the parameters, where the
            structure of the problem gives it at any size.
        pooled: the estimator behind the reference where there is neither a closed form nor few
            enough points.
        calls: the number of its estimates.
        limit: the largest number of points that is enumerated.
        name: as given to :func:`catlog.problems.make`, like size and seed.
        summary: the structure that the problem tests, in one sentence.
        relaxable: f accepts relaxed points (between 0 and 1) and has a derivative there.
        size: "small" or "large".
        seed: the seed of the random numbers that define the problem.
    """

    f: Function
    parameters: tuple[Tensor, ...]
    distribution: Callable[..., Distribution]
    structured: Function | None = None
    expectation: Callable[..., Tensor] | None = None
    pooled: Estimator | None = None
    calls: int = 100
    limit: int = 2**14
    name: str = "problem"
    summary: str = ""
    relaxable: bool = False
    size: Size = "small"
    seed: int = 0

    def q(self) -> Distribution:
        """Return the distribution at the problem's parameters."""
        return self.distribution(*self.parameters)

    @property
    def points(self) -> int:
        """The number of points of the sample space."""
        return prod(view(self.q()).cardinalities)

    def reference(self) -> Reference:
        """Return the right answer: in closed form, else by enumeration, else pooled.

        It is computed at the first call. Pooling can take a minute.
        """
        return self._reference

    @cached_property
    def _reference(self) -> Reference:
        if self.expectation is not None:
            return self._differentiated(self.expectation(*self.parameters), "closed form")
        if self.points <= self.limit:
            value = Exact(limit=self.limit)(self.f, self.q())
            return self._differentiated(value, "enumeration")
        if self.pooled is None:
            raise ValueError(
                f"{self.name}: {readable(self.points)} points are too many to enumerate; "
                "give `expectation` or `pooled`."
            )
        return self.pool(self.pooled, self.calls)

    def _differentiated(self, value: Tensor, how: How) -> Reference:
        gradient = torch.autograd.grad(value.sum(), self.parameters)
        error = tuple(torch.zeros_like(tensor) for tensor in gradient)
        return Reference(value.detach(), gradient, error, how)

    def pool(self, E: Estimator, calls: int) -> Reference:
        """Return the mean of ``calls`` estimates by E (at least 2), with its standard error."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        f = self.f if self.structured is None else self.structured
        value = torch.zeros(self.q().batch_shape, dtype=torch.float64)
        moments, sizes = Moments(), [leaf.numel() for leaf in self.parameters]
        for _ in range(calls):
            estimate = E(f, self.q(), generator=generator)
            value += estimate.detach() / calls
            gradients = torch.autograd.grad(estimate.sum(), self.parameters)
            moments.add(torch.cat([gradient.flatten() for gradient in gradients]).unsqueeze(0))

        def by_parameter(flat: Tensor) -> tuple[Tensor, ...]:
            parts = zip(flat.split(sizes), self.parameters, strict=True)
            return tuple(part.view_as(leaf) for part, leaf in parts)

        error = moments.mean_variances.sqrt()
        return Reference(value, by_parameter(moments.mean), by_parameter(error), "pooled")


PROBLEMS: dict[str, Callable[..., Problem]] = {}


def problem(
    name: str, *, relaxable: bool
) -> Callable[[Callable[[Size, int], Problem]], Callable[..., Problem]]:
    """Register a function ``(size, seed) -> Problem``, and complete the problems that it returns.

    The summary is the first line of the function's docstring. The parameters become leaves with
    ``requires_grad``.
    """

    def register(make: Callable[[Size, int], Problem]) -> Callable[..., Problem]:
        @wraps(make)
        def complete(size: Size = "small", seed: int = 0) -> Problem:
            draft = make(size, seed)
            leaves = tuple(tensor.detach().requires_grad_() for tensor in draft.parameters)
            named = replace(draft, name=name, size=size, seed=seed, relaxable=relaxable)
            return replace(named, parameters=leaves, summary=summary(make))

        PROBLEMS[name] = complete
        return complete

    return register


def summary(make: Callable[..., Problem]) -> str:
    """Return the structure that a problem tests: the first line of its function's docstring."""
    return (make.__doc__ or "").split("\n")[0]


def bits(logits: Tensor) -> Distribution:
    """Return independent bits: ``[*batch, d]``."""
    return Independent(Bernoulli(logits=logits, validate_args=False), 1)


def one_hot(logits: Tensor) -> Distribution:
    """Return independent one-hot variables: ``[*batch, d, k]``."""
    return Independent(OneHotCategorical(logits=logits, validate_args=False), 1)


def normal(seed: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    """Draw standard normal tensors of these shapes in float64, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def at_means(f: Function, distribution: Callable[..., Distribution]) -> Function:
    """Return the expectation of an f that is linear in every variable, from the parameters."""
    return lambda *parameters: f(distribution(*parameters).mean)


def own_mean(f: HasMean, distribution: Callable[..., Distribution]) -> Function:
    """Return the expectation of an f that knows it, as a function of the parameters."""
    return lambda *parameters: f.expectation(distribution(*parameters))


def black_box(f: Function) -> Function:
    """Return f without its table, for points with any number of dimensions before the batch."""
    return lambda x: f(x.unsqueeze(0)).squeeze(0)
