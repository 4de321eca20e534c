"""Estimators that observe: their gradients, their times, and with how many draws."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, is_dataclass, replace
from sys import maxsize
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..core.checks import readable
from ..core.settings import label
from ..core.view import view
from .moments import Moments
from .naming import AnyEstimator
from .task import Gradient, Result, Task, flat

Cost = Callable[[AnyEstimator], int]
Sizing = Callable[[AnyEstimator], AnyEstimator]

ERRORS = (ValueError, TypeError, RuntimeError, NotImplementedError)  # of f or of an estimator
MOST_REASONS = 3  # in the message of an error
TRAINING_RATE = 0.05  # of an estimator that learns, at the start


@dataclass(eq=False)
class Arm:
    """An estimator, and what was observed of it.

    If a call of it is of one of two kinds, by the toss of a coin (``SlopeCateR(every=4)``), an
    observation is a call of each kind, and counts in proportion.

    Attributes:
        E: the estimator.
        evaluations: of f per estimate and batch element.
        generator: the source of its randomness.
        moments: of its gradient in the parameters.
        times: the seconds of its steps.
        trained: the steps for which it learned beforehand.
    """

    E: AnyEstimator
    evaluations: int
    generator: torch.Generator
    times: list[float] = field(default_factory=list)
    trained: int = 0

    def __post_init__(self) -> None:
        E: Any = self.E
        seldom = getattr(E, "every", 1) > 1 and E.corrects is None
        self.shares = (1 / E.every, 1 - 1 / E.every) if seldom else (1.0,)
        self.moments = Moments(self.shares)

    def observe(self, task: Gradient, keep: bool = True) -> float:
        """Make a training step without the optimiser, and return its seconds.

        It is q (if a callable makes it), the estimate, and its gradient in the parameters, in those
        of f and in those of the estimator. With ``keep`` the gradient is added to the moments.
        """

        def gradient() -> Tensor:
            value = task.estimate(self.E, self.generator)
            rows = task.gradients(value, [*task.leaves, *self._weights()])
            return flat(rows[: len(task.parameters)])

        seconds, rows = self.timed(task, gradient)
        if keep:
            self.moments.add(torch.stack(rows).unsqueeze(0))
        return seconds

    def timed(self, task: Gradient, call: Callable[[], Result]) -> tuple[float, list[Result]]:
        """Return the seconds of a call, the mean over its kinds, and what each kind returns."""
        E: Any = self.E
        calls = []
        for share, corrects in zip(self.shares, (True, False), strict=False):
            with E.deciding(corrects) if len(self.shares) > 1 else nullcontext():
                calls.append((share, task.timed(call)))
        return sum(share * seconds for share, (seconds, _) in calls), [row for _, (_, row) in calls]

    def learn(self, task: Gradient, steps: int) -> None:
        """Let the estimator lower its variance, if it learns (Adam, with a rate that falls to 0).

        One without parameters, but with a memory of earlier calls, learns in calls or backward
        passes.
        """
        if not any([*part.parameters(), *part.buffers()] for part in learning_parts(self.E)):
            return
        weights = self._weights()
        optimiser = torch.optim.Adam(weights, TRAINING_RATE) if weights else None
        for step in range(steps):
            value = task.estimate(self.E, self.generator)
            gradients = task.gradients(value, [*weights, *task.parameters])  # or learn from q's
            if optimiser is not None:
                for weight, gradient in zip(weights, gradients, strict=False):
                    weight.grad = gradient
                optimiser.param_groups[0]["lr"] = TRAINING_RATE * (1 - step / steps)
                optimiser.step()
        for weight in weights:
            weight.grad = None
        self.trained = steps

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Let the estimator not learn inside."""
        parts = learning_parts(self.E)
        for part in parts:
            part.eval().requires_grad_(False)
        yield
        for part in parts:
            part.train().requires_grad_(True)

    def _weights(self) -> list[Tensor]:
        parameters = self.E.parameters() if isinstance(self.E, nn.Module) else ()
        return [weight for weight in parameters if weight.requires_grad]


def learning_parts(E: AnyEstimator) -> list[nn.Module]:
    """Return what learns in E: the estimator, or its baseline."""
    parts = (E, getattr(E, "baseline", None))
    return [part for part in parts if isinstance(part, nn.Module)]


def copied_to(E: AnyEstimator, device: torch.device) -> AnyEstimator:
    """Return a copy of E, which keeps what it learns on the device."""
    copy = deepcopy(E)
    for part in learning_parts(copy):
        part.to(device)
    return copy


def entered(
    task: Task, named: Mapping[str, AnyEstimator], sized: Sizing, seed: int
) -> tuple[dict[str, Arm], dict[str, str]]:
    """Return the arms of the estimators that fit, and why the others are left out.

    ``sized`` returns an estimator with its number of draws, or raises an error with the reason.
    """
    arms: dict[str, Arm] = {}
    skipped: dict[str, str] = {}
    for number, (name, E) in enumerate(named.items(), start=1):
        try:
            if E.target == "bound":
                raise ValueError("it differentiates a bound, not E[f]")
            view(task.q, 0, E.accepts, "it", E.instead)
            copy = sized(copied_to(E, task.device))
            has_own_name = name not in (label(E), type(E).__name__)
            arm = Arm(copy, task.evaluations(copy), task.generator(seed + number))
            arms[name if has_own_name else label(copy)] = arm
        except ERRORS as error:  # of the estimator's own checks, too
            skipped[name] = reason(error)
    return arms, skipped


def reason(error: Exception) -> str:
    """Return the first line of a message, without its full stop."""
    return str(error).split("\n")[0].rstrip(".")


def some(skipped: Mapping[str, str]) -> str:
    """Return the first names with their reasons.

    >>> some({"A": "slow", "B": "biased", "C": "slow", "D": "slow"})
    'A: slow; B: biased; C: slow; and others'
    """
    shown = [f"{name}: {why}" for name, why in skipped.items()][:MOST_REASONS]
    return "; ".join([*shown, "and others"] if len(skipped) > MOST_REASONS else shown)


# Numbers of draws


def with_samples(E: AnyEstimator, samples: int) -> AnyEstimator:
    """Return a copy of E with another number of draws. Raise ValueError if E does not accept it."""
    if is_dataclass(E):
        return cast(AnyEstimator, replace(cast(Any, E), samples=samples))
    cast(Any, type(E))(samples=samples)  # runs the checks of the class
    copy: Any = deepcopy(E)
    copy.samples = samples
    return cast(AnyEstimator, copy)


def within_budget(E: AnyEstimator, budget: int, cost: Cost) -> AnyEstimator:
    """Return E with the most draws whose cost is within the budget, or raise ValueError.

    A draw costs at least one evaluation.

    >>> from torch.distributions import Bernoulli, Independent
    >>> from catlog import IndeCateR
    >>> q = Independent(Bernoulli(logits=torch.zeros(3)), 1)
    >>> within_budget(IndeCateR(), 10, cost=lambda E: E.evaluations(q)).samples
    2
    """
    has_samples = hasattr(E, "samples")

    def costs(samples: int) -> int:
        try:
            return cost(with_samples(E, samples) if has_samples else E)
        except ValueError:  # E does not accept this number of draws
            return maxsize

    least = next((n for n in range(1, 9) if costs(n) < maxsize), 8)
    if costs(least) > budget:
        raise ValueError(
            f"it needs {'at least ' * has_samples}{readable(costs(least))} evaluations, more than "
            f"the budget of {budget}"
        )
    further = bisect_right(range(least + 1, budget + 1), budget, key=costs)
    return with_samples(E, least + further) if has_samples else E
