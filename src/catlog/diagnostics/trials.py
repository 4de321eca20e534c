"""Candidates that fit f, q and the budget, and what the pilot has measured of them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil, inf, sqrt
from statistics import median

from torch import Tensor, nn

from ..core.estimator import Estimator
from ..core.settings import label
from ..diagnostics import pilot_settings as settings
from ..estimators import IndeCateR
from .candidates import Candidate
from .gradient_samples import GradientSampler
from .kinds_of_calls import shares_of_kinds
from .moments import Moments
from .sizing import (
    ERRORS,
    copied_to,
    first_line,
    joined_reasons,
    why_over_budget,
    why_unsuitable,
    with_samples,
    within_budget,
)
from .structure import Structure


@dataclass(eq=False)
class Trial:
    """What the pilot measured of one candidate with one number of draws.

    Attributes:
        estimator: The estimator.
        evaluations: Evaluations of f per estimate and batch element.
        candidate: The entry of the candidates that it comes from.
        name: The estimator with its settings.
        moments: Mean and variance of the estimated gradients.
        times: Seconds of every timed step.
        expected_seconds: The time of a step, predicted from other numbers of draws.
        seconds_per_repeat: Seconds per estimate of the last batched call.
        variance: The variance of the gradient, summed over parameters; infinite if unknown.
        dimensions: How many parameters share the variance.
        error: The relative standard error of the variance.
        most_samples: The most draws that the budget allows; None if the number is fixed.
        rest_seconds: The time of a training step apart from the estimate, if it is known.
        cost: The evaluations that count in the budget; fewer if f has its own table.
        source: The same candidate with another number of draws. Until there are enough estimates,
            the variance is taken to be the source's, in inverse proportion to the draws.
        replayed: How many of the shared draws were used.
        is_whole: The times are those of the user's training step.
        skipped: Why the candidate was given up; None if it was not.
    """

    estimator: Estimator
    evaluations: int
    candidate: Candidate
    name: str = field(init=False)
    moments: Moments = field(init=False)
    times: list[float] = field(default_factory=list)
    expected_seconds: float = inf
    seconds_per_repeat: float = 0.0
    variance: float = inf
    dimensions: float = 1.0
    error: float = 1.0
    most_samples: int | None = None
    rest_seconds: float = 0.0
    cost: int = 0
    source: "Trial | None" = field(default=None, repr=False)
    replayed: int = 0
    is_whole: bool = False
    skipped: str | None = None

    def __post_init__(self) -> None:
        self.name = label(self.estimator)
        self.moments = Moments(shares_of_kinds(self.estimator))

    @property
    def kinds(self) -> int:
        """The number of kinds of calls; a repeat has a call of each."""
        return len(self.moments.shares)

    @property
    def is_exact(self) -> bool:
        """Whether every estimate is the same."""
        return not self.estimator.randomness

    @property
    def learns(self) -> bool:
        """Whether the estimator learns by being called."""
        E = self.estimator
        return isinstance(E, nn.Module) and any(True for _ in E.buffers())

    @property
    def is_measured(self) -> bool:
        """Whether the time of a step is known, and the candidate was not given up."""
        return self.seconds < inf and self.skipped is None

    @property
    def seconds(self) -> float:
        """The time of the fastest step, because disturbances only make steps slower."""
        return min(self.times, default=self.expected_seconds) + self.rest_seconds

    @property
    def usual_seconds(self) -> float:
        """The median time of a step."""
        return (median(self.times) if self.times else self.expected_seconds) + self.rest_seconds

    @property
    def samples(self) -> int:
        """The number of draws; 1 if it is fixed."""
        return getattr(self.estimator, "samples", 1)

    @property
    def uses_plain_draws(self) -> bool:
        """Whether an estimate is computed from independent draws and the values of f at them."""
        E = self.estimator
        return (
            E.randomness == ("x",)
            and not E.differentiates_f
            and not self.learns
            and self.evaluations == getattr(E, "samples", None)
            and getattr(E, "draws", "independent") == "independent"
        )

    def resized(self, samples: int, task: GradientSampler, seconds: float = inf) -> "Trial":
        """Return a trial of the same candidate with other draws; a step may take `seconds`."""
        E = with_samples(self.estimator, samples)
        trial = Trial(
            E,
            task.evaluations(E),
            self.candidate,
            expected_seconds=seconds,
            most_samples=self.most_samples,
            rest_seconds=self.rest_seconds,
            cost=ceil(self.cost * samples / self.samples),
            source=self if self.moments.count else None,
        )
        trial.update()
        return trial

    @contextmanager
    def given_up_on_error(self) -> Iterator[None]:
        """Give the candidate up if f or the estimator raises an error inside the context."""
        try:
            yield
        except ERRORS as error:
            self.skipped = first_line(error)

    def add(self, gradients: Tensor) -> None:
        """Add estimated gradients, one per row."""
        self.moments.add(gradients)
        self.update()

    def update(self) -> None:
        """Compute variance and error from the estimates or, if these are few, from the source."""
        if self.moments.count:
            self.variance, self.error = self._own_variance()
            self.dimensions = self._dimensions
        source = self.source
        if source is None or (self.moments.count and self.variance == inf):
            return
        if not self.moments.count or self.error > max(settings.FIRST_ERROR, source.error):
            self.variance = source.variance * source.samples / self.samples
            self.dimensions = source.dimensions
            self.error = source.error

    @property
    def _dimensions(self) -> float:
        return min(self.moments.dimensions, settings.MOST_DIMENSIONS)

    def _own_variance(self) -> tuple[float, float]:
        """Return the variance of the estimates and its relative error."""
        count, mean = self.moments.count, self.moments.mean
        if not bool(mean.isfinite().all()) or not (bool(mean.any()) or self.is_exact):
            return inf, 1.0  # only zeros: no informative value of f was drawn; or a loss of inf
        variance = self.moments.variance
        has_spread = count >= settings.REPEATS_FOR_SPREAD
        if variance == 0:  # few estimates may be equal by chance
            return 0.0, 0.0 if has_spread or self.is_exact else 1.0
        if count < 2:
            return inf, 1.0
        if_normal = sqrt(2 / (self._dimensions * (count - 1)))
        return variance, max(if_normal, self.moments.error) if has_spread else if_normal

    def repeats_to_reach(self, error: float) -> int:
        """Return how many more estimates would bring the error of the variance down to `error`."""
        count = self.moments.count
        if count < 2:
            return settings.LEAST_REPEATS
        needed = ceil((count - 1) * (self.error / error) ** 2) + 1
        return max(0, min(settings.MOST_REPEATS, needed) - count)


def shortlist(
    task: GradientSampler, structure: Structure, candidates: Sequence[Candidate], biased: bool
) -> tuple[list[Trial], dict[str, str]]:
    """Return the candidates that fit, cheap ones first, and why the others were skipped.

    They have few draws. The pilot finds out whether more are better.
    """
    trials: dict[str, Trial] = {}
    skipped: dict[str, str] = {}
    cost = _cost(task, structure)
    for candidate in candidates:
        E, budget = candidate.estimator, structure.budget
        try:
            reason = _why_skipped(task, structure, candidate, biased)
            reason = reason or why_over_budget(E, budget, cost)
            if reason is None:
                largest = within_budget(E, budget, cost)
                first = cost(E) if candidate.expensive else settings.FIRST_EVALUATIONS
                E = within_budget(E, min(budget, first), cost, at_least_fewest=True)
                E = copied_to(E, task.view.device)
                trial = Trial(E, task.evaluations(E), candidate, cost=cost(E))
                trial.most_samples = getattr(largest, "samples", None)
                trials.setdefault(trial.name, trial)
        except (ValueError, TypeError) as error:  # raised by the estimator's own checks
            reason = str(error)
        if reason is not None:
            skipped[label(E)] = reason.rstrip(".")
    if not trials:
        raise ValueError(
            f"advise: no candidate fits q, f and the budget of {structure.budget} evaluations. "
            f"{joined_reasons(skipped)}."
        )
    cheap = settings.CHEAP_EVALUATIONS
    return sorted(trials.values(), key=lambda trial: max(cheap, cost(trial.estimator))), skipped


def _why_skipped(
    task: GradientSampler, structure: Structure, candidate: Candidate, biased: bool
) -> str | None:
    E = candidate.estimator
    if not (E.unbiased or biased):
        return "it is biased; biased=True allows it"
    if reason := why_unsuitable(E, task.kind):
        return reason
    if E.differentiates_f and not structure.has_slope:
        return "f has no derivative in x"
    return None if candidate.when(structure) else candidate.otherwise


def _cost(task: GradientSampler, structure: Structure) -> Callable[[Estimator], int]:
    """Return the cost of an estimator: a table that f computes counts as 1 + k evaluations."""

    def cost(E: Estimator) -> int:
        if structure.has_own_table and isinstance(E, IndeCateR):
            return E.rows(task.q) * (1 + max(structure.cardinalities))
        return task.evaluations(E)

    return cost
