"""What a pilot works on, what it knows so far, and how much time it has left."""

from dataclasses import dataclass, field
from math import inf

import torch

from .estimates import Estimates
from .gradient_samples import Clock, GradientSampler, Step
from .scoring import Scoring
from .structure import Structure
from .trials import Trial
from .user_step import UserStep


@dataclass
class Pilot:
    """The task, the clock and the time limit of a pilot, with what is known of the candidates.

    Attributes:
        task: The gradient to estimate.
        structure: What is known about f and q.
        generator: The source of all draws.
        clock: A function that returns seconds.
        start: The clock at the start of the pilot.
        steps: The time limit, in steps of the leader.
        least_seconds: The time limit is at least this long.
        whole_step: A training step of the user, which is timed for promising candidates.
        trials: The candidates, with every number of draws that was tried or predicted.
        scoring: The scores of candidates.
        leader_seconds: The time of a step of the leader.
        minibatch_by: The trial whose estimator measured the noise of the minibatch.
        user_step: The user's step with its times.
        estimates: Makes the estimates.
    """

    task: GradientSampler
    structure: Structure
    generator: torch.Generator
    clock: Clock
    start: float
    steps: float
    least_seconds: float = 0.0
    whole_step: Step | None = None
    trials: list[Trial] = field(default_factory=list)
    scoring: Scoring = field(default_factory=Scoring)
    leader_seconds: float = 0.0
    minibatch_by: Trial | None = None

    def __post_init__(self) -> None:
        self.user_step = UserStep(self.whole_step, self.task, self.clock)
        self.estimates = Estimates(
            self.task, self.structure, self.generator, self.clock, self.user_step
        )

    @property
    def measured(self) -> list[Trial]:
        """The trials whose step was timed, and which were not given up."""
        return [trial for trial in self.trials if trial.is_measured]

    def is_timed(self, trial: Trial) -> bool:
        """Return whether the time of a step was measured, and not only predicted."""
        return bool(trial.times) and (trial.is_whole or not self.user_step.can_time(trial))

    def time_left(self, overtime: float = 1.0) -> float:
        """Return the seconds left, and note the leader's step time, which sets the time limit.

        Until two candidates are measured, there is no limit.
        """
        timed = self.measured
        if len({id(trial.candidate) for trial in timed}) < 2:
            return inf
        self.leader_seconds = self.scoring.ranked(timed)[0].seconds
        limit = max(self.steps * self.leader_seconds, self.least_seconds)
        start = self.start + self.user_step.compiling_seconds
        return overtime * limit - (self.clock() - start)
