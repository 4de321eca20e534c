"""Candidates that take turns on f and q, until they are known or the time is over."""

from collections.abc import Callable, Sequence
from math import exp, hypot, inf, log2
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..core.abilities import has_table
from ..core.categories import Kind
from ..core.checks import readable
from ..core.left_alone import versions_kept
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
from .arms import ERRORS, AnyEstimator, Arm, copied_to, first_line, why_unsuitable
from .moments import Moments
from .task import Task, flat, gradients_in

Step = Callable[[AnyEstimator], object]

MOMENTUM_STEPS = 10  # that momentum averages, and their noise with them
BIAS_WEIGHT = 100  # momentum does not average a bias
# Rounds, and how much worse than the best an arm may be that continues.
STAGES = ((4, 3.0), (8, 2.5), (24, 2.0), (64, 1.5), (256, 1.5))
FIRST_ROUNDS = STAGES[0][0]
LEAST_BUDGET = 64  # evaluations
SHARE = 0.1  # of the pilot's time that a candidate may take in the first rounds
GROUPS = 8  # of batch elements, whose gradients show the noise of the minibatch
PROBES, SLOW = 3, 0.05  # calls of f to time one, and seconds of a call that is not repeated
CACHED = 10  # times as fast at a point that it has seen: f keeps its values
MOST_ERROR = 3.0  # of the logarithm of a score

# In the order in which level ones are named.
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
        arms: by name, in the order in which level ones are named.
        alive: the names of those that are still observed.
        skipped: why other candidates are not tried.
        rest: seconds of a step apart from the estimate and its gradients.
        miss: seconds that f takes for an unseen point beyond those for a seen one, if it keeps its
            values.
        per_point: seconds that f takes for a further point.
        leading: seconds of a step of the best arm so far.
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
        self.leading = 0.0
        self.miss, self.per_point = self._probe()
        self.minibatch = 0.0
        self._penalty: Tensor | None = None
        if task.penalty is not None:
            penalties = task.penalties(task.make_q(*task.parameters))
            gradients = gradients_in(penalties, task.parameters, retain=not task.rebuilds_q)
            self._penalty = flat(gradients).double()

    @torch.no_grad()
    def _probe(self) -> tuple[float, float]:
        """Return what a point that f has not seen costs beyond one that it has, if f keeps values,
        and what a further point costs.

        The pilot asks for the same points often, if q is sharp or has few; training moves on.
        """
        seeds = iter(range(100))

        def seconds(x: Tensor) -> float:
            return self.task.timed(lambda: self.task.f(x.clone()))[0]

        def least(points: int) -> tuple[float, float]:
            """Return the least seconds at unseen points, and at the same points again."""
            unseen = seen = inf
            for _ in range(PROBES):
                x = self.task.draws(points, next(seeds))
                unseen, seen = min(unseen, seconds(x)), min(seen, seconds(x))
                if unseen > SLOW:  # the machine's stalls matter less than the time
                    break
            return unseen, seen

        seconds(self.task.draws(1, next(seeds)))  # to warm up
        unseen, seen = least(1)
        is_cached = unseen > CACHED * seen and unseen > 1e-4
        per_point = max(0.0, least(3)[0] - unseen) / 2
        return unseen - seen if is_cached else 0.0, per_point

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
        for number, E in enumerate(chosen):
            evaluations, reason = 0, why_unsuitable(E, factors.kind)
            if not (E.unbiased or biased):
                reason = "it is biased; biased=True shows it"
            if reason is None:
                try:
                    evaluations = task.evaluations(E)
                except ERRORS as error:
                    reason = first_line(error).split(". ")[0]
                if has_table(task.f):  # which is read, at about the cost of an evaluation per entry
                    entries = getattr(E, "samples", evaluations) * (1 + factors.k)
                    evaluations = min(evaluations, entries)
                if evaluations > most:
                    needed = readable(evaluations)
                    reason = f"it needs {needed} evaluations, more than the budget of {most}"
            if reason is None:
                generator = task.generator(seed + number)
                self.arms[label(E)] = Arm(copied_to(E, task.device), evaluations, generator)
            else:
                self.skipped[label(E)] = reason
        self.alive = [*self.arms]

    def run(self) -> None:
        """Let the arms take turns until they are known or the time is over."""
        deferred: list[str] = []
        for name in sorted(self.alive, key=lambda name: self.arms[name].evaluations):
            is_long = FIRST_ROUNDS * self.predicted(name) > SHARE * self.time_left()
            if is_long and len(self.tried()) > 1:
                deferred.append(name)
            else:
                self.observe(name)
                self.leading = min(map(self.seconds, self.tried()), default=0.0)
        self.alive = [name for name in self.alive if name not in deferred]
        self.rounds(FIRST_ROUNDS - 1)
        self.measure_minibatch()
        for name in sorted(deferred, key=self._seconds_per_evaluation):
            self._try_late(name)
        for number, (rounds, factor) in enumerate(STAGES):
            if number:
                self.rounds(rounds - STAGES[number - 1][0])
            self.drop(factor)
            if number == 0 and self.step is not None:
                self._time_whole_steps()

    def rounds(self, count: int) -> None:
        """Let all arms make estimates in turn, while there is time; two have time in any case."""
        for _ in range(count):
            for name in [*self.alive]:
                if self.time_left() > 0 or len(self.tried(2)) < 2:
                    self.observe(name)

    def observe(self, name: str) -> None:
        """Let an arm make a step, and an estimate with it; one that fails is left out."""
        arm = self.arms[name]
        try:
            learns = isinstance(arm.E, nn.Module)  # its first estimate is like no other
            seconds = arm.observe(self.task, keep=bool(arm.times) or not learns)
            if self.times_whole_steps:
                seconds = self._whole_step(arm)
            arm.times.append(seconds)
        except ERRORS as error:
            # What went wrong comes first.
            self.skipped = {name: first_line(error).split(". ")[0]} | self.skipped
            self.alive.remove(name)
            del self.arms[name]

    def _try_late(self, name: str) -> None:
        """Try an arm with long steps, if it could win and there is time."""
        seconds, scores = self.predicted(name), self.scores()
        best = min(scores, key=lambda name: scores[name], default=None)
        self.leading = self.seconds(self.arms[best]) if best else self.leading
        if best and self.floor() * seconds > scores[best].value:
            self.skipped[name] = "too slow to win even without noise"
        elif self.time_left() < FIRST_ROUNDS * seconds:
            self.skipped[name] = "the pilot had no time for it"
        else:
            self.alive.append(name)
            for _ in range(FIRST_ROUNDS):
                if name in self.alive:
                    self.observe(name)

    def _seconds_per_evaluation(self, name: str) -> tuple[int, int]:
        """Return what orders late arms: with many draws first, if these are nearly free."""
        evaluations = max(1, self.arms[name].evaluations)
        return round(log2(max(1e-9, self.predicted(name)) / evaluations)), evaluations

    def _time_whole_steps(self) -> None:
        """From now on time the user's step, with the arms that are left. The first may compile."""
        self.times_whole_steps = True
        for name in [*self.alive]:
            self.observe(name)
        for name, arm in [*self.arms.items()]:
            arm.times.clear()
            if name in self.alive:
                self.observe(name)

    def _whole_step(self, arm: Arm) -> float:
        """Return the time of the user's training step, and restore the parameters after it."""
        step, leaves = self.step, self.task.leaves
        assert step is not None
        values = [(leaf.detach().clone(), leaf.grad) for leaf in leaves]
        # The graph of q is used again, so the versions of its leaves must not change.
        with versions_kept(leaves):
            try:
                for leaf in leaves:
                    leaf.grad = None
                return arm.timed(self.task, lambda: step(arm.E))[0]
            finally:
                with torch.no_grad():
                    for leaf, (value, gradient) in zip(leaves, values, strict=True):
                        leaf.copy_(value)
                        leaf.grad = gradient

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
        rows = [flat(gradients_in(part, task.parameters, retain=True)).double() for part in parts]
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

    def time_left(self) -> float:
        return self.deadline(self.leading) - self.task.clock()

    def seconds(self, arm: Arm) -> float:
        """Return the least time of an arm's step.

        RLOO takes no longer with fewer draws, and no more than twice as long with twice as many.
        """
        least = min(arm.times)
        if arm.E in LADDER:
            ladder = [other for other in self.tried() if other.E in LADDER]
            n = arm.evaluations
            least = min(min(o.times) * max(1.0, n / o.evaluations) for o in ladder)
        return least + self.rest + self.miss * arm.evaluations

    def predicted(self, name: str) -> float:
        """Return the seconds of an arm's step, from those of the arm with the most evaluations."""
        known = max(self.tried(), key=lambda arm: arm.evaluations, default=None)
        if known is None:
            return 0.0
        further = self.arms[name].evaluations - known.evaluations
        return self.seconds(known) + (self.per_point + self.miss) * max(0, further)

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
        signal = self.reference().shifted_norm2(self._penalty)
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
        smooth = {} if self.task.has_loss else ladder_variances(arms)
        scores = {}
        for name, arm in self.arms.items():
            if arm in arms:
                noise, error = smooth.get(id(arm), (variance_of(arm), arm.in_parameters.error))
                bias = BIAS_WEIGHT * self.squared_bias(arm) if self.task.has_loss else 0.0
                share = noise / (floor + noise) if 0 < noise < inf else 0.0
                value = (floor + noise + bias) * self.seconds(arm)
                # The spread of few estimates says little of their error.
                error = max(error, 2 / arm.in_parameters.count)
                scores[name] = Score(value, error * share)
        return scores

    def drop(self, factor: float) -> None:
        """Stop to observe arms that are worse than the best, by more than errors explain."""
        scores = self.scores()
        level = level_with_best(scores, factor)
        self.alive = [name for name in self.alive if name in level or name not in scores]


def variance_of(arm: Arm) -> float:
    """Return the variance, infinite if there were infinite gradients."""
    variance = arm.in_parameters.variance
    return variance if variance < inf else inf  # also where it is NaN


def level_with_best(scores: dict[str, Score], factor: float) -> list[str]:
    """Return the names of scores within this factor of the best, or within two standard errors."""
    if not scores:
        return []
    best = min(scores.values())
    return [
        name
        for name, (value, error) in scores.items()
        if value <= best.value * max(factor, exp(min(MOST_ERROR, 2 * hypot(error, best.error))))
    ]


def ladder_variances(arms: Sequence[Arm]) -> dict[int, tuple[float, float]]:
    """Return variances of RLOO with their errors, from all of its numbers of draws together.

    Its estimate is a U-statistic of pairs of draws, so n draws have the variance a / n +
    b / (n (n - 1)) with constants a and b that are not negative (Hoeffding, 1948). They are fitted
    by least squares, with residuals relative to the fit.
    """
    known = [arm for arm in arms if arm.E in LADDER and 0 < variance_of(arm) < inf]
    if len(known) < 3:
        return {}
    n = torch.tensor([float(arm.evaluations) for arm in known], dtype=torch.float64)
    measured = torch.tensor([variance_of(arm) for arm in known], dtype=torch.float64)
    counts = torch.tensor([float(arm.in_parameters.count) for arm in known], dtype=torch.float64)
    basis, fit = torch.stack([1 / n, 1 / (n * (n - 1))], 1), measured
    for _ in range(3):
        weights = counts.sqrt() / fit
        pair = torch.linalg.lstsq(basis * weights[:, None], weights * measured).solution
        if bool((pair < 0).any()):
            kept = int(pair.argmax())
            column = basis[:, kept] * weights
            pair = torch.zeros(2, dtype=torch.float64)
            pair[kept] = column @ (weights * measured) / (column @ column)
        fit = basis @ pair
    precision = sum(arm.in_parameters.error**-2 for arm in known)
    error = (2 / precision) ** 0.5
    return {id(arm): (float(v), error) for arm, v in zip(known, fit, strict=True)}
