"""Candidates that fit f, q and the budget, and what the pilot has measured of them."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from math import ceil, exp, inf, sqrt

import torch
from torch import Tensor, nn

from ..estimator import Estimator, label
from ..estimators import IndeCateR
from .candidates import Candidate
from .gradient_samples import GradientSampler
from .moments import Moments
from .pilot_settings import DEFAULTS, PilotSettings
from .sizing import joined_reasons, why_over_budget, why_unsuitable, within_budget
from .structure import Structure


@dataclass
class Trial:
    """What the pilot measured of one candidate.

    Attributes:
        name: The estimator with its settings.
        estimator: The estimator, with the number of draws that the budget allows.
        evaluations: Evaluations of f per estimate and batch element.
        candidate: The entry of the candidates that it comes from.
        settings: The settings of the pilot.
        moments: Mean and variance of the estimated gradients.
        times: Seconds of every timed step.
        seconds_per_repeat: Seconds per estimate of the last batched call.
        variance: The variance of the gradient, summed over parameters; infinite if unknown.
        dimensions: How many parameters share the variance.
        error: The relative standard error of the variance.
        skipped: Why the candidate was given up; None if it was not.
    """

    name: str
    estimator: Estimator
    evaluations: int
    candidate: Candidate
    settings: PilotSettings = field(default=DEFAULTS, repr=False)
    moments: Moments = field(default_factory=Moments)
    times: list[float] = field(default_factory=list)
    seconds_per_repeat: float = 0.0
    variance: float = inf
    dimensions: float = 1.0
    error: float = 1.0
    skipped: str | None = None

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
        """Whether there is at least one timed step, and the candidate was not given up."""
        return bool(self.times) and self.skipped is None

    @property
    def seconds(self) -> float:
        """The time of the fastest step, because disturbances only make steps slower."""
        return min(self.times)

    def add(self, gradients: Tensor) -> None:
        """Add estimated gradients, one per row."""
        self.moments.add(gradients)
        self.variance = self.moments.variance
        self.dimensions = self.moments.dimensions
        if not bool(self.moments.mean.any()) and not self.is_exact:
            self.variance = inf  # only zeros: no informative value of f was drawn
        self.error = self._relative_error()

    def _relative_error(self) -> float:
        count = self.moments.count
        has_spread = count >= self.settings.repeats_for_spread
        if self.variance == 0:  # few estimates may be equal by chance
            return 0.0 if has_spread or self.is_exact else 1.0
        if count < 2 or self.variance == inf:
            return 1.0
        if_normal = sqrt(2 / (self.dimensions * (count - 1)))
        return max(if_normal, self.moments.error) if has_spread else if_normal

    def repeats_to_reach(self, error: float) -> int:
        """Return how many more estimates would bring the error of the variance down to `error`."""
        count = self.moments.count
        needed = ceil((count - 1) * (self.error / error) ** 2) + 1
        return max(0, min(self.settings.most_repeats, needed) - count)

    def squared_error(self, reference: "Trial | None") -> float:
        """Return the variance or, for a biased estimator, the mean squared error.

        The error is measured against the mean of `reference`; without one it is infinite.
        """
        if self.estimator.unbiased:
            return self.variance
        if reference is None:
            return inf
        moments, truth = self.moments, reference.moments
        gap = float((moments.mean - truth.mean).square().sum())
        noise = self.variance / moments.count + reference.variance / truth.count
        return self.variance + max(0.0, gap - noise)


def merits(trials: Sequence[Trial]) -> dict[str, float]:
    """Return mean squared error x time of every trial, the lower the better.

    A trial without variance gets that of rounding errors, so that time decides between several.
    """
    unbiased = [trial for trial in trials if trial.estimator.unbiased]
    reference = min(unbiased, key=lambda trial: trial.variance / trial.moments.count, default=None)
    norm2 = (reference or trials[0]).moments.norm2
    floor = torch.finfo(torch.float32).eps ** 2 * norm2 or 1e-300
    return {
        trial.name: max(trial.squared_error(reference), floor) * trial.seconds for trial in trials
    }


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials by merit, best first."""
    merit = merits(trials)
    return sorted(trials, key=lambda trial: merit[trial.name])


def doubt(first: Trial, second: Trial) -> float:
    """Return how many times worse one trial may look than the other without being worse."""
    error = sqrt(first.error**2 + second.error**2)
    return first.settings.doubt_times * exp(first.settings.doubt_errors * error)


def shortlist(
    task: GradientSampler,
    structure: Structure,
    candidates: Sequence[Candidate],
    biased: bool,
    settings: PilotSettings = DEFAULTS,
) -> tuple[list[Trial], dict[str, str]]:
    """Return the candidates that fit, sized to the budget, and why the others were skipped."""
    trials: dict[str, Trial] = {}
    skipped: dict[str, str] = {}
    for candidate in candidates:
        E = candidate.estimator
        try:
            reason = _why_skipped(task, structure, candidate, biased)
            budget = _budget(E, structure, settings)
            cost = _cost(task, structure)
            reason = reason or why_over_budget(E, task.q, budget, cost)
            if reason is None:
                E = within_budget(E, task.q, budget, cost)
                E = E if hasattr(E, "samples") else deepcopy(E)
                name = label(E)
                trial = Trial(name, E, E.evaluations(task.q), candidate, settings)
                trials.setdefault(name, trial)
        except (ValueError, TypeError) as error:  # raised by the estimator's own checks
            reason = str(error)
        if reason is not None:
            skipped[label(E)] = reason.rstrip(".")
    if not trials:
        raise ValueError(
            f"advise: no candidate fits q, f and the budget of {structure.budget} evaluations. "
            f"{joined_reasons(skipped)}."
        )
    return list(trials.values()), skipped


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
    return None if candidate.when(structure) else "it is not worth a try here"


def _budget(E: Estimator, structure: Structure, settings: PilotSettings) -> int:
    if not E.randomness and not structure.has_budget:
        return max(structure.budget, settings.exact_points)
    return structure.budget


def _cost(task: GradientSampler, structure: Structure) -> Callable[[Estimator], int]:
    """Return the cost of an estimator: a table that f computes counts as 1 + k evaluations."""

    def cost(E: Estimator) -> int:
        if structure.has_own_table and isinstance(E, IndeCateR):
            return E.rows(task.q) * (1 + max(structure.cardinalities))
        return E.evaluations(task.q)

    return cost
