"""Measurements of one candidate after another, in limited time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor, nn

from ..estimator import label
from .gradient_samples import Clock, GradientSampler
from .pilot_settings import DEFAULTS, PilotSettings
from .sizing import why_over_budget, with_samples, within_budget
from .trials import Trial, ranked

NO_TIME = "the pilot had no time for it"
Step = Callable[[], tuple[float, Tensor]]


@dataclass
class Pilot:
    """The task, the clock and the time limit of a pilot, with the measurements that it makes.

    Attributes:
        task: The gradient to estimate.
        generator: The source of all draws.
        clock: A function that returns seconds.
        start: The clock at the start of the pilot.
        steps: The time limit, in steps of the leader.
        settings: Further limits.
        leader_seconds: The time of a step of the leader.
        batches_are_slow: A repeat in a batch costs about as much as a single step.
    """

    task: GradientSampler
    generator: torch.Generator
    clock: Clock
    start: float
    steps: float
    settings: PilotSettings = DEFAULTS
    leader_seconds: float = 0.0
    batches_are_slow: bool = False

    def time_left(self, trials: Sequence[Trial], overtime: float = 1.0) -> float:
        """Return the seconds left, and note the leader's step time, which sets the time limit.

        Until two candidates are measured, there is no limit.
        """
        measured = [trial for trial in trials if trial.is_measured]
        if len(measured) < 2:
            return inf
        self.leader_seconds = ranked(measured)[0].seconds
        return overtime * self.steps * self.leader_seconds - (self.clock() - self.start)

    def first_measurement(self, trial: Trial, error: float, time_left: float) -> None:
        """Time a step and make a few estimates, or skip the candidate for lack of time."""
        candidate = trial.candidate
        if time_left < self.settings.reserve_steps * self.leader_seconds or (
            candidate.expensive and not self._is_quick(trial)
        ):
            trial.skipped = NO_TIME
            return
        step = self._step(trial)
        gradient = self._time_step(trial, step)
        share = 1.0 if candidate.promising else self.settings.usual_share
        if self._further_steps(trial) * trial.seconds > share * time_left:
            trial.skipped = NO_TIME
            return
        if trial.learns:  # the first gradient was made before anything was learned
            gradient = self._time_step(trial, step)
        if trial.is_exact:
            trial.add(torch.stack([gradient, gradient]))
        elif candidate.coefficients:  # the step had other coefficients
            self.fit_coefficients(trial, self._first_repeats(trial))
        elif self.runs_one_by_one(trial):
            self._first_steps(trial, step, gradient, error)
        else:
            self._first_batches(trial, gradient, error, time_left)

    def refine(self, trial: Trial, error: float, timed_steps: int, time_left: float) -> None:
        """Time further steps, and make estimates until the error or the time limit is reached."""
        if time_left < timed_steps * trial.seconds or trial.is_exact:
            return
        step = self._step(trial)
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

    def with_fewest_draws(self, trial: Trial, most_seconds: float = inf) -> Trial | None:
        """Return the candidate with its fewest draws, if it has no variance with those either.

        Without variance more draws are of no use. `most_seconds` limits the time of a step.
        """
        E, q = trial.estimator, self.task.q
        if trial.is_exact or isinstance(E, nn.Module):
            return None
        per_draw = E.evaluations(q) // max(1, getattr(E, "samples", 1))
        # Some estimators need two draws at least.
        budgets = [b for b in (per_draw, 2 * per_draw) if why_over_budget(E, q, b) is None]
        if not budgets:
            return None
        E = within_budget(E, q, budgets[0])
        fewer = Trial(label(E), E, E.evaluations(q), trial.candidate, self.settings)
        step = self._step(fewer)
        self.run_steps(fewer, step, 2)
        if fewer.variance > 0 or fewer.seconds > most_seconds:
            return None
        repeats = self.settings.repeats_for_spread
        if self.runs_one_by_one(fewer):
            self.run_steps(fewer, step, repeats - 2)
        else:
            self.run_batched(fewer, repeats)
        return fewer if fewer.variance == 0 else None

    def runs_one_by_one(self, trial: Trial) -> bool:
        """Return whether the estimates of this candidate are not batched."""
        return (
            self.batches_are_slow
            or trial.candidate.expensive
            or not self.task.vectorised
            or self._batch_limit(trial) < self.settings.least_repeats
        )

    def run_steps(self, trial: Trial, step: Step, count: int) -> None:
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
        trial.add(base + torch.einsum("i,irp->rp", solution, parts))
        trial.seconds_per_repeat = (self.clock() - start) / (repeats * (1 + len(names)))

    def _step(self, trial: Trial) -> Step:
        return self.task.timer(trial.estimator, self.clock, self.generator)

    def _time_step(self, trial: Trial, step: Step) -> Tensor:
        seconds, gradient = step()
        trial.times.append(seconds)
        return gradient

    def _first_steps(self, trial: Trial, step: Step, gradient: Tensor, error: float) -> None:
        second = self._time_step(trial, step)
        trial.add(torch.stack([gradient, second]))
        # If few parameters share the variance, two estimates say little about it.
        if trial.dimensions < self.settings.least_repeats and not trial.candidate.expensive:
            extra = min(self.settings.extra_steps, trial.repeats_to_reach(error))
            self.run_steps(trial, step, extra)

    def _first_batches(
        self, trial: Trial, gradient: Tensor, error: float, time_left: float
    ) -> None:
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
        if trial.is_exact:
            return 0
        return 2 * (1 + len(trial.candidate.coefficients)) + trial.learns

    def _batch_limit(self, trial: Trial) -> int:
        """Return how many estimates one call may make."""
        evaluations = max(1, trial.evaluations * self.task.view.batch_size)
        return min(self.settings.most_repeats, self.settings.evaluations_per_call // evaluations)

    def _is_quick(self, trial: Trial) -> bool:
        """Return whether a step with fewer draws takes only a part of the leader's step."""
        draws = getattr(trial.estimator, "samples", 2) // self.settings.timing_divisor
        E = with_samples(trial.estimator, max(2, draws))
        step = self.task.timer(E, self.clock, self.generator)
        return min(step()[0], step()[0]) <= self.settings.timing_share * self.leader_seconds
