"""Candidates that take turns on f and q, until they are known or the time is over."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import exp, hypot, inf, sqrt
from secrets import randbits
from statistics import median
from typing import Any

import torch
from torch import nn

from ..core.categories import Kind
from ..core.left_alone import restored
from ..core.settings import label
from ..estimators import ARMS, RAM, RLOO, CritiCateR, Exact, IndeCateR, SCateR, SlopeCateR
from .arms import ERRORS, Arm, entered, reason
from .moments import LEAST_WAITING, Moments
from .naming import AnyEstimator, Named
from .task import Task

Step = Callable[[AnyEstimator], object]

MOMENTUM_STEPS = 10  # that momentum averages, and their noise with them
BIAS_WEIGHT = 100  # momentum does not average a bias
# How much worse than the best an arm may be that continues, after these rounds.
STAGES = {4: 3.0, 8: 2.5, 24: 2.0, 64: 1.5, 256: 1.5}
LEAST_BUDGET = 64  # evaluations
SHARE = 0.5  # of the pilot's time, for the first stage, and before the first step of the user
SLACK = 2  # times as long as expected that an observation may take: the first one is cold
PROBES, SLOW = 3, 0.05  # calls of f to time one, and seconds of a call that is not repeated
CACHED = 10  # times as fast at a point that it has seen: f keeps its values
LEAST_MISS = 1e-3  # seconds of a point that is worth keeping
MOST_ERROR = 3.0  # of the logarithm of a score
LEAST_ERROR = 1.5  # of a variance, by the square root of the number of estimates: few look alike
BIASED = "it is biased, and no pilot can see whether its training arrives"

# In the order in which level ones are listed.
LADDER: tuple[AnyEstimator, ...] = tuple(RLOO(2**power) for power in range(1, 7))
DEPENDENT: tuple[AnyEstimator, ...] = (SCateR(1), RAM(1), CritiCateR(8), Exact())
INDEPENDENT: tuple[AnyEstimator, ...] = (
    *(IndeCateR(1), IndeCateR(2, sampling="latin")),
    *(SlopeCateR(1, every=4), SlopeCateR(2, every=4), SlopeCateR(1)),
    *(ARMS(2), ARMS(4), CritiCateR(8), Exact()),
)


@dataclass(frozen=True)
class Trial:
    """What was measured of a candidate.

    Attributes:
        name: its repr.
        estimator: after what it learned in the pilot.
        evaluations: of f per estimate and batch element.
        repeats: the number of estimates.
        seconds: the least time of a step; those of RLOO are on a line in the number of draws.
        variance: of its gradient, summed over the parameters.
        times_as_long: the expected training time, relative to the best.
        error: the relative standard error of that.
        is_level: whether the pilot cannot tell it from the best.
    """

    name: str
    estimator: AnyEstimator = field(repr=False)
    evaluations: int
    repeats: int
    seconds: float
    variance: float
    times_as_long: float
    error: float
    is_level: bool

    def relative_to(self, best: "Trial", factor: float) -> "Trial":
        """Return the trial with its time relative to the best, and whether they are level."""
        times_as_long = self.times_as_long / best.times_as_long
        both = min(MOST_ERROR, 2 * hypot(self.error, best.error))
        is_level = times_as_long <= max(factor, exp(both))
        return replace(self, times_as_long=times_as_long, is_level=is_level)


class Pilot:
    """Arms that take turns, and their scores, the lower the better.

    Attributes:
        task: the gradient that they estimate.
        step: the user's training step, if there is one.
        deadline: of the pilot, as a function of the least seconds of a step.
        start: when the first arm is observed.
        arms: by name, in the order in which level ones are listed.
        alive: the names of those that are still observed.
        refused: why other candidates are not tried.
        failed: what went wrong with those that failed.
        awaits_steps: whether steps of the user will be timed, but not yet.
        rest: seconds of a step apart from the estimate and its gradients.
        call: seconds of a call of f at one point.
        per_point: seconds that f takes for a further point.
        miss: seconds that f takes for an unseen point beyond those for a seen one, if it keeps its
            values.
        overhead: times as long as expected that the last first observation of an arm took.
        scoring: seconds that it takes to score an arm.
    """

    def __init__(
        self, task: Task, step: Step | float | None, deadline: Callable[[float], float]
    ) -> None:
        self.task = task
        self.step: Any = step if callable(step) else None
        self.rest = 0.0 if callable(step) else float(step or 0.0)
        self.deadline = deadline
        self.alive: list[str] = []
        self.failed: dict[str, str] = {}
        self.awaits_steps = callable(step)
        self.overhead = 1.0
        self._probe()
        self.penalty = task.of_penalty()
        self.scoring = min(task.timed(self._scored)[0] for _ in range(2))

    @torch.no_grad()
    def _probe(self) -> None:
        """Time f at one point and at three, which it has not seen and then has.

        The pilot asks for the same points often, if q is sharp or has few; training moves on. The
        points are others in every pilot, also with the same seed. A point may have been seen in an
        earlier run, so the median says what an unseen one takes.
        """
        runs: list[list[float]] = []
        while len(runs) < PROBES and (not runs or runs[-1][0] < SLOW):
            seed = randbits(32)
            points = [self.task.draws(n, seed) for n in (1, 1, 3)]
            calls = [lambda x=x: self.task.f(x) for x in points]
            runs.append([self.task.timed(call)[0] for call in calls])
        first, seen, further = map(min, zip(*runs, strict=True))
        unseen = median(run[0] for run in runs)
        is_cached = unseen > max(CACHED * seen, LEAST_MISS)
        self.call = unseen if is_cached else first
        self.miss = unseen - seen if is_cached else 0.0
        self.per_point = max(0.0, further - self.call) / 2

    def _scored(self) -> float:
        """Return what a score is made of, for a few gradients of the same size."""
        moments = Moments()
        moments.add(self.penalty.expand(LEAST_WAITING, -1))
        return moments.mean_variance + moments.error

    def enter(self, chosen: Named | None, budget: int | None, seed: int) -> None:
        """Make an arm of every candidate that fits."""
        task, factors = self.task, self.task.factors
        usual = DEPENDENT if factors.kind == Kind.STRUCTURED else INDEPENDENT
        chosen = chosen or {label(E): E for E in (*LADDER, *usual)}
        most = max(LEAST_BUDGET, 2 * (1 + sum(factors.cardinalities) - factors.d))
        unbiased = {name: E for name, E in chosen.items() if E.unbiased}
        self.arms, self.refused = entered(task, unbiased, seed, budget or most)
        self.refused |= {name: BIASED for name in chosen if name not in unbiased}
        for arm in self.arms.values():
            arm.expected = self.call + self.per_point * max(0, arm.evaluations - 1)

    def run(self) -> None:
        """Let the arms take turns until they are known or the time is over."""
        self.start = self.task.clock()
        time = SHARE * (self._end() - self.start)
        for name, arm in sorted(self.arms.items(), key=lambda item: item[1].evaluations):
            time -= min(STAGES) * arm.expected
            if len(self.tried()) < 2 or (time >= 0 and self._fits(arm, self._end())):
                self.alive.append(name)
                self.observe(name)
        for number in range(2, 1 + max(STAGES)):
            is_over = not self._round()
            if is_over and not self.awaits_steps:
                break
            if number in STAGES:
                self._leave(STAGES[number])

    def _round(self) -> bool:
        """Observe each arm that the time suffices for; return whether it did for any."""
        end, is_observed = self._end(), False
        for name in [*self.alive]:
            few = len(self.tried(2)) < min(2, len(self.alive))
            if few or self._fits(self.arms[name], end):
                self.observe(name)
                is_observed = True
        return is_observed

    def _leave(self, factor: float) -> None:
        """Let arms leave that are far behind; the others take turns from the best one on."""
        trials = self.trials(factor)
        times = {trial.name: trial.times_as_long for trial in trials}
        behind = {trial.name for trial in trials if not trial.is_level}
        self.alive = [name for name in self.alive if name not in behind]
        self.alive.sort(key=lambda name: times.get(name, inf))
        if self.awaits_steps:
            self.awaits_steps = False
            for arm in self.arms.values():
                arm.times.clear()

    def observe(self, name: str) -> None:
        """Let an arm make an estimate, and perhaps a step of the user; one that fails is left out.

        The first estimate of one that learns is like no other, so it is not kept. The first step of
        the user may compile.
        """
        arm = self.arms[name]
        is_first, times_steps = not arm.times, self.step is not None and not self.awaits_steps
        try:
            if is_first and times_steps:
                self._whole_step(arm)
            start = self.task.clock()
            seconds = arm.observe(self.task, keep=not is_first or not isinstance(arm.E, nn.Module))
            arm.times.append(self._whole_step(arm) if times_steps else seconds)
            took = self.task.clock() - start
            if is_first:
                self.overhead = took / max(1e-9, arm.expected)  # a clock may not see f
            arm.expected = took
        except ERRORS as error:
            self.failed[name] = reason(error)
            self.alive.remove(name)
            del self.arms[name]

    def _whole_step(self, arm: Arm) -> float:
        """Return the time of the user's training step, and restore the parameters after it."""
        with restored(self.task.leaves):
            for leaf in self.task.leaves:
                leaf.grad = None
            return arm.timed(self.task, lambda: self.step(arm.E))[0]

    # Time

    def tried(self, least: int = 1) -> dict[str, Arm]:
        """Return the arms that made so many estimates, and at least one step."""
        arms = self.arms.items()
        return {name: arm for name, arm in arms if arm.times and arm.moments.count >= least}

    def _fits(self, arm: Arm, end: float) -> bool:
        """Return whether another observation of an arm will be over in time."""
        expected = arm.expected if arm.times else self.overhead * arm.expected
        return self.task.clock() + SLACK * expected <= end

    def _end(self) -> float:
        """Return when the last observation must be over, to score the arms before the deadline:
        those of a stage that ends with it, and all at the end."""
        expected = [arm.expected for arm in self.arms.values()]
        least = min(self.seconds().values() or expected, default=0.0)
        scorings = 2 * self.scoring * len({*self.tried(), *self.alive})
        time = self.deadline(least) - self.start - scorings
        return self.start + (SHARE * time if self.awaits_steps else time)

    def seconds(self) -> dict[str, float]:
        """Return the least time of a step of every arm, at points that f has not seen.

        Those of one family that differ in the number of draws alone lie on a line, which noise
        moves less than each of them.
        """
        least = {name: min(arm.times) for name, arm in self.tried().items()}
        ladder = [name for name in least if type(self.arms[name].E) is type(LADDER[0])]
        draws = [self.arms[name].evaluations for name in ladder]
        least |= zip(ladder, on_a_line(draws, [least[name] for name in ladder]), strict=True)
        unseen = {name: self.miss * self.arms[name].evaluations for name in least}
        return {name: max(time, unseen[name]) + self.rest for name, time in least.items()}

    # Scores

    def seeing(self) -> dict[str, Arm]:
        """Return the arms whose estimates are not all zero, as with a sparse f."""
        return {name: arm for name, arm in self.tried(2).items() if bool(arm.moments.mean.any())}

    def reference(self, arms: Sequence[Arm]) -> Moments:
        """Return the most precise gradient; with a loss, that of the most evaluations."""
        known = [arm for arm in arms if arm.moments.variance < inf] or arms
        if self.task.has_loss:
            return max(known, key=lambda arm: arm.evaluations).moments
        return min(known, key=lambda arm: arm.moments.mean_variance).moments

    def squared_bias(self, moments: Moments, reference: Moments) -> float:
        """Return the squared distance from the reference, minus the noise in it; only a loss makes
        a bias."""
        gap = float((moments.mean - reference.mean).square().sum())
        noise = moments.mean_variance + reference.mean_variance
        return max(0.0, gap - noise) if self.task.has_loss else 0.0

    def trials(self, factor: float) -> list[Trial]:
        """Return what was measured of the arms whose estimates say something.

        The score is the expected training time, up to a common factor. All estimators share the
        squared gradient, which momentum adds up. Those within this factor of the best, or within
        two standard errors, are level.
        """
        arms, seconds = self.seeing() or self.tried(2), self.seconds()
        if not arms:
            return []
        reference = self.reference([*arms.values()])
        signal = float((reference.mean + self.penalty).square().sum()) - reference.mean_variance
        floor = max(1e-300, MOMENTUM_STEPS * signal)  # if all is 0 or NaN, time decides
        trials = []
        for name, arm in arms.items():
            moments, noise = arm.moments, arm.moments.variance
            bias = self.squared_bias(moments, reference) if noise < inf else 0.0
            score = (floor + noise + BIAS_WEIGHT * bias) * seconds[name]
            share = noise / (floor + noise) if 0 < noise < inf else 0.0
            error = share * max(moments.error, LEAST_ERROR / sqrt(moments.count))
            measured = arm.E, arm.evaluations, moments.count, seconds[name], noise
            trials.append(Trial(name, *measured, times_as_long=score, error=error, is_level=True))
        best = min(trials, key=lambda trial: trial.times_as_long)
        return [trial.relative_to(best, factor) for trial in trials]


def on_a_line(sizes: Sequence[int], times: Sequence[float]) -> list[float]:
    """Return times of the form a + b size, a and b at least 0, with small relative errors.

    >>> [round(time, 3) for time in on_a_line([2, 4, 8], [1.2, 1.4, 1.8])]
    [1.2, 1.4, 1.8]
    """
    if len(set(sizes)) < 2 or min(times) <= 0:
        return [*times]
    x, y = torch.tensor([sizes, times], dtype=torch.float64)
    weights = y**-2 / (y**-2).sum()
    size, time = weights @ x, weights @ y
    rise = weights @ ((x - size) * (y - time)) / (weights @ (x - size) ** 2)
    return [float(part) for part in time + rise.clamp(0, time / size) * (x - size)]
