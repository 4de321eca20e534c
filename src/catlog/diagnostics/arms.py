"""Estimators that observe: their gradients, their times, and with how many draws."""

from bisect import bisect_right
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, replace
from sys import maxsize
from typing import Any

import torch
from torch import Tensor, nn

from ..core.checks import readable
from ..core.settings import label
from .moments import Moments
from .naming import AnyEstimator, Named
from .task import Gradient, Result, flat

ERRORS = (ValueError, TypeError, RuntimeError, NotImplementedError)  # of f or of an estimator
TRAINING_RATE = 0.05  # of an estimator that learns, at the start


@dataclass(eq=False)
class Arm:
    """A copy of an estimator, and what was observed of it.

    If a call of it is of one of two kinds, by the toss of a coin (``SlopeCateR(every=4)``), an
    observation is a call of each kind, and counts in proportion.

    Attributes:
        E: the copy, which keeps what it learns on the device of the generator.
        evaluations: of f per estimate and batch element.
        generator: the source of its randomness.
        moments: of its gradient in the parameters.
        times: the seconds of its steps.
        expected: the seconds of its next observation; at first, those of f alone.
        trained: the steps for which it learned beforehand.
    """

    E: Any
    generator: torch.Generator
    evaluations: int = 0
    times: list[float] = field(default_factory=list)
    expected: float = 0.0
    trained: int = 0

    def __post_init__(self) -> None:
        self.E = E = deepcopy(self.E)
        modules = [E, getattr(E, "baseline", None)]
        self._learners = [part for part in modules if isinstance(part, nn.Module)]
        for part in self._learners:
            part.to(self.generator.device)
        of_module = E.parameters() if isinstance(E, nn.Module) else ()
        self._weights = [weight for weight in of_module if weight.requires_grad]
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
            rows = task.gradients(value, [*task.leaves, *self._weights])
            return flat(rows[: len(task.parameters)])

        seconds, rows = self.timed(task, gradient)
        if keep:
            self.moments.add(torch.stack(rows).unsqueeze(0))
        return seconds

    def timed(self, task: Gradient, call: Callable[[], Result]) -> tuple[float, list[Result]]:
        """Return the seconds of a call, the mean over its kinds, and what each kind returns."""
        calls = []
        for share, corrects in zip(self.shares, (True, False), strict=False):
            with self.E.deciding(corrects) if len(self.shares) > 1 else nullcontext():
                calls.append((share, task.timed(call)))
        return sum(share * seconds for share, (seconds, _) in calls), [row for _, (_, row) in calls]

    def learn(self, task: Gradient, steps: int) -> None:
        """Let the estimator lower its variance, if it learns (Adam, with a rate that falls to 0).

        One without parameters, but with a memory of earlier calls, learns in calls or backward
        passes.
        """
        if not any([*part.parameters(), *part.buffers()] for part in self._learners):
            return
        optimiser = torch.optim.Adam(self._weights, TRAINING_RATE) if self._weights else None
        for step in range(steps):
            value = task.estimate(self.E, self.generator)
            gradients = task.gradients(value, [*self._weights, *task.parameters])  # or from q's
            if optimiser is not None:
                for weight, gradient in zip(self._weights, gradients, strict=False):
                    weight.grad = gradient
                optimiser.param_groups[0]["lr"] = TRAINING_RATE * (1 - step / steps)
                optimiser.step()
                optimiser.zero_grad()
        self.trained = steps


def entered(
    task: Gradient, named: Named, seed: int, budget: int | None = None, resize: bool = False
) -> tuple[dict[str, Arm], dict[str, str]]:
    """Return the arms of the estimators that fit, and why the others are left out.

    ``budget`` is the most evaluations per estimate and batch element; with ``resize``, estimators
    get as many draws as it allows.
    """
    arms: dict[str, Arm] = {}
    skipped: dict[str, str] = {}
    for number, (name, E) in enumerate(named.items(), start=1):
        try:
            task.check(E)
            sized = within_budget(E, budget, task.evaluations) if budget and resize else E
            arm = Arm(sized, task.generator(seed + number))
            arm.evaluations = count = task.evaluations(arm.E)
            if budget is not None and count > budget:
                needs = f"it needs {readable(count)} evaluations"
                raise ValueError(f"{needs}, more than the budget of {budget}")
            arms[label(arm.E) if name == label(E) else name] = arm
        except ERRORS as error:  # of the estimator's own checks, too
            skipped[name] = reason(error)
    return arms, skipped


def reason(error: Exception) -> str:
    """Return the first line of a message, without its full stop."""
    return str(error).split("\n")[0].rstrip(".")


def listed(skipped: Mapping[str, str]) -> str:
    """Return names with their reasons; those with the same reason stand together.

    >>> listed({"A": "slow", "B": "biased", "C": "slow"})
    'A, C (slow); B (biased)'
    """
    groups: dict[str, list[str]] = {}
    for name, why in skipped.items():
        groups.setdefault(why, []).append(name)
    return "; ".join(f"{', '.join(names)} ({why})" for why, names in groups.items())


def within_budget(E: Any, budget: int, cost: Callable[[AnyEstimator], int]) -> AnyEstimator:
    """Return E with the most draws whose cost is within the budget; with the fewest, if none is.

    A draw costs at least one evaluation.

    >>> from torch.distributions import Bernoulli, Independent
    >>> from catlog import IndeCateR
    >>> q = Independent(Bernoulli(logits=torch.zeros(3)), 1)
    >>> within_budget(IndeCateR(), 10, cost=lambda E: E.evaluations(q)).samples
    2
    """
    if not hasattr(E, "samples"):
        return E

    def costs(samples: int) -> int:
        try:
            return cost(replace(E, samples=samples))
        except ValueError:  # E does not accept this number of draws
            return maxsize

    least = next((n for n in range(1, 9) if costs(n) < maxsize), 8)
    further = bisect_right(range(least + 1, budget + 1), budget, key=costs)
    return replace(E, samples=least + further)
