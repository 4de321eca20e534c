"""A test problem: a function, a law with parameters, and the right gradient."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..distributions.conditionals import view
from ..estimator import Estimator, Function
from ..estimators import Exact
from ..files.cache import load_or_make

Size = Literal["small", "large"]
SIZES = ("small", "large")


@dataclass(frozen=True, eq=False)
class Reference:
    r"""The expectation and its gradient, with what is known of their error.

    value: :math:`\mathbb{E}[f(x)]`, ``[*batch]``.
    gradient: of its sum over the batch, in each parameter.
    error: the standard error of every entry of ``gradient``; zeros where it is exact.
    how: "closed form" (from the structure of f and q, at any size), "enumeration" (every point), or "pooled" (the mean of many
        unbiased estimates).
    """

    value: Tensor
    gradient: tuple[Tensor, ...]
    error: tuple[Tensor, ...]
    how: Literal["closed form", "enumeration", "pooled"]

    @property
    def exact(self) -> bool:
        return self.how != "pooled"

    def packed(self) -> dict[str, Tensor]:
        """A pooled reference as named tensors."""
        pairs = enumerate(zip(self.gradient, self.error, strict=True))
        return {"value": self.value} | {
            f"{what}{i}": each for i, both in pairs for what, each in zip("ge", both, strict=True)
        }

    @staticmethod
    def unpacked(packed: dict[str, Tensor]) -> "Reference":
        """The inverse of :meth:`packed`."""
        gradient, error = (
            tuple(packed[f"{what}{i}"] for i in range(len(packed) // 2)) for what in "ge"
        )
        return Reference(packed["value"], gradient, error, "pooled")


@dataclass(frozen=True, eq=False)
class Problem:
    r"""f, q and the gradient of :math:`\mathbb{E}_{x \sim q}[f(x)]` in the parameters of q.

    A problem comes in one encoding, which suits every estimator that can be used on it at all: bits (Bernoulli) or one-hot
    vectors where the variables are independent and have equally many categories, since whoever takes numbers takes those, too;
    numbers only where the categories differ (``mixed``) or the variables depend on each other.

    name: as given to :func:`catlog.problems.make`, and so are size and seed.
    tests: which structure it tests, in one line.
    f: points ``[..., *batch, *event]`` as ``q.sample()`` gives them to values ``[..., *batch]``; a black box.
    parameters: leaves with ``requires_grad``.
    law: maps the parameters to q, with a fresh graph at each call. Parameters with further dimensions in front, the same for
        all, give a law with these in front of its batch.
    interactions: f is not additive.
    relaxable: f takes relaxed points (between 0 and 1) and has a derivative in them.
    structured: f once more, as a function that knows its own table (:mod:`catlog.functions`), where there is one.
    expectation: the exact E[f] as a differentiable function of the parameters, where the structure gives it at any size.
    pooled: the estimator behind the reference where there is neither a closed form nor few enough points, called ``calls`` times.
    limit: the largest number of points that is enumerated.
    cache: a folder in which a pooled reference is kept, where it takes long.
    """

    name: str
    tests: str
    f: Function
    parameters: tuple[Tensor, ...]
    law: Callable[..., Distribution]
    interactions: bool
    relaxable: bool
    structured: Function | None = None
    expectation: Callable[..., Tensor] | None = None
    pooled: Estimator | None = None
    calls: int = 100
    cache: Path | None = None
    size: Size = "small"
    seed: int = 0
    limit: int = 2**14
    _kept: dict[str, Reference] = field(default_factory=dict, init=False, repr=False)

    def q(self) -> Distribution:
        """The law at the problem's parameters."""
        return self.law(*self.parameters)

    @property
    def points(self) -> int:
        """The number of points of the sample space."""
        return prod(view(self.q(), validate=False).cardinalities)

    def reference(self, watch: Callable[[int, int], None] | None = None) -> Reference:
        """The right answer, computed at the first call: in closed form, else by enumeration, else pooled.

        ``watch`` is told how many of how many estimates are pooled, which can take a minute.
        """
        if "reference" not in self._kept:
            self._kept["reference"] = self._computed(watch)
        return self._kept["reference"]

    def _computed(self, watch: Callable[[int, int], None] | None) -> Reference:
        if self.expectation is not None:
            return self._exactly(self.expectation(*self.parameters), "closed form")
        if self.points <= self.limit:
            return self._exactly(Exact(limit=self.limit)(self.f, self.q()), "enumeration")
        E = self.pooled
        if E is None:
            raise ValueError(
                f"{self.name}: {self.points} points are too many to enumerate; give `expectation` or `pooled`."
            )
        if self.cache is None:
            return self.pool(E, self.calls, watch)
        told = hashlib.sha256(repr(E).encode()).hexdigest()[:8]
        path = self.cache / f"{self.name}-{self.calls}-{told}.pt"
        return Reference.unpacked(
            load_or_make(path, lambda: self.pool(E, self.calls, watch).packed())
        )

    def _exactly(self, value: Tensor, how: Literal["closed form", "enumeration"]) -> Reference:
        gradient = torch.autograd.grad(value.sum(), self.parameters)
        return Reference(
            value.detach(), gradient, tuple(torch.zeros_like(each) for each in gradient), how
        )

    def pool(
        self, E: Estimator, calls: int, watch: Callable[[int, int], None] | None = None
    ) -> Reference:
        """The mean of ``calls`` estimates by E (at least 2), and its standard error."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        f = self.f if self.structured is None else self.structured
        value = torch.zeros(self.q().batch_shape, dtype=torch.float64)
        mean, squares = (
            [torch.zeros_like(each, dtype=torch.float64) for each in self.parameters]
            for _ in range(2)
        )
        for call in range(1, calls + 1):
            estimate = E(f, self.q(), generator=generator)
            value += (estimate.detach() - value) / call
            for i, gradient in enumerate(torch.autograd.grad(estimate.sum(), self.parameters)):
                change = gradient - mean[i]
                mean[i] += change / call
                squares[i] += change * (gradient - mean[i])
            if watch is not None:
                watch(call, calls)
        error = tuple((each / (calls * (calls - 1))).sqrt() for each in squares)
        return Reference(value, tuple(mean), error, "pooled")


def summary(maker: Callable[..., Problem]) -> str:
    """Which structure a problem tests: the first line of its maker's docstring."""
    return (maker.__doc__ or "").split("\n")[0]


def bits(logits: Tensor) -> Distribution:
    """Independent bits: ``[*batch, d]``."""
    return torch.distributions.Independent(
        torch.distributions.Bernoulli(logits=logits, validate_args=False), 1
    )


def one_hot(logits: Tensor) -> Distribution:
    """Independent one-hot variables: ``[*batch, d, k]``."""
    return torch.distributions.Independent(
        torch.distributions.OneHotCategorical(logits=logits, validate_args=False), 1
    )


def normal(seed: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    """Standard normal tensors of these shapes in float64, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def black_box(f: Function) -> Function:
    """f without its table."""
    return lambda x: f(x)
