"""Estimators that observe: their gradients, their times, and with how many draws."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, is_dataclass, replace
from sys import maxsize
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..core.categories import Kind
from ..core.checks import readable
from ..core.estimator import Estimator
from ..core.settings import label
from ..estimators import ESTIMATORS
from ..estimators.parsing import parse_estimator
from .moments import Moments
from .task import Gradient, Result, Task, flat, gradient_in_logits, gradients_in, own_parameter

AnyEstimator = Estimator[Any]
Chosen = Sequence[str | AnyEstimator] | Mapping[str, str | AnyEstimator]
Cost = Callable[[AnyEstimator], int]
Sizing = Callable[[AnyEstimator], tuple[AnyEstimator, int]]

ERRORS = (ValueError, TypeError, RuntimeError, NotImplementedError)  # of f or of an estimator
MOST_REASONS = 3  # in the message of an error
TRAINING_RATE = 0.05  # of an estimator that learns, at the start
RELAXABLE = frozenset({Kind.BITS, Kind.ONE_HOT})
KIND_NAMES = {
    Kind.BITS: "bits (Bernoulli)",
    Kind.INDEX: "numbers (Categorical)",
    Kind.ONE_HOT: "one-hot vectors (OneHotCategorical)",
    Kind.MIXED: "numbers with different cardinalities (Categoricals)",
    Kind.STRUCTURED: "dependent variables",
}


@dataclass(eq=False)
class Arm:
    """An estimator, and what was observed of it.

    If a call of it is of one of two kinds, by the toss of a coin (``SlopeCateR(every=4)``), an
    observation is a call of each kind, and counts in proportion.

    Attributes:
        E: the estimator.
        evaluations: of f per estimate and batch element.
        generator: the source of its randomness.
        in_parameters: the moments of its gradient in the parameters.
        in_logits: those of its gradient in the logits of q; empty if q has no logits.
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
        self.in_parameters = Moments(self.shares)
        self.in_logits = Moments(self.shares)

    def observe(self, task: Gradient, keep: bool = True, with_logits: bool = False) -> float:
        """Make a training step without the optimiser, and return its seconds.

        It is q (if a callable makes it), the estimate, and its gradient in the parameters, in those
        of f and in those of the estimator. With ``keep`` the gradient is added to the moments.
        """

        def gradients() -> tuple[Tensor, Tensor | None]:
            value, q = task.estimate(self.E, self.generator)
            own = own_parameter(q) if with_logits and q is not None else None
            leaves = [*task.leaves, *self._weights(), *([] if own is None else [own])]
            rows = gradients_in(value, leaves, retain=not task.rebuilds_q)
            in_logits = None if own is None or q is None else gradient_in_logits(rows[-1], q)
            return flat(rows[: len(task.parameters)]), in_logits

        seconds, observed = self.timed(task, gradients)
        for moments, place in ((self.in_parameters, 0), (self.in_logits, 1)):
            rows = [row for row in (kind[place] for kind in observed) if row is not None]
            if keep and rows:
                moments.add(torch.stack(rows).unsqueeze(0))
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
            value, _ = task.estimate(self.E, self.generator)
            leaves = [*weights, *task.parameters]  # some learn from the gradient in q
            gradients = gradients_in(value, leaves, retain=not task.rebuilds_q)
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

    ``sized`` returns an estimator with its number of draws and its evaluations, or raises an error
    with the reason.
    """
    arms: dict[str, Arm] = {}
    skipped: dict[str, str] = {}
    for number, (name, E) in enumerate(named.items(), start=1):
        try:
            check_suits(E, task.factors.kind)
            copy, evaluations = sized(copied_to(E, task.device))
            has_own_name = name not in (label(E), type(E).__name__)
            arm = Arm(copy, evaluations, task.generator(seed + number))
            arms[name if has_own_name else label(copy)] = arm
        except ERRORS as error:  # of the estimator's own checks, too
            skipped[name] = first_line(error)
    return arms, skipped


# Names


def named_estimators(estimators: Chosen | None) -> dict[str, AnyEstimator]:
    """Return the estimators by name."""
    chosen = list(ESTIMATORS) if estimators is None else estimators
    is_scalar = getattr(chosen, "shape", None) == ()
    if isinstance(chosen, str) or not hasattr(chosen, "__iter__") or is_scalar:
        raise TypeError(
            f"estimators: a list or a dict is needed, but {chosen!r} was given. Put it into a "
            "list, [...]."
        )
    if isinstance(chosen, Mapping):
        named = {name: as_estimator(entry) for name, entry in chosen.items()}
    else:
        named = {}
        for entry in chosen:
            E = as_estimator(entry)
            name = str(entry) if entry in ESTIMATORS else label(E)
            if named.setdefault(name, E) != E and not isinstance(entry, str):
                raise ValueError(
                    f"estimators: two different ones have the label {name}, which leaves out what "
                    "they learn and what their functions do. Give them names of your own in a "
                    'dict, {"first": ..., "second": ...}.'
                )
    if not named:
        raise ValueError(
            "estimators: at least one is needed, but none was given. Leave the argument out for "
            "all of the registry."
        )
    return named


def as_estimator(entry: object, argument: str = "estimators") -> AnyEstimator:
    """Return an estimator, also by its repr or name; raise an error if it is neither."""
    if isinstance(entry, str):
        return parse_estimator(entry)
    if isinstance(entry, type) or not isinstance(entry, Estimator):
        raise TypeError(
            f"{argument}: names or estimators are needed, but {entry!r} was given. Give an "
            "instance, as in RLOO(4)."
        )
    return entry


def first_line(error: Exception) -> str:
    """Return the first line of a message, without its full stop."""
    return str(error).split("\n")[0].rstrip(".")


def joined_reasons(skipped: Mapping[str, str]) -> str:
    """Return names with their reasons in one line; of many, the first few.

    >>> joined_reasons({"A": "slow", "B": "biased", "C": "slow", "D": "slow", "E": "biased"})
    'A: slow; B: biased; C: slow; and 2 others'
    """
    shown = [f"{name}: {reason}" for name, reason in list(skipped.items())[:MOST_REASONS]]
    rest = len(skipped) - len(shown)
    if rest:
        shown.append(f"and {rest} other{'s' * (rest > 1)}")
    return "; ".join(shown)


# Which estimators fit, and numbers of draws


def check_suits(E: AnyEstimator, kind: Kind) -> None:
    """Raise ValueError if E cannot be used with this kind of distribution."""
    if E.target == "bound":
        raise ValueError("it differentiates a bound, not E[f]")
    if kind not in E.supports:
        known = ", ".join(sorted(E.supports))
        raise ValueError(f"it is not for {KIND_NAMES[kind]}, but for {known}")
    if E.differentiates_f and kind not in RELAXABLE:
        raise ValueError(
            f"it differentiates f in x, which {KIND_NAMES[kind]} do not allow; "
            "write q with OneHotCategorical"
        )


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
