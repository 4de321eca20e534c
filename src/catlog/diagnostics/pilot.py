"""Candidates that take turns on f and q, until they are known or the time is over."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import exp, hypot, inf, sqrt
from secrets import randbits
from statistics import fmean, median

import torch
from torch import nn

from ..core.categories import Kind
from ..core.checks import readable
from ..core.left_alone import restored
from ..core.settings import label
from ..estimators import ARMS, RAM, RLOO, CritiCateR, Exact, IndeCateR, SCateR, SlopeCateR
from .arms import ERRORS, Arm, entered, reason
from .moments import Moments
from .naming import AnyEstimator, Named
from .task import Task

Step = Callable[[AnyEstimator], object]

MOMENTUM_STEPS = 10  # that momentum averages, and their noise with them
BIAS_WEIGHT = 100  # momentum does not average a bias
# Rounds, and how much worse than the best an arm may be that continues.
STAGES = ((4, 3.0), (8, 2.5), (24, 2.0), (64, 1.5), (256, 1.5))
LEAST_BUDGET = 64  # evaluations
SHARE = 0.5  # of the pilot's time, for the first stage
PROBES, SLOW = 3, 0.05  # calls of f to time one, and seconds of a call that is not repeated
CACHED = 10  # times as fast at a point that it has seen: f keeps its values
LEAST_MISS = 1e-3  # seconds of a point that is worth keeping
MOST_ERROR = 3.0  # of the logarithm of a score
LEAST_ERROR = 1.5  # of a variance, by the square root of the number of estimates: few look alike

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


class Pilot:
    """Arms that take turns, and their scores, the lower the better.

    Attributes:
        task: the gradient that they estimate.
        step: the user's training step, if there is one.
        deadline: of the pilot, as a function of the least seconds of a step.
        arms: by name, in the order in which level ones are listed.
        alive: the names of those that are still observed.
        skipped: why other candidates are not tried.
        rest: seconds of a step apart from the estimate and its gradients.
        call: seconds of a call of f at one point.
        per_point: seconds that f takes for a further point.
        miss: seconds that f takes for an unseen point beyond those for a seen one, if it keeps its
            values.
    """

    def __init__(
        self, task: Task, step: Step | float | None, deadline: Callable[[float], float]
    ) -> None:
        self.task = task
        self.step = step if callable(step) else None
        self.rest = 0.0 if step is None or callable(step) else float(step)
        self.deadline = deadline
        self.alive: list[str] = []
        self.times_whole_steps = False
        self._probe()
        self.penalty = task.of_penalty()

    @torch.no_grad()
    def _probe(self) -> None:
        """Time f at one point and at three, which it has not seen and then has.

        The pilot asks for the same points often, if q is sharp or has few; training moves on. The
        points are others in every pilot, also with the same seed. A point may have been seen in an
        earlier run, so the median says what an unseen one takes.
        """
        runs: list[list[float]] = []
        while len(runs) <= PROBES and (len(runs) < 2 or runs[-1][0] < SLOW):  # the first warms up
            seed = randbits(32)
            points = [self.task.draws(n, seed) for n in ((1, 1, 3) if runs else (1,))]
            calls = [lambda x=x: self.task.f(x.clone()) for x in points]
            runs.append([self.task.timed(call)[0] for call in calls])
        first, seen, further = map(min, zip(*runs[1:], strict=True))
        unseen = median(run[0] for run in runs[1:])
        is_cached = unseen > max(CACHED * seen, LEAST_MISS)
        self.call = unseen if is_cached else first
        self.miss = unseen - seen if is_cached else 0.0
        self.per_point = max(0.0, further - self.call) / 2

    def enter(self, chosen: Named | None, budget: int | None, seed: int) -> None:
        """Make an arm of every candidate that fits."""
        task, factors = self.task, self.task.factors
        usual = DEPENDENT if factors.kind == Kind.STRUCTURED else INDEPENDENT
        chosen = chosen or {label(E): E for E in (*LADDER, *usual)}
        most = max(LEAST_BUDGET, 2 * (1 + sum(factors.cardinalities) - factors.d))
        most = most if budget is None else budget

        def sized(E: AnyEstimator) -> AnyEstimator:
            if not E.unbiased:
                raise ValueError("it is biased, and no pilot can see whether its training arrives")
            evaluations = task.evaluations(E)
            if evaluations > most:
                needed = readable(evaluations)
                raise ValueError(f"it needs {needed} evaluations, more than the budget of {most}")
            return E

        self.arms, self.skipped = entered(task, chosen, sized, seed)

    def run(self) -> None:
        """Let the arms take turns until they are known or the time is over."""
        seconds = {
            name: self.call + self.per_point * max(0, arm.evaluations - 1)
            for name, arm in self.arms.items()
        }
        time = SHARE * self.time_left(min(seconds.values(), default=0.0))
        for name in sorted(seconds, key=lambda name: seconds[name]):
            time -= STAGES[0][0] * seconds[name]
            if time >= 0 or len(self.tried()) < 2:
                self.alive.append(name)
                self.observe(name)
        done = 1
        for rounds, factor in STAGES:
            for _ in range(rounds - done):
                for name in [*self.alive]:
                    few = len(self.tried(2)) < min(2, len(self.alive))
                    if few or self.time_left(min(self.seconds().values(), default=0.0)) > 0:
                        self.observe(name)
            behind = {trial.name for trial in self.trials(factor) if not trial.is_level}
            self.alive = [name for name in self.alive if name not in behind]
            if done == 1 and self.step is not None:
                self.times_whole_steps = True
                for arm in self.arms.values():
                    arm.times.clear()
                for name in [*self.alive, *self.alive]:  # the first step may compile
                    self.observe(name)
            done = rounds

    def observe(self, name: str) -> None:
        """Let an arm make an estimate, and perhaps a step of the user; one that fails is left out.

        The first estimate of one that learns is like no other, so it is not kept.
        """
        arm = self.arms.get(name)
        if arm is None:
            return
        try:
            keep = bool(arm.times) or not isinstance(arm.E, nn.Module)
            seconds = arm.observe(self.task, keep)
            arm.times.append(self._whole_step(arm) if self.times_whole_steps else seconds)
        except ERRORS as error:  # what went wrong comes first
            self.skipped = {name: reason(error)} | self.skipped
            self.alive.remove(name)
            del self.arms[name]

    def _whole_step(self, arm: Arm) -> float:
        """Return the time of the user's training step, and restore the parameters after it."""
        step, leaves = self.step, self.task.leaves
        assert step is not None
        with restored(leaves):
            for leaf in leaves:
                leaf.grad = None
            return arm.timed(self.task, lambda: step(arm.E))[0]

    # Time

    def tried(self, least: int = 1) -> list[Arm]:
        """Return the arms that made so many estimates, and at least one step."""
        arms = self.arms.values()
        return [arm for arm in arms if arm.times and arm.moments.count >= least]

    def time_left(self, least: float) -> float:
        """Return the seconds until the deadline, if the quickest step takes ``least``."""
        return self.deadline(least) - self.task.clock()

    def seconds(self) -> dict[str, float]:
        """Return the least time of a step of every arm, at points that f has not seen.

        Those of one family that differ in the number of draws alone lie on a line, which noise
        moves less than each of them.
        """
        least = {name: min(arm.times) for name, arm in self.arms.items() if arm.times}
        ladder = [name for name in least if type(self.arms[name].E) is type(LADDER[0])]
        draws = [self.arms[name].evaluations for name in ladder]
        least |= zip(ladder, on_a_line(draws, [least[name] for name in ladder]), strict=True)
        return {
            name: max(time, self.miss * self.arms[name].evaluations) + self.rest
            for name, time in least.items()
        }

    # Scores

    def seeing(self) -> list[Arm]:
        """Return the arms whose estimates say something: not those that saw only zeros, as with a
        sparse f, where others saw more."""
        known = self.tried(2)
        return [arm for arm in known if bool(arm.moments.mean.any())] or known

    def reference(self) -> Moments:
        """Return the most precise gradient; with a loss, that of the most evaluations."""
        known = [arm for arm in self.seeing() if arm.moments.variance < inf] or self.seeing()
        if self.task.has_loss:
            return max(known, key=lambda arm: arm.evaluations).moments
        return min(known, key=lambda arm: arm.moments.mean_variance).moments

    def floor(self) -> float:
        """Return what all estimators share: the squared gradient, which momentum adds up."""
        reference = self.reference()
        signal = float((reference.mean + self.penalty).square().sum()) - reference.mean_variance
        return max(1e-300, MOMENTUM_STEPS * signal)  # if all is 0 or NaN, time decides

    def squared_bias(self, arm: Arm) -> float:
        """Return the squared distance from the reference, minus the noise in it; only a loss makes
        a bias."""
        reference, moments = self.reference(), arm.moments
        if moments is reference or arm.moments.variance == inf or not self.task.has_loss:
            return 0.0
        gap = float((moments.mean - reference.mean).square().sum())
        return max(0.0, gap - moments.mean_variance - reference.mean_variance)

    def trials(self, factor: float) -> list[Trial]:
        """Return what was measured of the arms whose estimates say something.

        The score is the expected training time, up to a common factor. Those within this factor of
        the best, or within two standard errors, are level.
        """
        arms, seconds = self.seeing(), self.seconds()
        floor = self.floor() if arms else 0.0
        scores = {}
        for name, arm in self.arms.items():
            if arm in arms:
                noise = arm.moments.variance
                share = noise / (floor + noise) if 0 < noise < inf else 0.0
                value = (floor + noise + BIAS_WEIGHT * self.squared_bias(arm)) * seconds[name]
                error = max(arm.moments.error, LEAST_ERROR / sqrt(arm.moments.count))
                scores[name] = value, error * share, noise
        best, least_error, _ = min(scores.values(), default=(inf, 0.0, 0.0))
        trials = []
        for name, (value, error, noise) in scores.items():
            arm, both = self.arms[name], hypot(error, least_error)
            trials.append(
                Trial(
                    name=name,
                    estimator=arm.E,
                    evaluations=arm.evaluations,
                    repeats=arm.moments.count,
                    seconds=seconds[name],
                    variance=noise,
                    times_as_long=value / best,
                    error=error,
                    is_level=value <= best * max(factor, exp(min(MOST_ERROR, 2 * both))),
                )
            )
        return trials


def on_a_line(sizes: Sequence[int], times: Sequence[float]) -> list[float]:
    """Return times of the form a + b size, a and b at least 0, with small relative errors.

    >>> [round(time, 3) for time in on_a_line([2, 4, 8], [1.2, 1.4, 1.8])]
    [1.2, 1.4, 1.8]
    """
    if len(times) < 2 or min(times) <= 0:
        return [*times]
    weights = [1 / time**2 for time in times]
    size, time = fmean(sizes, weights), fmean(times, weights)
    steps = [n - size for n in sizes]
    square = sum(weight * step**2 for weight, step in zip(weights, steps, strict=True))
    rise = sum(w * step * (t - time) for w, step, t in zip(weights, steps, times, strict=True))
    slope = min(max(0.0, rise / square), time / size)
    return [time + slope * step for step in steps]
