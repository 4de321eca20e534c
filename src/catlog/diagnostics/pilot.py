"""Measurements of one candidate after another, in limited time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

import torch
from torch import Tensor, nn

from ..evaluation.evaluate import evaluate
from ..sampling.draw import draw
from .gradient_samples import Clock, GradientSampler, Step
from .moments import Moments
from .pilot_settings import DEFAULTS, PilotSettings
from .scoring import Scoring
from .sizing import fewest_draws
from .structure import Structure
from .trials import Trial

NO_TIME = "the pilot had no time for it"
TimedStep = Callable[[], tuple[float, Tensor]]


@dataclass(frozen=True)
class SharedDraws:
    """Independent draws with the values of f, and the time that these took."""

    x: Tensor
    fx: Tensor
    seconds: float


@dataclass
class Pilot:
    """The task, the clock and the time limit of a pilot, with the measurements that it makes.

    Attributes:
        task: The gradient to estimate.
        structure: What is known about f and q.
        generator: The source of all draws.
        clock: A function that returns seconds.
        start: The clock at the start of the pilot.
        steps: The time limit, in steps of the leader.
        least_seconds: The time limit is at least this long.
        whole_step: A training step of the user, which is timed for every candidate.
        settings: Further limits.
        scoring: The scores of candidates.
        leader_seconds: The time of a step of the leader.
        has_batched: A batched call was made.
        minibatch_by: The trial whose estimator measured the noise of the minibatch.
        batches_are_slow: A repeat in a batch costs about as much as a single step.
        shared: Plain draws with their values, by their number, for all estimators that use them.
    """

    task: GradientSampler
    structure: Structure
    generator: torch.Generator
    clock: Clock
    start: float
    steps: float
    least_seconds: float = 0.0
    whole_step: Step | None = None
    settings: PilotSettings = DEFAULTS
    scoring: Scoring = field(default_factory=Scoring)
    leader_seconds: float = 0.0
    has_batched: bool = False
    minibatch_by: Trial | None = None
    batches_are_slow: bool = False
    shared: dict[int, list[SharedDraws]] = field(default_factory=dict)

    def time_left(self, trials: Sequence[Trial], overtime: float = 1.0) -> float:
        """Return the seconds left, and note the leader's step time, which sets the time limit.

        Until two candidates are measured, there is no limit.
        """
        measured = [trial for trial in trials if trial.is_measured]
        if len(measured) < 2:
            return inf
        self.leader_seconds = self.scoring.ranked(measured)[0].seconds
        limit = max(self.steps * self.leader_seconds, self.least_seconds)
        return overtime * limit - (self.clock() - self.start)

    def first_measurement(
        self, trial: Trial, trials: Sequence[Trial], error: float, share: float = 1.0
    ) -> None:
        """Time a step and make a few estimates, or skip the candidate.

        `share` is the part of the pilot's time that may have passed after it.
        """
        candidate, time_left = trial.candidate, self.time_left(trials, share)
        most_seconds = self._most_seconds(trials)
        expected = self._least_seconds(trial)
        if expected > time_left and expected > most_seconds:
            trial.skipped = f"its {trial.evaluations} evaluations take too long for what they gain"
            return
        if time_left < self.settings.reserve_steps * self.leader_seconds:
            trial.skipped = NO_TIME
            return
        step = self._step(trial)
        gradient = self._time_step(trial, step)
        cannot_shrink = trial.most_samples is None or trial.samples <= 2
        if cannot_shrink and trial.seconds > most_seconds:
            trial.skipped = "its steps take too long, even if they had no noise"
            return
        if self._further_steps(trial) * trial.seconds > self.settings.usual_share * time_left:
            trial.skipped = NO_TIME
            return
        if trial.learns:  # the first gradient was made before anything was learned
            gradient = self._time_step(trial, step)
        if trial.is_exact:
            trial.add(torch.stack([gradient, gradient]))
            for _ in range(self._further_steps(trial)):
                self._time_step(trial, step)
        elif candidate.coefficients and not self.task.has_loss:  # the step had other coefficients
            self.fit_coefficients(trial, self._first_repeats(trial))
        elif self.runs_one_by_one(trial):
            self._first_steps(trial, step, gradient, error)
        else:
            self._first_batches(trial, gradient, error, time_left)

    def measure_minibatch(self, trials: Sequence[Trial]) -> None:
        """Estimate the noise of the minibatch, with the estimator of the least variance.

        A bias is no hindrance: the differences between batch elements are much the same.
        """
        measured = [trial for trial in trials if trial.is_measured and trial.variance < inf]
        if not measured or not self.task.shares_parameters:
            return
        best = min(measured, key=lambda trial: trial.variance)
        if best is self.minibatch_by:
            return
        self.minibatch_by = best
        total = self.task.minibatch_variance(best.estimator, self.settings.groups, self.generator)
        self.scoring.minibatch = max(0.0, total - best.variance)

    def sharpen_reference(self, trials: Sequence[Trial]) -> None:
        """Make more estimates with an unbiased estimator if there are biased ones to judge."""
        measured = [trial for trial in trials if trial.is_measured and trial.variance < inf]
        unbiased = [trial for trial in measured if trial.estimator.unbiased]
        if len(unbiased) in (0, len(measured)) or self.task.has_loss:
            return
        best = min(unbiased, key=lambda trial: trial.variance * trial.seconds)
        time_left = self.settings.reference_share * self.time_left(trials)
        if time_left > 0 and best.variance > 0:
            steps = min(self.settings.truth_repeats, int(time_left / best.seconds))
            self.run_steps(best, self._step(best), steps)

    def measure_truth(self, trials: Sequence[Trial]) -> None:
        """Estimate the gradient of the loss at the exact E[f], if there is a loss."""
        if not self.task.has_loss:
            return
        exact = [trial for trial in trials if trial.is_measured and trial.is_exact]
        noisy = [trial for trial in trials if trial.is_measured and trial.estimator.unbiased]
        best = min(exact or noisy, key=lambda trial: trial.variance, default=None)
        if best is not None:
            repeats = 2 if best.is_exact else self.settings.truth_repeats
            self.scoring.truth = Moments()
            self.scoring.truth.add(
                self.task.gradients_at_mean_value(best.estimator, repeats, self.generator)
            )

    def best_size(self, trial: Trial, trials: Sequence[Trial]) -> tuple[int, float]:
        """Return the number of draws with the lowest predicted score, and that score.

        The variance is taken to be inverse to the draws, the time to be affine in them.
        """
        most, samples = trial.most_samples, trial.samples
        score = self.scoring.scores(trials)[trial.name]
        if most is None or trial.is_exact or trial.variance in (0.0, inf):
            return samples, score
        try:
            fewest = fewest_draws(trial.estimator, lambda E: E.evaluations(self.task.q))
        except ValueError:
            return samples, score
        sizes = {samples, most}
        sizes |= {samples * 2**i for i in range(1, 12) if samples * 2**i < most}
        sizes |= {samples // 2**i for i in range(1, 12) if samples // 2**i >= fewest}
        other = min(most, self.settings.size_step * samples)
        if other == samples:
            other = min(sizes)
        if other == samples:
            return samples, score
        timed = trial.resized(other, self.task)
        step = self._step(timed)
        for _ in range(2):
            self._time_step(timed, step)
        per_draw = max(0.0, (timed.seconds - trial.seconds) / (other - samples))
        floor = self.scoring.floor(trials)
        rest = self.scoring.squared_errors(trials)[trial.name] - trial.variance

        def predicted(size: int) -> float:
            seconds = trial.seconds + (size - samples) * per_draw
            noise = trial.variance * samples / size
            return (floor + rest + noise) * max(seconds, trial.seconds * fewest / samples / 2)

        best = min(sorted(sizes), key=predicted)
        return best, predicted(best)

    def refine(self, trial: Trial, error: float, timed_steps: int, time_left: float) -> None:
        """Time further steps, and make estimates until the error or the time limit is reached."""
        if time_left < timed_steps * trial.seconds:
            return
        step = self._step(trial)
        if trial.is_exact:
            for _ in range(timed_steps):
                self._time_step(trial, step)
            return
        self.run_steps(trial, step, timed_steps)
        time_left -= timed_steps * trial.seconds
        if self.runs_one_by_one(trial):
            repeats = min(trial.repeats_to_reach(error), time_left / trial.seconds)
            self.run_steps(trial, step, int(repeats))
        else:
            self.run_until(trial, error, time_left)

    def confirm(self, trial: Trial, is_late: bool) -> None:
        """Time further steps of the leader and, unless it is late, add cheap batches."""
        steps = self.settings.confirming_steps
        self.run_steps(trial, self._step(trial), steps)
        if not is_late and self.may_have_missed(trial):
            self.run_batched(trial, min(self.settings.rare_repeats, self._batch_limit(trial)))
        elif not self.runs_one_by_one(trial):
            self.run_until(trial, self.settings.sure_error, steps * trial.seconds)

    def may_have_missed(self, trial: Trial) -> bool:
        """Return whether rare values of f may not have been drawn though more repeats are cheap."""
        has_few = trial.moments.count < self.settings.rare_repeats
        return has_few and trial.variance > 0 and not self.runs_one_by_one(trial)

    def runs_one_by_one(self, trial: Trial) -> bool:
        """Return whether the estimates of this candidate are not batched."""
        return (
            self.batches_are_slow
            or trial.candidate.expensive
            or self.shares_draws(trial)
            or not self.task.vectorised
            or self._batch_limit(trial) < self.settings.least_repeats
        )

    def shares_draws(self, trial: Trial) -> bool:
        """Return whether the draws and values of other estimators are used for this one."""
        return (
            trial.uses_plain_draws
            and self.structure.further_seconds * trial.evaluations > self.settings.slow_evaluation
            and not self.task.leaves_of_f
            and self.task.f_is_independent
        )

    def run_steps(self, trial: Trial, step: TimedStep, count: int) -> None:
        """Make timed steps and add their gradients."""
        measured = [step() for _ in range(count)]
        if measured:
            trial.times += [seconds for seconds, _ in measured]
            trial.add(torch.stack([gradient for _, gradient in measured]))

    def run_batched(self, trial: Trial, repeats: int) -> None:
        """Make estimates in one batched call."""
        start = self.clock()
        trial.add(self.task.gradients(trial.estimator, repeats, self.generator)[0])
        trial.seconds_per_repeat = (self.clock() - start) / repeats

    def run_until(self, trial: Trial, error: float, time_left: float) -> None:
        """Make batched estimates until the error or the time limit is reached."""
        repeats, limit = trial.repeats_to_reach(error), self._batch_limit(trial)
        if trial.seconds_per_repeat > 0 and time_left < inf:
            repeats = min(repeats, int(time_left / trial.seconds_per_repeat))
        while repeats > 0:
            self.run_batched(trial, min(repeats, limit))
            repeats -= limit

    def fit_coefficients(self, trial: Trial, repeats: int) -> None:
        r"""Set coefficients c of :math:`g_0 + \sum_i c_i g_i` to those of the least variance.

        All estimates have the same draws.
        """
        E, names = trial.estimator, trial.candidate.coefficients
        assert isinstance(E, nn.Module)
        coefficients: list[nn.Parameter] = [getattr(E, name) for name in names]
        state, start = self.generator.get_state(), self.clock()

        def assign(values: Sequence[float]) -> None:
            with torch.no_grad():
                for coefficient, value in zip(coefficients, values, strict=True):
                    coefficient.fill_(value)

        def gradients(values: Sequence[float]) -> Tensor:
            self.generator.set_state(state)
            assign(values)
            return self.task.gradients(E, repeats, self.generator)[0].double()

        base = gradients([0.0] * len(names))
        unit_vectors = torch.eye(len(names)).tolist()
        parts = torch.stack([gradients(values) - base for values in unit_vectors])
        centred, noise = parts - parts.mean(1, keepdim=True), base - base.mean(0)
        gram = torch.einsum("irp,jrp->ij", centred, centred)
        right = -torch.einsum("irp,rp->i", centred, noise)
        solution = torch.linalg.lstsq(gram, right.unsqueeze(-1)).solution.squeeze(-1)
        assign(solution.tolist())
        trial.seconds_per_repeat = (self.clock() - start) / (repeats * (1 + len(names)))
        if repeats < self.settings.repeats_for_spread:  # few draws fit too well: draw again
            self.run_steps(trial, self._step(trial), 2)
        else:
            trial.add(base + torch.einsum("i,irp->rp", solution, parts))

    def _step(self, trial: Trial) -> TimedStep:
        if not self.shares_draws(trial):
            return self.task.timer(trial.estimator, self.clock, self.generator, self.whole_step)

        def step() -> tuple[float, Tensor]:
            draws = self.shared.setdefault(trial.samples, [])
            if trial.replays == len(draws):
                draws.append(self._evaluated_draws(trial.samples))
            entry = draws[trial.replays]
            trial.replays += 1
            seconds, gradient = self.task.replayed(trial.estimator, entry.x, entry.fx, self.clock)
            if self.whole_step is not None:
                seconds = self.task.step_seconds(trial.estimator, self.whole_step, self.clock)
            else:
                seconds += entry.seconds
            return seconds, gradient

        return step

    def _evaluated_draws(self, samples: int) -> SharedDraws:
        self.task.synchronise()
        start = self.clock()
        with torch.no_grad():
            x = draw(self.task.view, samples, generator=self.generator)
            fx = evaluate(self.task.f, x, self.task.view)
        self.task.synchronise()
        return SharedDraws(x, fx, self.clock() - start)

    def _most_seconds(self, trials: Sequence[Trial]) -> float:
        """Return the step time with which an estimator without noise is level with the leader."""
        measured = [trial for trial in trials if trial.is_measured]
        floor = self.scoring.floor(measured) if len(measured) > 1 else 0.0
        if floor <= 0:
            return inf
        return self.settings.size_doubt * min(self.scoring.scores(measured).values()) / floor

    def _least_seconds(self, trial: Trial) -> float:
        """Return the time that f alone takes in a step, about; half of it, to be careful."""
        if self.structure.has_own_table:
            return 0.0
        return self.structure.further_seconds * trial.evaluations / 2

    def _time_step(self, trial: Trial, step: TimedStep) -> Tensor:
        seconds, gradient = step()
        trial.times.append(seconds)
        return gradient

    def _first_steps(self, trial: Trial, step: TimedStep, gradient: Tensor, error: float) -> None:
        second = self._time_step(trial, step)
        trial.add(torch.stack([gradient, second]))
        # If few parameters share the variance, two estimates say little about it.
        if trial.dimensions < self.settings.least_repeats and not trial.candidate.expensive:
            extra = min(self.settings.extra_steps, trial.repeats_to_reach(error))
            self.run_steps(trial, step, extra)

    def _first_batches(
        self, trial: Trial, gradient: Tensor, error: float, time_left: float
    ) -> None:
        if not self.has_batched:  # the first batched call loads modules of torch: not counted
            start = self.clock()
            self.run_batched(trial, 2)
            self.start += self.clock() - start
            self.has_batched = True
        self.run_batched(trial, self._first_repeats(trial))
        trial.add(gradient.unsqueeze(0))
        self.batches_are_slow = trial.seconds_per_repeat > trial.seconds / 2
        if not self.batches_are_slow:
            shared = self.settings.batch_share * time_left
            self.run_until(trial, error, min(shared, self.settings.batch_steps * trial.seconds))

    def _first_repeats(self, trial: Trial) -> int:
        if self.runs_one_by_one(trial):
            return 2
        return min(self.settings.first_repeats, self._batch_limit(trial))

    def _further_steps(self, trial: Trial) -> int:
        """Return how many steps a first measurement takes after the first one, about."""
        return 2 * (1 + len(trial.candidate.coefficients)) + trial.learns

    def _batch_limit(self, trial: Trial) -> int:
        """Return how many estimates one call may make."""
        evaluations = max(1, trial.evaluations * self.task.view.batch_size)
        return min(self.settings.most_repeats, self.settings.evaluations_per_call // evaluations)
