"""Candidates that take turns on f and q, until they are known or the time is over."""

from collections.abc import Callable, Sequence
from math import exp, hypot, inf
from typing import NamedTuple

import torch
from torch import nn

from ..core.abilities import has_table
from ..core.categories import Kind
from ..core.checks import readable
from ..core.left_alone import restored
from ..core.settings import label
from ..estimators import (
    ARMS,
    RAM,
    RLOO,
    CritiCateR,
    Exact,
    GumbelSoftmax,
    IndeCateR,
    ReinMax,
    SCateR,
    SlopeCateR,
)
from .arms import ERRORS, AnyEstimator, Arm, entered, first_line
from .moments import Moments
from .task import Task

Step = Callable[[AnyEstimator], object]

MOMENTUM_STEPS = 10  # that momentum averages, and their noise with them
BIAS_WEIGHT = 100  # momentum does not average a bias
# Rounds, and how much worse than the best an arm may be that continues.
STAGES = ((4, 3.0), (8, 2.5), (24, 2.0), (64, 1.5), (256, 1.5))
LEAST_BUDGET = 64  # evaluations
SHARE = 0.5  # of the pilot's time, for the first stage
GROUPS = 8  # of batch elements, whose gradients show the noise of the minibatch
PROBES, SLOW = 3, 0.05  # calls of f to time one, and seconds of a call that is not repeated
CACHED = 10  # times as fast at a point that it has seen: f keeps its values
MOST_ERROR = 3.0  # of the logarithm of a score

# In the order in which level ones are listed.
LADDER: tuple[AnyEstimator, ...] = tuple(RLOO(2**power) for power in range(1, 7))
DEPENDENT: tuple[AnyEstimator, ...] = (SCateR(1), RAM(1), CritiCateR(8), Exact())
INDEPENDENT: tuple[AnyEstimator, ...] = (
    *(IndeCateR(1), IndeCateR(2, sampling="latin")),
    *(SlopeCateR(1, every=4), SlopeCateR(2, every=4), SlopeCateR(1)),
    *(ARMS(2), ARMS(4), CritiCateR(8), Exact()),
)
BIASED: tuple[AnyEstimator, ...] = (ReinMax(1), ReinMax(4), GumbelSoftmax(1, hard=True))


class Score(NamedTuple):
    """The expected training time up to a common factor, and its relative standard error."""

    value: float
    error: float


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
        minibatch: the variance that the choice of the minibatch gives to the gradient.
    """

    def __init__(
        self, task: Task, step: Step | float | None, deadline: Callable[[float], float]
    ) -> None:
        self.task = task
        self.step = step if callable(step) else None
        self.rest = 0.0 if step is None or callable(step) else float(step)
        self.deadline = deadline
        self.arms: dict[str, Arm] = {}
        self.alive: list[str] = []
        self.skipped: dict[str, str] = {}
        self.times_whole_steps = False
        self.minibatch = 0.0
        self._probe()
        penalties = task.penalties(task.make_q(*task.parameters))
        self.penalty = task.differentiated(penalties, retain=not task.rebuilds_q)

    @torch.no_grad()
    def _probe(self) -> None:
        """Time f at one point and at three, which it has not seen and then has.

        The pilot asks for the same points often, if q is sharp or has few; training moves on.
        """
        runs: list[list[float]] = []
        while len(runs) <= PROBES and (len(runs) < 2 or runs[-1][0] < SLOW):  # the first warms up
            points = [self.task.draws(n, len(runs)) for n in ((1, 1, 3) if runs else (1,))]
            calls = [lambda x=x: self.task.f(x.clone()) for x in points]
            runs.append([self.task.timed(call)[0] for call in calls])
        unseen, seen, further = map(min, zip(*runs[1:], strict=True))
        is_cached = unseen > CACHED * seen and unseen > 1e-4
        self.call, self.miss = unseen, unseen - seen if is_cached else 0.0
        self.per_point = max(0.0, further - unseen) / 2

    def enter(
        self, chosen: Sequence[AnyEstimator], budget: int | None, biased: bool, seed: int
    ) -> None:
        """Make an arm of every candidate that fits."""
        task, factors = self.task, self.task.factors
        if not chosen:
            independent = factors.kind != Kind.STRUCTURED
            chosen = (*LADDER, *(INDEPENDENT if independent else DEPENDENT))
            chosen += BIASED if biased and independent else ()
        most = max(LEAST_BUDGET, 2 * (1 + sum(factors.cardinalities) - factors.d))
        most = most if budget is None else budget

        def sized(E: AnyEstimator) -> tuple[AnyEstimator, int]:
            if not (E.unbiased or biased):
                raise ValueError("it is biased; biased=True shows it")
            evaluations = task.evaluations(E)
            if has_table(task.f):  # which is read, at about the cost of an evaluation per entry
                evaluations = min(evaluations, getattr(E, "samples", evaluations) * (1 + factors.k))
            if evaluations > most:
                needed = readable(evaluations)
                raise ValueError(f"it needs {needed} evaluations, more than the budget of {most}")
            return E, evaluations

        self.arms, self.skipped = entered(task, {label(E): E for E in chosen}, sized, seed)

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
                    if few or self.time_left(self.leading()) > 0:
                        self.observe(name)
            if done == 1:
                self.measure_minibatch()
            scores = self.scores()
            level = level_with_best(scores, factor)
            self.alive = [name for name in self.alive if name in level or name not in scores]
            if done == 1 and self.step is not None:
                self._time_whole_steps()
            done = rounds

    def observe(self, name: str) -> None:
        """Let an arm make a step, and an estimate with it; one that fails is left out."""
        arm = self.arms[name]
        try:
            learns = isinstance(arm.E, nn.Module)  # its first estimate is like no other
            seconds = arm.observe(self.task, keep=bool(arm.times) or not learns)
            arm.times.append(self._whole_step(arm) if self.times_whole_steps else seconds)
        except ERRORS as error:  # what went wrong comes first
            self.skipped = {name: first_line(error)} | self.skipped
            self.alive.remove(name)
            del self.arms[name]

    def _time_whole_steps(self) -> None:
        """From now on time the user's step, with the arms that are left. The first may compile."""
        self.times_whole_steps = True
        for name in [*self.alive]:
            self.observe(name)
        for arm in self.arms.values():
            arm.times.clear()
        for name in [*self.alive]:
            self.observe(name)

    def _whole_step(self, arm: Arm) -> float:
        """Return the time of the user's training step, and restore the parameters after it."""
        step, leaves = self.step, self.task.leaves
        assert step is not None
        with restored(leaves):
            for leaf in leaves:
                leaf.grad = None
            return arm.timed(self.task, lambda: step(arm.E))[0]

    def measure_minibatch(self) -> None:
        r"""Estimate the noise of the minibatch, with the estimator of the least variance.

        The batch is divided into M groups. With B elements, :math:`n_m` of them in group m, and
        :math:`g_m` the mean gradient of its elements, it is
        :math:`\tfrac{B}{M - 1} \sum_m n_m \lVert g_m - \bar g \rVert^2`, less the variance.
        """
        task = self.task
        arm = min(self.tried(2), key=variance_of, default=None)
        if arm is None or not task.shares_parameters:
            return
        value, q = task.estimate(arm.E, arm.generator)
        losses = (value + task.penalties(q)).flatten()
        groups = min(GROUPS, len(losses))
        parts = [losses[m::groups] for m in range(groups)]
        rows = [task.differentiated(part, retain=True) for part in parts]
        mean = torch.stack(rows).sum(0) / len(losses)
        spread = sum(
            float((row - len(part) * mean).square().sum()) / len(part)
            for row, part in zip(rows, parts, strict=True)
        )
        self.minibatch = max(0.0, len(losses) * spread / (groups - 1) - variance_of(arm))

    # Time

    def tried(self, least: int = 1) -> list[Arm]:
        """Return the arms that made so many estimates, and at least one step."""
        arms = self.arms.values()
        return [arm for arm in arms if arm.times and arm.in_parameters.count >= least]

    def leading(self) -> float:
        """Return the least seconds of a step so far."""
        return min(map(self.seconds, self.tried()), default=0.0)

    def time_left(self, least: float) -> float:
        return self.deadline(least) - self.task.clock()

    def seconds(self, arm: Arm) -> float:
        """Return the least time of an arm's step, at points that f has not seen."""
        return min(arm.times) + self.rest + self.miss * arm.evaluations

    # Scores

    def unbiased(self) -> list[Arm]:
        """Return the unbiased arms whose estimates say something: not those that saw only zeros,
        as with a sparse f, where others saw more."""
        known = [arm for arm in self.tried(2) if arm.E.unbiased]
        return [arm for arm in known if bool(arm.in_parameters.mean.any())] or known

    def reference(self) -> Moments:
        """Return the most precise unbiased gradient; with a loss, that of the most evaluations."""
        known = [arm for arm in self.unbiased() if variance_of(arm) < inf] or self.unbiased()
        if self.task.has_loss:
            return max(known, key=lambda arm: arm.evaluations).in_parameters
        return min(known, key=lambda arm: arm.in_parameters.mean_variance).in_parameters

    def floor(self) -> float:
        """Return what all estimators share: the squared gradient and the minibatch's noise."""
        signal = self.reference().shifted_norm2(self.penalty)
        return max(MOMENTUM_STEPS * signal + self.minibatch, 1e-300)  # if all is 0, time decides

    def squared_bias(self, arm: Arm) -> float:
        """Return the squared distance from the reference, minus the noise in it."""
        reference, moments = self.reference(), arm.in_parameters
        if moments is reference or variance_of(arm) == inf:
            return 0.0
        gap = float((moments.mean - reference.mean).square().sum())
        return max(0.0, gap - moments.mean_variance - reference.mean_variance)

    def scores(self) -> dict[str, Score]:
        """Return the scores of the unbiased arms."""
        arms = self.unbiased()
        floor = self.floor() if arms else 0.0
        scores = {}
        for name, arm in self.arms.items():
            if arm in arms:
                noise = variance_of(arm)
                bias = BIAS_WEIGHT * self.squared_bias(arm) if self.task.has_loss else 0.0
                share = noise / (floor + noise) if 0 < noise < inf else 0.0
                value = (floor + noise + bias) * self.seconds(arm)
                # The spread of few estimates says little of their error.
                error = max(arm.in_parameters.error, 2 / arm.in_parameters.count)
                scores[name] = Score(value, error * share)
        return scores


def variance_of(arm: Arm) -> float:
    """Return the variance, infinite if there were infinite gradients."""
    variance = arm.in_parameters.variance
    return variance if variance < inf else inf  # also where it is NaN


def level_with_best(scores: dict[str, Score], factor: float) -> list[str]:
    """Return the names of scores within this factor of the best, or within two standard errors."""
    best = min(scores.values(), default=Score(inf, 0.0))
    return [
        name
        for name, (value, error) in scores.items()
        if value <= best.value * max(factor, exp(min(MOST_ERROR, 2 * hypot(error, best.error))))
    ]
