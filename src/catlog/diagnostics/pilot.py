"""A pilot: its task, its time limit, and estimates for trials in whichever way is cheapest."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, sqrt

import torch
from torch import Tensor

from ..diagnostics import pilot_settings as settings
from .gradient_samples import GradientSampler
from .kinds_of_calls import of_each_kind
from .plain_draws import PlainDraws
from .scoring import Scoring
from .structure import Structure
from .trials import Trial
from .user_step import UserStep

TimedStep = Callable[[], tuple[float, Tensor]]


@dataclass
class Pilot:
    """What a pilot works on, what it knows so far, and how it makes estimates.

    Attributes:
        task: The gradient to estimate.
        structure: What is known about f and q.
        generator: The source of all draws.
        user_step: The training step of the user, which is timed for promising candidates.
        start: The clock at the start of the pilot.
        steps: The time limit, in steps of the leader.
        least_seconds: The time limit is at least this long.
        trials: The candidates, with every number of draws that was tried or predicted.
        scoring: The scores of candidates.
        minibatch_by: The trial whose estimator measured the noise of the minibatch.
        evaluation_seconds: The time that evaluations of f add to a step, by the number of plain
            draws.
        batches_are_slow: A repeat in a batch costs about as much as a single step.
    """

    task: GradientSampler
    structure: Structure
    generator: torch.Generator
    user_step: UserStep
    start: float = 0.0
    steps: float = 30
    least_seconds: float = 0.0
    trials: list[Trial] = field(default_factory=list)
    scoring: Scoring = field(default_factory=Scoring)
    minibatch_by: Trial | None = None
    evaluation_seconds: dict[int, float] = field(default_factory=dict)
    batches_are_slow: bool = False

    @property
    def measured(self) -> list[Trial]:
        """The trials whose step was timed, and which were not given up."""
        return [trial for trial in self.trials if trial.is_measured]

    def is_timed(self, trial: Trial) -> bool:
        """Return whether the time of a step was measured, and not only predicted."""
        return bool(trial.times) and (trial.is_whole or not self.user_step.can_time(trial))

    @property
    def leader_seconds(self) -> float:
        """The time of a step of the leader."""
        return self.scoring.ranked(self.measured)[0].seconds

    def time_left(self, overtime: float = 1.0) -> float:
        """Return the seconds left; until two candidates are measured, there is no limit."""
        if len({id(trial.candidate) for trial in self.measured}) < 2:
            return inf
        limit = max(self.steps * self.leader_seconds, self.least_seconds)
        start = self.start + self.user_step.compiling_seconds
        return overtime * limit - (self.task.clock() - start)

    @cached_property
    def plain(self) -> PlainDraws:
        """Draws and values for all estimators that use plain draws."""
        size = max(2, min(settings.SET_SIZE, self.structure.budget))
        return PlainDraws(self.task, size, self.generator)

    @cached_property
    def entries(self) -> int:
        """The number of entries of a gradient."""
        return sum(parameter.numel() for parameter in self.task.parameters)

    @cached_property
    def _selection(self) -> Tensor:
        generator = self.task.generator(0)
        device, count = self.task.view.device, settings.SELECTED_ENTRIES
        return torch.randint(self.entries, (count,), device=device, generator=generator)

    def selected(self, gradients: Tensor) -> Tensor:
        """Return some entries of the gradients, scaled to the norm of all, if there are many."""
        if self.entries <= settings.SELECTED_ENTRIES:
            return gradients
        return gradients[..., self._selection] * sqrt(self.entries / len(self._selection))

    def add(self, trial: Trial, gradients: Tensor) -> None:
        """Add estimated gradients, one per row; of long ones, only some entries."""
        trial.add(self.selected(gradients))

    def least_step_seconds(self, trial: Trial) -> float:
        """Return the time that f alone takes in a step, about; half of it, to be careful."""
        return self.structure.further_seconds * trial.cost / 2

    def batch_limit(self, trial: Trial) -> int:
        """Return how many estimates one call may make."""
        evaluations = max(1, trial.evaluations * self.task.view.batch_size)
        return min(
            settings.MOST_REPEATS,
            settings.EVALUATIONS_PER_CALL // evaluations,
            settings.ENTRIES_PER_CALL // self.entries,
        )

    def first_repeats(self, trial: Trial) -> int:
        """Return how many estimates a first call makes."""
        if self.runs_one_by_one(trial):
            return 2
        return min(settings.FIRST_REPEATS, self.batch_limit(trial))

    def runs_one_by_one(self, trial: Trial) -> bool:
        """Return whether the estimates of this candidate are not batched."""
        return (
            self.batches_are_slow
            or trial.candidate.expensive
            or self._replays(trial)
            or not self.task.vectorised
            or self.batch_limit(trial) < settings.LEAST_REPEATS
        )

    def may_have_missed(self, trial: Trial) -> bool:
        """Return whether rare values of f may not have been drawn though more repeats are cheap."""
        estimates = trial.kinds * trial.moments.count * self.structure.batch
        has_few = estimates < settings.RARE_REPEATS
        return has_few and trial.variance > 0 and not self.runs_one_by_one(trial)

    def step(self, trial: Trial, is_timing: bool = False) -> TimedStep:
        """Return a step of the trial; `is_timing`: its gradient is not used."""
        if self._replays(trial):
            return self._replayed_step(trial, is_timing)
        return self.task.timer(trial.estimator, self.generator)

    def _replayed_step(self, trial: Trial, is_timing: bool) -> TimedStep:
        """Return a step whose time is that of the evaluations, known, and of the rest, measured."""
        fewer = (self.plain.size - trial.samples) * self.structure.further_seconds

        def step() -> tuple[float, Tensor]:
            start = 0 if is_timing else trial.replayed
            if start + trial.samples > self.plain.count:
                self.plain.extend(self.plain.count // self.plain.size + 1)
            x, fx = self.plain.subsets(trial.samples, start, 1)
            trial.replayed = max(trial.replayed, start + trial.samples)
            seconds, gradient = self.task.replayed(trial.estimator, x[:, 0], fx[:, 0])
            return seconds + max(0.0, self.plain.seconds - fewer), gradient

        return step

    def timed_gradient(self, trial: Trial) -> Tensor:
        """Make a step, add its time and return its gradient."""
        seconds, gradient = self.step(trial)()
        trial.times.append(self.user_step.ratio * seconds)
        return gradient

    def run_steps(self, trial: Trial, count: int) -> None:
        """Make timed steps and add their gradients; the user's step does not show any."""
        if trial.is_whole:
            trial.times += [self.user_step.seconds(trial) for _ in range(count)]
        else:
            self._repeat_step(trial, count)

    def _repeat_step(self, trial: Trial, count: int) -> None:
        """Make the pilot's own steps. Their times count, unless those of the user's step do."""
        step = self.step(trial)
        steps = [step() for _ in range(count)]
        if steps:
            self.add(trial, torch.stack([gradient for _, gradient in steps]))
        if not trial.is_whole:
            trial.times += [self.user_step.ratio * seconds for seconds, _ in steps]

    def run_batched(self, trial: Trial, repeats: int) -> None:
        """Make estimates in one batched call."""
        start, E = self.task.clock(), trial.estimator
        kinds = of_each_kind(E, lambda: self.task.gradients(E, repeats, self.generator)[0])
        self.add(trial, torch.stack(kinds, 1))
        trial.seconds_per_repeat = (self.task.clock() - start) / repeats

    def run(self, trial: Trial, repeats: int, time_left: float) -> None:
        """Make this many estimates, or as many as the time allows."""
        if repeats <= 0 or time_left <= 0:
            return
        if self.runs_one_by_one(trial):
            # These steps are not compiled.
            seconds = trial.kinds * trial.seconds / self.user_step.ratio
            possible = repeats if time_left == inf else int(time_left / seconds)
            self._repeat_step(trial, min(repeats, possible))
            return
        limit, end = self.batch_limit(trial), self.task.clock() + time_left
        expected = trial.seconds_per_repeat or trial.seconds
        while repeats > 0 and self.task.clock() + expected * min(repeats, limit) < end:
            self.run_batched(trial, min(repeats, limit))
            repeats -= limit
            expected = trial.seconds_per_repeat

    def shares_draws(self, trial: Trial) -> bool:
        """Return whether the draws and values of other estimators can be used for this one."""
        return trial.uses_plain_draws and self.task.f_is_independent

    def _replays(self, trial: Trial) -> bool:
        """Return whether timed steps use known values of f, because f is expensive."""
        return (
            self.shares_draws(trial)
            and trial.samples <= self.plain.size
            and self.structure.further_seconds * trial.evaluations > settings.SLOW_EVALUATION
            and not self.task.leaves_of_f
            and not trial.is_whole
        )

    def replay(self, trial: Trial) -> None:
        """Add estimates from the shared draws that were not used yet."""
        most = max(2, self.batch_limit(trial))
        x, fx = self.plain.subsets(trial.samples, trial.replayed, most)
        if x.shape[1]:
            self.add(trial, self.task.replayed_gradients(trial.estimator, x, fx))
        trial.replayed = self.plain.count

    def plain_seconds(self, trial: Trial) -> float:
        """Return the time of a step of an estimator of plain draws.

        The evaluations take equally long for all of them, so they are timed once.
        """
        x, fx = self.plain.subsets(trial.samples, 0, 1)
        own_seconds = min(
            self.task.replayed(trial.estimator, x[:, 0], fx[:, 0])[0] for _ in range(2)
        )
        if trial.samples not in self.evaluation_seconds:
            step = self.step(trial, is_timing=True)
            seconds = min(step()[0] for _ in range(2)) - own_seconds
            self.evaluation_seconds[trial.samples] = seconds
        return max(own_seconds, own_seconds + self.evaluation_seconds[trial.samples])
