"""Measurements of one candidate after another, in limited time."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import ceil, inf, log, sqrt

import torch
from torch import Tensor

from ..estimator import Estimator
from ..estimators import RLOO
from .coefficient_fit import fit_coefficients
from .gradient_samples import Clock, GradientSampler, Step
from .moments import Moments
from .pilot_settings import SETTINGS, PilotSettings
from .plain_draws import PlainDraws
from .scoring import Scoring
from .sizing import fewest_draws
from .step_line import Line
from .structure import Structure
from .trials import Trial

NO_TIME = "the pilot had no time for it"
TOO_SLOW = "its steps take too long, even if they had no noise"
TimedStep = Callable[[], tuple[float, Tensor]]


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
        whole_step: A training step of the user, which is timed for promising candidates.
        trials: The candidates, with every number of draws that was tried or predicted.
        settings: Further limits.
        scoring: The scores of candidates.
        leader_seconds: The time of a step of the leader.
        minibatch_by: The trial whose estimator measured the noise of the minibatch.
        evaluation_seconds: The time that evaluations of f add to a step, by the number of plain
            draws.
        batches_are_slow: A repeat in a batch costs about as much as a single step.
        rest_seconds: What the user's step takes apart from the estimate and its gradients,
        step_ratio: or its time relative to these, if it is shorter (when it is compiled).
        fastest_step: The shortest time of the user's step so far.
        draw_seconds: What a further plain draw adds to the user's step, if that is compiled.
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
    settings: PilotSettings = SETTINGS
    scoring: Scoring = field(default_factory=Scoring)
    leader_seconds: float = 0.0
    minibatch_by: Trial | None = None
    evaluation_seconds: dict[int, float] = field(default_factory=dict)
    batches_are_slow: bool = False
    rest_seconds: float | None = None
    step_ratio: float = 1.0
    fastest_step: float = inf
    draw_seconds: float | None = None

    @property
    def is_compiled(self) -> bool:
        """Whether the user's step is shorter than the estimate and its gradients in the pilot.

        Then the times of the pilot say little about those of the user's step: on a GPU, the pilot's
        steps are spent on launching kernels, which a captured step does not do.
        """
        return self.step_ratio < 1

    @property
    def measured(self) -> list[Trial]:
        """The trials whose step was timed, and which were not given up."""
        return [trial for trial in self.trials if trial.is_measured]

    @cached_property
    def plain(self) -> PlainDraws:
        """Draws and values for all estimators that use plain draws."""
        size = max(2, min(self.settings.set_size, self.structure.budget))
        return PlainDraws(self.task, size, self.generator, self.clock)

    def time_left(self, overtime: float = 1.0) -> float:
        """Return the seconds left, and note the leader's step time, which sets the time limit.

        Until two candidates are measured, there is no limit.
        """
        timed = self.measured
        if len({id(trial.candidate) for trial in timed}) < 2:
            return inf
        self.leader_seconds = self.scoring.ranked(timed)[0].seconds
        limit = max(self.steps * self.leader_seconds, self.least_seconds)
        return overtime * limit - (self.clock() - self.start)

    def first_measurement(self, trial: Trial) -> None:
        """Time a step and make a few estimates, or skip the candidate.

        A candidate that uses plain draws, of which few sets serve all, is tried with other numbers
        of draws as well.
        """
        time_left = self.time_left()
        most_seconds = self._most_seconds()
        trial.skipped = self._why_untried(trial, time_left, most_seconds)
        if trial.skipped is not None:
            return
        if self._shares_draws(trial):
            self.trials += self._plain_trials(trial)
            return
        trial.rest_seconds += self.rest_seconds or 0.0
        step = self._step(trial)
        gradient = self._time_step(trial, step)
        trial.skipped = self._why_given_up(trial, time_left, most_seconds)
        if trial.skipped is not None:
            return
        for _ in range(trial.candidate.warm_up if trial.learns else 0):
            gradient = self._time_step(trial, step)  # the first was made before it learned anything
        if trial.is_exact:
            self._time_step(trial, step)
            self.add(trial, torch.stack([gradient, gradient]))
        elif trial.candidate.coefficients and not self.task.has_loss:
            has_many = self._entries > self.settings.many_entries
            self.fit_coefficients(trial, 2 if has_many else self._first_repeats(trial))
        else:
            self.add(trial, torch.stack([gradient, self._time_step(trial, step)]))
            self._further_estimates(trial, step)
        if self.whole_step is not None and self.rest_seconds is None:
            self._look_at_whole_step(trial, min(trial.times))
            trial.times = [seconds * self.step_ratio for seconds in trial.times]
            trial.rest_seconds = self.rest_seconds or 0.0

    def _why_untried(self, trial: Trial, time_left: float, most_seconds: float) -> str | None:
        """Return why not even one step of a candidate is made; None if it is tried."""
        least_seconds = self.step_ratio * self._least_seconds(trial)
        if least_seconds > most_seconds or _is_slower_than_skipped(trial, self.trials):
            return f"its {trial.evaluations} evaluations take too long for what they gain"
        has_time = time_left >= self.settings.reserve_steps * self.leader_seconds
        return None if has_time else NO_TIME

    def _why_given_up(self, trial: Trial, time_left: float, most_seconds: float) -> str | None:
        """Return why a candidate is given up after its first step; None if it is not."""
        cannot_shrink = trial.most_samples is None or trial.samples <= 2
        if (
            cannot_shrink
            and not self.is_compiled
            and trial.seconds > most_seconds
            and not self._is_reference(trial, time_left)
        ):
            return TOO_SLOW
        needed = self._further_steps(trial) * trial.seconds
        return NO_TIME if needed > self.settings.usual_share * time_left else None

    def measure_penalty(self) -> None:
        """Compute the gradient of what is added to the loss, if anything is."""
        gradient = self.task.penalty_gradient()
        if gradient is not None:
            self.scoring.penalty = self._selected(gradient).double()

    def measure_minibatch(self) -> None:
        """Estimate the noise of the minibatch, with the estimator of the least variance.

        A bias is no hindrance: the differences between batch elements are much the same.
        """
        known = [trial for trial in self.measured if trial.moments.count and trial.variance < inf]
        if not known or not self.task.shares_parameters:
            return
        best = min(known, key=lambda trial: trial.variance)
        if self.minibatch_by is not None and best.variance > self.minibatch_by.variance / 2:
            return
        self.minibatch_by = best
        total = self.task.minibatch_variance(best.estimator, self.settings.groups, self.generator)
        self.scoring.minibatch = max(0.0, total - best.variance)

    def sharpen_biases(self) -> None:
        """Make more estimates with biased candidates and with the unbiased one that judges them."""
        repeated = [trial for trial in self.measured if trial.moments.count > 1]
        unbiased = [
            trial for trial in repeated if trial.estimator.unbiased and trial.variance < inf
        ]
        if len(unbiased) in (0, len(repeated)) or self.task.has_loss:
            return
        best = min(unbiased, key=lambda trial: trial.variance * trial.seconds)
        scores = self.scoring.scores(repeated)
        limit = self.settings.hope_times * min(scores.values())
        biased = [
            trial
            for trial in repeated
            if not trial.estimator.unbiased and self.best_hope(trial, repeated)[0] < limit
        ]
        for trial in (best, *biased):
            time_left = self.settings.reference_share * self.time_left()
            needed = self._repeats_for_bias(trial, repeated) - trial.moments.count
            self._estimate(trial, min(self.settings.most_repeats, needed), time_left)

    def _repeats_for_bias(self, trial: Trial, trials: Sequence[Trial]) -> int:
        """Return how many estimates make the noise in a squared bias a small part of the score."""
        leader = self.scoring.ranked(trials)[0]
        total = self.scoring.scores(trials)[leader.name] / leader.seconds
        noise = self.settings.bias_weight * trial.variance * sqrt(2 / trial.dimensions)
        return ceil(noise / (self.settings.truth_error * total)) if noise < inf else 0

    def _is_reference(self, trial: Trial, time_left: float) -> bool:
        """Return whether a slow, unbiased candidate is needed to measure the bias of others."""
        if not trial.estimator.unbiased or self.task.has_loss or time_left == inf:
            return False
        if all(entry.estimator.unbiased for entry in self.trials):
            return False
        few = self.settings.least_repeats
        unbiased = [
            entry for entry in self.measured if entry.estimator.unbiased and entry.moments.count > 1
        ]
        has_another = any(self._repeats_for_bias(entry, unbiased) <= few for entry in unbiased)
        return not has_another and few * trial.seconds < self.settings.reference_share * time_left

    def measure_truth(self) -> None:
        """Estimate the gradient that biases are measured against, unless a candidate has it.

        With a loss it is the gradient at the exact E[f]. If all candidates are biased, RLOO judges
        them.
        """
        unbiased = [trial for trial in self.measured if trial.estimator.unbiased]
        if not self.measured or (unbiased and not self.task.has_loss):
            return
        exact = [trial for trial in unbiased if trial.is_exact]
        best = min(exact or unbiased, key=lambda trial: trial.variance, default=None)
        judge = RLOO(self.settings.set_size) if best is None else best.estimator
        seconds = self._seconds_of(judge) if best is None else best.seconds
        repeats = self.settings.truth_repeats
        time_left = self.settings.reference_share * self.time_left()
        if time_left < repeats * seconds:
            repeats = max(self.settings.least_repeats, int(time_left / seconds))
        repeats = 2 if exact else repeats
        self.scoring.truth = Moments()
        self.scoring.truth.add(
            self._selected(self.task.gradients_at_mean_value(judge, repeats, self.generator))
        )

    def _seconds_of(self, E: Estimator) -> float:
        """Return the time of one estimate by an estimator that is no candidate."""
        start = self.clock()
        self.task.gradients_at_mean_value(E, 1, self.generator)
        return max(self.clock() - start, torch.finfo(torch.float64).tiny)

    def sizes(self, trial: Trial) -> list[int]:
        """Return the numbers of draws to consider: powers of two, and the most in the budget."""
        most = trial.most_samples
        if most is None or trial.is_exact:
            return [trial.samples]
        try:
            fewest = fewest_draws(trial.estimator, lambda E: E.evaluations(self.task.q))
        except ValueError:
            return [trial.samples]
        powers = {2**i for i in range(16) if fewest <= 2**i <= most / self.settings.size_gap}
        return sorted(powers | {trial.samples, most})

    def best_hope(self, trial: Trial, trials: Sequence[Trial]) -> tuple[float, int]:
        """Return a bound below the score with any number of draws, and the number that attains it.

        The variance is taken to be inverse to the draws. A further draw takes at least the time of
        its evaluations, and fewer draws take at least their share of the time. If the step is
        compiled, draws take as long as plain ones.
        """
        rest = self.scoring.squared_errors(trials)[trial.name] - trial.variance
        floor = self.scoring.floor(trials) + rest
        per_draw = self._least_seconds(trial) / trial.samples
        if self.is_compiled:
            per_draw = self.draw_seconds or 0.0

        def bound(samples: int) -> float:
            noise = trial.variance * trial.samples / samples
            seconds = trial.seconds + (samples - trial.samples) * per_draw
            if samples < trial.samples and not self.is_compiled:
                seconds = trial.seconds * samples / trial.samples
            return (floor + noise) * seconds

        return min((bound(samples), samples) for samples in self.sizes(trial))

    def hopes_of_compiled(self) -> list[tuple[float, Trial]]:
        """Return candidates whose compiled step was not timed, with the score they may have.

        Their steps may be as short as the shortest. The best come first.
        """
        timed = self.measured
        counts = Counter(id(trial.candidate) for trial in timed)
        floor, errors = self.scoring.floor(timed), self.scoring.squared_errors(timed)
        hopes = [
            ((floor + errors[trial.name]) * self.fastest_step, trial)
            for trial in timed
            if counts[id(trial.candidate)] == 1 and not trial.is_whole and trial.variance < inf
        ]
        return sorted(hopes, key=lambda pair: pair[0])

    def other_sizes(self, trial: Trial, hope: int) -> list[Trial]:
        """Return trials of the candidate with other draws, of which one is timed.

        `hope` says whether more or fewer draws seem better.
        The others are predicted: the variance is inverse to the draws, the time affine in them.
        """
        sizes = [size for size in self.sizes(trial) if size != trial.samples]
        if trial.variance == 0:  # more draws are of no use
            sizes = [size for size in sizes if size < trial.samples]
        if not sizes or trial.variance == inf:
            return []
        self.use_whole_step(trial)
        other = min(sizes)
        if other > trial.samples or hope > trial.samples:
            other = min(sizes, key=lambda size: abs(size - self._next_size(trial)))
        timed = trial.resized(other, self.task)
        self.use_whole_step(timed)
        self.run_steps(timed, self._step(timed), 2)
        if self.is_compiled:  # a few estimates take less time than compiling did
            for entry in (trial, timed):
                needed = self.settings.least_repeats - entry.moments.count
                self._estimate(entry, needed, inf)
        return [timed, *self._between(trial, timed, [size for size in sizes if size != other])]

    def run_round(self, contenders: Sequence[Trial], error: float, timed_steps: int) -> None:
        """Time further steps of all in turn, then make estimates until the error is reached."""
        shortest = min(trial.seconds for trial in contenders)
        quick_steps = int(self.settings.timing_seconds / max(shortest, 1e-9))
        count = min(self.settings.most_timed_steps, max(timed_steps, quick_steps))
        old_times: dict[str, int] = {}
        for _, trial in product(range(count), contenders):
            if trial.skipped is not None or self.time_left() < trial.seconds:
                continue
            with trial.given_up_on_error():
                self.use_whole_step(trial)
                old_times.setdefault(trial.name, len(trial.times))
                self.run_steps(trial, self._step(trial), 1)
        for trial in contenders:  # only times of the same minute can be compared
            trial.times = trial.times[old_times.get(trial.name, 0) :]
        for place, trial in enumerate(contenders):
            share = self.time_left() / (len(contenders) - place)
            if share <= 0 or trial.is_exact or not trial.is_measured:
                continue
            # The error of the variance counts as far as the variance does.
            errors = self.scoring.errors(self.measured)
            ratio = trial.error / max(errors[trial.name], 1e-9)
            with trial.given_up_on_error():
                self._estimate(trial, trial.repeats_to_reach(error * max(1.0, ratio)), share)

    def confirm(self, trial: Trial, is_late: bool, is_new: bool) -> None:
        """Time further steps of the leader and, unless it is late, add cheap batches.

        Times of a new leader are old, so they are replaced.
        """
        steps = self.settings.confirming_steps
        if is_new:
            trial.times = []
        self.use_whole_step(trial)
        self.run_steps(trial, self._step(trial), steps)
        if not is_late and self.may_have_missed(trial):
            self.run_batched(trial, min(self.settings.rare_repeats, self._batch_limit(trial)))
        elif not self.runs_one_by_one(trial):
            repeats = trial.repeats_to_reach(self.settings.sure_error)
            self._estimate(trial, repeats, steps * trial.seconds)

    def is_timed(self, trial: Trial) -> bool:
        """Return whether the time of a step was measured, and not only predicted."""
        return bool(trial.times) and (self.whole_step is None or trial.is_whole)

    def may_have_missed(self, trial: Trial) -> bool:
        """Return whether rare values of f may not have been drawn though more repeats are cheap."""
        has_few = trial.moments.count * self.structure.batch < self.settings.rare_repeats
        return has_few and trial.variance > 0 and not self.runs_one_by_one(trial)

    def runs_one_by_one(self, trial: Trial) -> bool:
        """Return whether the estimates of this candidate are not batched."""
        return (
            self.batches_are_slow
            or trial.candidate.expensive
            or self._replays(trial)
            or not self.task.vectorised
            or self._batch_limit(trial) < self.settings.least_repeats
        )

    def run_steps(self, trial: Trial, step: TimedStep, count: int) -> None:
        """Make timed steps and add their gradients; the user's step does not show any."""
        if trial.is_whole and self.whole_step is not None:
            trial.times += [self._whole_seconds(trial) for _ in range(count)]
            return
        steps = [step() for _ in range(count)]
        if steps:
            trial.times += [seconds for seconds, _ in steps]
            self.add(trial, torch.stack([gradient for _, gradient in steps]))

    def add(self, trial: Trial, gradients: Tensor) -> None:
        """Add estimated gradients, one per row; of long ones, only some entries."""
        trial.add(self._selected(gradients))

    def _selected(self, gradients: Tensor) -> Tensor:
        """Return some entries of the gradients, scaled to the norm of all, if there are many."""
        if self._entries <= self.settings.selected_entries:
            return gradients
        return gradients[..., self._selection] * sqrt(self._entries / len(self._selection))

    @cached_property
    def _selection(self) -> Tensor:
        generator = self.task.generator(0)
        device, count = self.task.view.device, self.settings.selected_entries
        return torch.randint(self._entries, (count,), device=device, generator=generator)

    def run_batched(self, trial: Trial, repeats: int) -> None:
        """Make estimates in one batched call."""
        start = self.clock()
        self.add(trial, self.task.gradients(trial.estimator, repeats, self.generator)[0])
        trial.seconds_per_repeat = (self.clock() - start) / repeats

    def fit_coefficients(self, trial: Trial, repeats: int) -> None:
        """Set the coefficients of a candidate to those of the least variance."""
        names, start = trial.candidate.coefficients, self.clock()
        gradients = fit_coefficients(trial.estimator, names, self.task, repeats, self.generator)
        trial.seconds_per_repeat = (self.clock() - start) / (repeats * (1 + len(names)))
        if repeats < self.settings.repeats_for_spread:  # few draws fit too well: draw again
            self.run_steps(trial, self._step(trial), 2)
        else:
            self.add(trial, gradients)

    def _estimate(self, trial: Trial, repeats: int, time_left: float) -> None:
        """Make this many estimates, or as many as the time allows."""
        if repeats <= 0 or time_left <= 0:
            return
        if self.runs_one_by_one(trial):
            step = self._step(trial)
            seconds = trial.seconds / self.step_ratio  # these steps are not compiled
            possible = repeats if time_left == inf else int(time_left / seconds)
            steps = [step() for _ in range(min(repeats, possible))]
            if steps:
                self.add(trial, torch.stack([gradient for _, gradient in steps]))
            if not trial.is_whole:
                trial.times += [seconds for seconds, _ in steps]
            return
        limit, end = self._batch_limit(trial), self.clock() + time_left
        expected = trial.seconds_per_repeat or trial.seconds
        while repeats > 0 and self.clock() + expected * min(repeats, limit) < end:
            self.run_batched(trial, min(repeats, limit))
            repeats -= limit
            expected = trial.seconds_per_repeat

    def _plain_trials(self, trial: Trial) -> list[Trial]:
        """Measure a candidate of plain draws with all numbers of draws up to the size of a set.

        More draws than that are predicted.
        """
        sizes = self.sizes(trial)
        small = [size for size in sizes if size <= self.plain.size]
        more = [size for size in sizes if size > self.plain.size]
        trials = {size: trial.resized(size, self.task) for size in small if size != trial.samples}
        trials[trial.samples] = trial
        self.plain.extend(self.settings.first_sets)
        self._replay(trial)
        if trial.error > self.settings.first_error:
            self.plain.extend(self.settings.most_sets)
        for size in small:
            self._replay(trials[size])
        smallest, largest = trials[small[0]], trials[small[-1]]
        second = trials[max(size for size in small if size <= self._next_size(smallest))]
        few, many = (self._plain_seconds(entry) for entry in (smallest, second))
        per_draw = self._least_seconds(trial) / trial.samples
        self._look_at_whole_step(smallest, few)
        few, many, per_draw = (self.step_ratio * value for value in (few, many, per_draw))
        if self.is_compiled and self.draw_seconds is None:
            self.use_whole_step(smallest)
            self.use_whole_step(second)
            few, many = smallest.seconds, second.seconds
            further = max(1, second.samples - smallest.samples)
            self.draw_seconds = max(0.0, many - few) / further
        elif self.is_compiled:
            few = max(few, self.fastest_step)
        per_draw = max(per_draw, self.draw_seconds or 0.0)
        line = Line(smallest.samples, few, second.samples, many, per_draw)
        for size in small:
            trials[size].expected_seconds = line.at(size)
            if not trials[size].is_whole:
                trials[size].rest_seconds += self.rest_seconds or 0.0
        predicted = [largest.resized(size, self.task, line.at(size)) for size in more]
        return [*(entry for entry in trials.values() if entry is not trial), *predicted]

    def _plain_seconds(self, trial: Trial) -> float:
        """Return the time of a step of an estimator of plain draws.

        The evaluations take equally long for all of them, so they are timed once.
        """
        x, fx = self.plain.subsets(trial.samples, 0, 1)
        own_seconds = min(
            self.task.replayed(trial.estimator, x[:, 0], fx[:, 0], self.clock)[0] for _ in range(2)
        )
        if trial.samples not in self.evaluation_seconds:
            step = self._step(trial, is_timing=True)
            seconds = min(step()[0] for _ in range(2)) - own_seconds
            self.evaluation_seconds[trial.samples] = seconds
        return max(own_seconds, own_seconds + self.evaluation_seconds[trial.samples])

    def _next_size(self, trial: Trial) -> int:
        return self.settings.size_step * trial.samples

    def _between(self, first: Trial, second: Trial, sizes: Sequence[int]) -> list[Trial]:
        few, many = sorted((first, second), key=lambda trial: trial.samples)
        per_draw = self.step_ratio * self._least_seconds(first) / first.samples
        line = Line(few.samples, min(few.times), many.samples, min(many.times), per_draw)
        nearest = [first if self._is_nearer(first, second, size) else second for size in sizes]
        pairs = zip(nearest, sizes, strict=True)
        return [source.resized(size, self.task, line.at(size)) for source, size in pairs]

    def _is_nearer(self, first: Trial, second: Trial, size: int) -> bool:
        """Return whether the variance with `size` draws should be predicted from `first`."""
        if second.moments.count < self.settings.least_repeats:
            return True
        return abs(log(size / first.samples)) <= abs(log(size / second.samples))

    def _replay(self, trial: Trial) -> None:
        """Add estimates from the shared draws that were not used yet."""
        most = max(2, self._batch_limit(trial))
        x, fx = self.plain.subsets(trial.samples, trial.replayed, most)
        if x.shape[1]:
            self.add(trial, self.task.replayed_gradients(trial.estimator, x, fx))
        trial.replayed = self.plain.count

    def _shares_draws(self, trial: Trial) -> bool:
        """Return whether the draws and values of other estimators can be used for this one."""
        return trial.uses_plain_draws and self.task.f_is_independent

    def _replays(self, trial: Trial) -> bool:
        """Return whether timed steps use known values of f, because f is expensive."""
        return (
            self._shares_draws(trial)
            and trial.samples <= self.plain.size
            and self.structure.further_seconds * trial.evaluations > self.settings.slow_evaluation
            and not self.task.leaves_of_f
            and not trial.is_whole
        )

    def _step(self, trial: Trial, is_timing: bool = False) -> TimedStep:
        """Return a step of the trial; `is_timing`: its gradient is not used."""
        if self._replays(trial):
            return self._replayed_step(trial, is_timing)
        step = self.task.timer(trial.estimator, self.clock, self.generator)

        def timed() -> tuple[float, Tensor]:
            seconds, gradient = step()
            return self.step_ratio * seconds, gradient

        return timed

    def _replayed_step(self, trial: Trial, is_timing: bool) -> TimedStep:
        """Return a step whose time is that of the evaluations, known, and of the rest, measured."""
        fewer = (self.plain.size - trial.samples) * self.structure.further_seconds

        def step() -> tuple[float, Tensor]:
            start = 0 if is_timing else trial.replayed
            if start + trial.samples > self.plain.count:
                self.plain.extend(self.plain.count // self.plain.size + 1)
            x, fx = self.plain.subsets(trial.samples, start, 1)
            trial.replayed = max(trial.replayed, start + trial.samples)
            E = trial.estimator
            seconds, gradient = self.task.replayed(E, x[:, 0], fx[:, 0], self.clock)
            return seconds + max(0.0, self.plain.seconds - fewer), gradient

        return step

    def _look_at_whole_step(self, trial: Trial, seconds: float) -> None:
        """Compare the user's step with the time of the estimate and its gradients, once."""
        if self.whole_step is None or self.rest_seconds is not None:
            return
        whole = self._seconds_of_whole_step(trial)
        self.rest_seconds = max(0.0, whole - seconds)
        self.step_ratio = min(1.0, whole / seconds) if seconds > 0 else 1.0

    def use_whole_step(self, trial: Trial) -> None:
        """Replace the times of a promising trial by that of the user's step."""
        if self.whole_step is not None and not trial.is_whole:
            seconds = self._seconds_of_whole_step(trial)
            trial.is_whole = True
            trial.rest_seconds = 0.0
            trial.times = [seconds]

    def _seconds_of_whole_step(self, trial: Trial) -> float:
        """Return the time of the second call. The first may compile; that is not counted."""
        assert self.whole_step is not None
        first = self.task.step_seconds(trial.estimator, self.whole_step, self.clock)
        second = self._whole_seconds(trial)
        self.start += max(0.0, first - second)
        return second

    def _whole_seconds(self, trial: Trial) -> float:
        """Return the time of the user's step."""
        assert self.whole_step is not None
        is_on_gpu = self.task.view.device.type == "cuda"
        count = self.settings.steps_in_a_row if is_on_gpu else 1
        seconds = self.task.step_seconds(trial.estimator, self.whole_step, self.clock, count)
        self.fastest_step = min(self.fastest_step, seconds)
        return seconds

    def _most_seconds(self) -> float:
        """Return the step time with which an estimator without noise is level with the leader."""
        timed = self.measured
        floor = self.scoring.floor(timed) if len(timed) > 1 else 0.0
        if floor <= 0:
            return inf
        return self.settings.hope_times * min(self.scoring.scores(timed).values()) / floor

    def _least_seconds(self, trial: Trial) -> float:
        """Return the time that f alone takes in a step, about; half of it, to be careful."""
        return self.structure.further_seconds * trial.cost / 2

    def _time_step(self, trial: Trial, step: TimedStep) -> Tensor:
        seconds, gradient = step()
        trial.times.append(seconds)
        return gradient

    def _further_estimates(self, trial: Trial, step: TimedStep) -> None:
        """Make a few more estimates if two say little, because few parameters share the noise."""
        error = self.settings.first_error
        if trial.error <= error:
            return
        if not self.runs_one_by_one(trial):
            self.run_batched(trial, self._first_repeats(trial))
            self.batches_are_slow = trial.seconds_per_repeat > trial.seconds
        elif not trial.candidate.expensive:
            extra = min(self.settings.extra_steps, trial.repeats_to_reach(error))
            self.run_steps(trial, step, extra)

    def _first_repeats(self, trial: Trial) -> int:
        if self.runs_one_by_one(trial):
            return 2
        return min(self.settings.first_repeats, self._batch_limit(trial))

    def _further_steps(self, trial: Trial) -> int:
        """Return how many steps a first measurement takes after the first one, about."""
        if trial.is_exact:
            return 1
        warm_up = trial.candidate.warm_up if trial.learns else 0
        return 2 * (1 + len(trial.candidate.coefficients)) + warm_up

    def _batch_limit(self, trial: Trial) -> int:
        """Return how many estimates one call may make."""
        evaluations = max(1, trial.evaluations * self.task.view.batch_size)
        return min(
            self.settings.most_repeats,
            self.settings.evaluations_per_call // evaluations,
            self.settings.entries_per_call // self._entries,
        )

    @property
    def _entries(self) -> int:
        """The number of entries of a gradient."""
        return sum(parameter.numel() for parameter in self.task.parameters)


def _is_slower_than_skipped(trial: Trial, trials: Sequence[Trial]) -> bool:
    """Return whether the same estimator was too slow with no more evaluations."""
    return any(
        entry.skipped == TOO_SLOW
        and type(entry.estimator) is type(trial.estimator)
        and entry.evaluations <= trial.evaluations
        for entry in trials
    )
