"""Which estimator, with which settings? A short pilot on one's own f and q decides."""

import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from math import ceil, exp, inf, prod, sqrt
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import check_count
from ..distributions.factors import Factors
from ..estimator import RELAXABLE, Estimator, Function, Kind, label
from ..estimators import (
    ARMS,
    DARN,
    LEG,
    RAM,
    RLOO,
    CritiCateR,
    DoubleCV,
    Exact,
    GumbelSoftmax,
    IndeCateR,
    MuProp,
    ReinMax,
    SlopeCateR,
    StraightThrough,
)
from ..estimators.relaxations.relaxation import to_point
from ..evaluation.evaluate import value_and_slope
from ..sampling.draw import draw
from .gradient_samples import Clock, GradientSampler, Law
from .moments import Moments
from .sizing import why_unsuitable, with_samples, within_budget

FEWEST_POINTS = 4096  # that Exact may visit where no budget is given
LEAST_BUDGET = 64
TOGETHER = 2**12  # evaluations of f in one vectorised call of the pilot, about
FIRST, FEWEST = (
    16,
    4,
)  # repeats of the first vectorised call; below the latter they are made one by one
MOST = 256  # repeats of any
ENOUGH = 8  # repeats that tell something of the spread of their distances from the mean
SURE, CONFIRMATIONS = (
    0.25,
    6,
)  # the best is looked at again until its variance is known so well, at most so many times
LONGER = (
    1.1  # times what it was given, after which the pilot makes no more than a few steps for that
)
RARE = 64  # fewer estimates, where more are cheap, may have missed what is rare and large
ROUNDS = (
    (0.3, 1),
    (0.12, 2),
    (0.06, 3),
)  # the relative error of the variance to reach, and timed steps to make


@dataclass(frozen=True)
class Structure:
    """What can be known of f and q before any estimate.

    kind: of the law, as estimators' ``supports`` calls it. d, cardinalities, batch: of the law.
    own_table: f knows its neighbours (:mod:`catlog.functions`).
    slope: f has a derivative in x at points of the law; relaxed: also between them, where it is finite.
    budget: evaluations per step. bounded: whether the user gave it.
    evaluation_seconds: of one call of f at one point (per batch element).
    """

    kind: Kind
    cardinalities: tuple[int, ...]
    batch: int
    own_table: bool
    slope: bool
    relaxed: bool
    budget: int
    bounded: bool
    evaluation_seconds: float

    @property
    def d(self) -> int:
        return len(self.cardinalities)

    @property
    def points(self) -> int:
        return prod(self.cardinalities)

    @property
    def table(self) -> int:
        """Evaluations of IndeCateR with one draw."""
        return 1 + sum(self.cardinalities) - self.d

    def __str__(self) -> str:
        sizes = sorted(set(self.cardinalities))
        words = {
            Kind.BITS: "independent bits",
            Kind.STRUCTURED: "dependent variables",
        }.get(self.kind, "independent variables")
        of = (
            ""
            if self.kind == Kind.BITS
            else f" of {sizes[0]}" + (f" to {sizes[-1]}" if len(sizes) > 1 else "") + " categories"
        )
        batch = f", {self.batch} laws" if self.batch > 1 else ""
        table = (
            "knows its own table"
            if self.own_table
            else "is a black box"
            if not self.slope
            else "has a derivative in x"
        )
        more = ", also at relaxed points" if self.relaxed and not self.own_table else ""
        return f"q: {self.d} {words}{of}{batch}. f {table}{more}; alone, an evaluation takes {_duration(self.evaluation_seconds)}."


def _always(structure: Structure) -> bool:
    return True


@dataclass(frozen=True)
class Candidate:
    """An estimator to try, with as many draws as the budget allows.

    estimator: the prototype; a copy is used. Laws that it is not for, and an f without the derivative that it needs, are
        found out from its own contract.
    when: what else must be known for it to be worth a try.
    coefficients: numbers among its parameters in which its gradient is affine: they are fitted to the pilot's draws.
    dear: its own arithmetic may cost more than f and grows faster than its draws. It is timed with an eighth of them first, and
        left where that takes longer than half a step of the best.
    promising: it is looked at even where that takes all of the pilot's time.
    """

    estimator: Estimator
    when: Callable[[Structure], bool] = _always
    coefficients: tuple[str, ...] = ()
    dear: bool = False
    promising: bool = False


def _more_variables_than(m: int) -> Callable[[Structure], bool]:
    """Where f has its own table, all variables cost what m do, and IndeCateR with all is the mean of that with m."""
    return lambda structure: structure.d > m and not structure.own_table


def _black_box_larger_than(m: int) -> Callable[[Structure], bool]:
    return lambda structure: structure.d > m and not structure.slope and not structure.own_table


# In the order in which they are tried. Add yours: advise(..., candidates=[*CANDIDATES, Candidate(Mine())]).
CANDIDATES: tuple[Candidate, ...] = (
    Candidate(Exact()),
    Candidate(IndeCateR(draws="latin")),
    Candidate(SlopeCateR(), promising=True),
    Candidate(IndeCateR(draws="latin", variables=1), _more_variables_than(1)),
    Candidate(RLOO()),
    Candidate(IndeCateR(draws="latin", variables=4), _more_variables_than(4)),
    Candidate(DoubleCV(), coefficients=("alpha",)),
    Candidate(MuProp(), lambda structure: structure.relaxed),
    Candidate(IndeCateR(draws="latin", variables=1, control="none"), _black_box_larger_than(1)),
    Candidate(IndeCateR(draws="latin", variables=4, control="none"), _black_box_larger_than(4)),
    Candidate(IndeCateR(draws="latin", per_variable=True), lambda structure: structure.d > 1),
    Candidate(ARMS()),
    Candidate(RAM(), lambda structure: structure.kind == Kind.STRUCTURED),
    Candidate(LEG(), lambda structure: structure.kind == Kind.STRUCTURED),
    Candidate(CritiCateR(), dear=True),
    Candidate(StraightThrough()),
    Candidate(GumbelSoftmax(temperature=0.5), lambda structure: structure.relaxed),
    Candidate(GumbelSoftmax(temperature=0.5, hard=True), lambda structure: structure.relaxed),
    Candidate(ReinMax(), lambda structure: structure.relaxed),
    Candidate(DARN(), lambda structure: structure.relaxed),
)


@dataclass
class Trial:
    """What the pilot saw of one candidate."""

    name: str
    estimator: Estimator
    evaluations: int
    candidate: Candidate
    seen: Moments = field(default_factory=Moments)
    times: list[float] = field(default_factory=list)
    per_repeat: float = 0.0
    variance: float = inf
    dimensions: float = 1.0
    error: float = 1.0  # of the variance, relative to it

    def add(self, gradients: Tensor) -> None:
        self.seen.add(gradients)
        self.variance, self.dimensions = self.seen.variance, self.seen.dimensions
        if not bool(self.seen.mean.any()) and self.estimator.randomness:
            self.variance = inf  # nothing but zeros: f, where it differs, has not been met
        if self.variance == 0:  # may be chance: there are only so many outcomes
            self.error = 0.0 if self.seen.count >= ENOUGH or not self.estimator.randomness else 1.0
        elif self.seen.count < 2 or self.variance == inf:
            self.error = 1.0
        else:  # as if the estimates were normal, since few do not tell their tails; enough of them do, in part
            self.error = sqrt(2 / (self.dimensions * (self.seen.count - 1)))
            if self.seen.count >= ENOUGH:
                self.error = max(self.error, self.seen.error)

    def missing(self, error: float) -> int:
        """How many more estimates would make the relative error of the variance so small."""
        return max(
            0,
            min(MOST, ceil((self.seen.count - 1) * (self.error / error) ** 2) + 1)
            - self.seen.count,
        )

    @property
    def seconds(self) -> float:
        """The quickest of the timed steps: what disturbs a step makes it slower."""
        return min(self.times)

    def error2(self, reference: "Trial | None") -> float:
        """The variance; of a biased estimator the mean squared error, where there is something to compare with."""
        if self.estimator.unbiased:
            return self.variance
        if reference is None:
            return inf
        gap = float((self.seen.mean - reference.seen.mean).square().sum())
        noise = self.variance / self.seen.count + reference.variance / reference.seen.count
        return self.variance + max(0.0, gap - noise)


@dataclass(frozen=True)
class Advice:
    """The estimator to use, and why.

    estimator: ready to be used; one that learns starts from what the pilot found.
    explanation: a few lines; also ``print(advice)``.
    seconds: what the pilot took; step_seconds: the time of a step with the chosen estimator (law, estimate, gradients).
    trials: what was seen of every candidate, best first; skipped: why others were not tried.
    """

    estimator: Estimator
    explanation: str
    seconds: float
    step_seconds: float
    trials: tuple[Trial, ...] = field(repr=False)
    skipped: dict[str, str] = field(repr=False)
    structure: Structure

    def __str__(self) -> str:
        return self.explanation


def advise(
    f: Function,
    q: Law,
    parameters: Sequence[Tensor] | None = None,
    *,
    budget: int | None = None,
    biased: bool = False,
    steps: float = 30,
    candidates: Sequence[Candidate] = CANDIDATES,
    seed: int = 0,
    clock: Clock = time.perf_counter,
) -> Advice:
    r"""The estimator with the lowest variance x time on f and q at hand, found by a short pilot.

    What a gradient of given precision costs is variance x time: twice the draws, or twice the steps, halve one and double the
    other. The pilot measures both for every candidate that fits the law, f and the budget, with few repeats at first and
    more for those that are still in the running: after each round at most half of them go on, and none that is surely worse
    than the best. It ends when one is left or when it has taken as long as ``steps`` training steps with the best so far.
    Repeats are one more batch dimension, so that for a cheap f many of them take little longer than one.

    Args:
        f, q, parameters: as in :func:`catlog.compare`.
        budget: the most evaluations of f per step (and batch element). A function that knows its own table
            (:mod:`catlog.functions`) counts as 1 + k evaluations per draw of IndeCateR. None: what IndeCateR needs for two
            draws, at least 64, and up to 4096 for :class:`Exact`.
        biased: allow biased estimators, by their mean squared error x time.
        steps: the pilot takes about as long as so many training steps, under 5 % of a run of 1000; the first two candidates are
            tried in any case, and what looks best is looked at again where few estimates may have flattered it.
        candidates: what is tried, in this order.
        seed: of the pilot's draws.
        clock: returns seconds.

    >>> from torch.distributions import Categorical, Independent
    >>> from catlog.functions import Additive
    >>> f = Additive(torch.arange(60.0).view(20, 3))
    >>> advice = advise(f, Independent(Categorical(logits=torch.zeros(20, 3)), 1))
    >>> E = advice.estimator
    >>> type(E).__name__, advice.trials[0].variance
    ('IndeCateR', 0.0)
    """
    if budget is not None:
        check_count("advise", "budget", budget)
    if not steps > 0:
        raise ValueError(f"advise: `steps` must be positive, but {steps} was given.")
    start = clock()
    task = GradientSampler(f, q, parameters)
    structure = structure_of(task, budget, clock)
    trials, skipped = listed(task, structure, candidates, biased)
    pilot = _Pilot(task, task.generator(seed), clock, start, steps)
    trials = _explored(pilot, trials, skipped)
    best = _chosen(pilot, trials)
    merit = _merits(trials)
    order = [
        best,
        *sorted(
            (trial for trial in trials if trial is not best), key=lambda trial: merit[trial.name]
        ),
    ]
    seconds = clock() - start
    return Advice(
        estimator=best.estimator,
        explanation=_explained(order, merit, structure, skipped, seconds),
        seconds=seconds,
        step_seconds=median(best.times),
        trials=tuple(order),
        skipped=skipped,
        structure=structure,
    )


def _explored(pilot: "_Pilot", trials: list[Trial], skipped: dict[str, str]) -> list[Trial]:
    """All that could be observed; the others are added to ``skipped``."""
    left = list(trials)
    for number, (error, timed) in enumerate(ROUNDS):
        for place, trial in enumerate(left):
            try:
                if number == 0:
                    pilot.look(trial, error, pilot.left(trials))
                    if (
                        trial.variance == 0
                        and (exact := pilot.with_fewest_draws(trial)) is not None
                    ):
                        skipped |= {
                            each.name: f"{exact.name} has no variance" for each in left[place + 1 :]
                        }
                        found = [each for each in trials if each.times] + [exact]
                        return found + pilot.cheaper(left[place + 1 :], exact)
                else:
                    share = pilot.left(trials) / ((len(left) - place) * (len(ROUNDS) - number))
                    pilot.observe(trial, error, timed, share)
            except (ValueError, TypeError, RuntimeError, NotImplementedError) as problem:
                skipped[trial.name] = str(problem).split("\n")[0].rstrip(".")
                trial.times.clear()
        trials = [trial for trial in trials if trial.times]
        if not trials:
            reasons = "; ".join(f"{name}: {why}" for name, why in skipped.items())
            raise ValueError(f"advise: no candidate could be used. {reasons}.")
        merit = _merits(trials)
        ranked = sorted(
            (trial for trial in left if trial.times), key=lambda trial: merit[trial.name]
        )
        close = [
            trial
            for trial in ranked
            if merit[trial.name] <= merit[ranked[0].name] * _doubt(trial, ranked[0])
        ]
        left = close[: max(1, (len(left) + 1) // 2)]
        if len(left) == 1:
            break
    return trials


def _chosen(pilot: "_Pilot", trials: list[Trial]) -> Trial:
    """The best, looked at again: few estimates flatter the one that looks best."""
    for _ in range(CONFIRMATIONS):
        merit = _merits(trials)
        first = min(trials, key=lambda trial: merit[trial.name])
        late = pilot.left(trials, LONGER) < 0
        ahead = all(
            merit[each.name] > merit[first.name] * _doubt(first, each)
            for each in trials
            if each is not first
        )
        sure = first.error <= SURE or (ahead and first.seen.count >= FEWEST)
        if not first.estimator.randomness or (sure and (late or not pilot.may_miss(first))):
            break
        pilot.confirm(first, late)
    merit = _merits(trials)
    return min(trials, key=lambda trial: merit[trial.name] * exp(trial.error))


@dataclass
class _Pilot:
    """What observing a candidate needs, and whether there is time for it."""

    task: GradientSampler
    generator: torch.Generator
    clock: Clock
    start: float
    steps: float

    best: float = 0.0  # seconds of a step with the best so far
    dense: bool = False  # repeats together cost about as much as one by one

    def left(self, trials: Sequence[Trial], longer: float = 1.0) -> float:
        """The time that is left, which depends on how long a step with the best takes; no end where two are not known yet."""
        known = [each for each in trials if each.times]
        if len(known) < 2:
            return inf
        merit = _merits(known)
        self.best = min(known, key=lambda each: merit[each.name]).seconds
        return longer * self.steps * self.best - (self.clock() - self.start)

    def look(self, trial: Trial, error: float, left: float) -> None:
        """The first observation: a timed step, and, unless that shows that the rest would take too long, a few estimates."""
        E, task = trial.estimator, self.task
        late = ValueError("the pilot had no time for it")
        if left < 3 * self.best or (trial.candidate.dear and not self._quick(trial)):
            raise late
        most = self._most(trial)
        alone = self._alone(trial)
        repeats = 2 if alone else min(FIRST, most)
        step = task.timer(E, self.clock, self.generator)
        seconds, gradient = step()
        trial.times.append(seconds)
        learns = isinstance(E, nn.Module) and any(True for _ in E.buffers())
        further = 0 if not E.randomness else 2 * (1 + len(trial.candidate.coefficients)) + learns
        if further * trial.seconds > (left if trial.candidate.promising else left / 2):
            raise late
        if learns:  # by being called: the first gradient was that of one that knew nothing
            seconds, gradient = step()
            trial.times.append(seconds)
        if not E.randomness:
            trial.add(torch.stack([gradient, gradient]))  # the same each time
        elif trial.candidate.coefficients:
            self._fit(trial, repeats)  # the step had other coefficients
        elif alone:
            seconds, another = step()
            trial.times.append(seconds)
            trial.add(torch.stack([gradient, another]))
            if trial.dimensions < FEWEST and not trial.candidate.dear:
                self._timed(
                    trial, step, min(3, trial.missing(error))
                )  # few numbers to tell the variance from
        else:
            self._together(trial, repeats)
            trial.add(gradient.unsqueeze(0))
            self.dense = trial.per_repeat > trial.seconds / 2
            if not self.dense:
                self._until(trial, error, min(left / 6, 6 * trial.seconds))

    def observe(self, trial: Trial, error: float, timed: int, share: float) -> None:
        """Timed steps, which are estimates, too, and further estimates until the error is reached or the time is up."""
        if share < timed * trial.seconds or not trial.estimator.randomness:
            return
        step = self.task.timer(trial.estimator, self.clock, self.generator)
        self._timed(trial, step, timed)
        share -= timed * trial.seconds
        if self._alone(trial):
            self._timed(trial, step, max(0, min(trial.missing(error), int(share / trial.seconds))))
        else:
            self._until(trial, error, share)

    def confirm(self, trial: Trial, late: bool) -> None:
        """Two more steps and, unless it is late, estimates together where these are cheap."""
        self._timed(trial, self.task.timer(trial.estimator, self.clock, self.generator), 2)
        if not late and self.may_miss(trial):
            self._together(trial, min(RARE, self._most(trial)))
        elif not self._alone(trial):
            self._until(trial, SURE, 2 * trial.seconds)

    def may_miss(self, trial: Trial) -> bool:
        """Whether too few estimates were seen to be sure of the variance, and more of them cost little."""
        return not self._alone(trial) and trial.seen.count < RARE and trial.variance > 0

    def _most(self, trial: Trial) -> int:
        """Estimates that one call may make."""
        return min(MOST, TOGETHER // max(1, trial.evaluations * self.task.view.batch_size))

    def _alone(self, trial: Trial) -> bool:
        """Whether estimates are made one by one."""
        return (
            self.dense
            or trial.candidate.dear
            or not self.task.vectorised
            or self._most(trial) < FEWEST
        )

    def _quick(self, trial: Trial) -> bool:
        """Whether a step with an eighth of the draws takes no longer than half a step of the best."""
        E = with_samples(trial.estimator, max(2, getattr(trial.estimator, "samples", 2) // 8))
        step = self.task.timer(E, self.clock, self.generator)
        return min(step()[0], step()[0]) <= self.best / 2

    def _timed(self, trial: Trial, step: Callable[[], tuple[float, Tensor]], times: int) -> None:
        took = [step() for _ in range(times)]
        if took:
            trial.times += [seconds for seconds, _ in took]
            trial.add(torch.stack([gradient for _, gradient in took]))

    def _until(self, trial: Trial, error: float, share: float) -> None:
        """Estimates together, until the error is reached or the time is up."""
        more, most = trial.missing(error), self._most(trial)
        if trial.per_repeat > 0 and share < inf:
            more = min(more, int(share / trial.per_repeat))
        while more > 0:
            self._together(trial, min(more, most))
            more -= most

    def cheaper(self, trials: Sequence[Trial], than: Trial) -> list[Trial]:
        """What has no variance either, with the fewest draws, and takes less time than that; as long as there is time."""
        found = []
        for trial in trials:
            if self.clock() - self.start > self.steps * than.seconds:
                break
            if (fewer := self.with_fewest_draws(trial, than.seconds)) is not None:
                found.append(fewer)
        return found

    def with_fewest_draws(self, trial: Trial, below: float = inf) -> Trial | None:
        """Where there is no variance, further draws are for nothing: the estimator with the fewest, if it has none either.

        ``below``: the seconds that a step may take.
        """
        E, q = trial.estimator, self.task.q
        if not E.randomness or isinstance(E, nn.Module):
            return None
        least = E.evaluations(q) // max(1, getattr(E, "samples", 1))
        for budget in (least, 2 * least):
            try:
                E = within_budget(trial.estimator, q, budget)
            except ValueError:
                continue
            fewer = Trial(label(E), E, E.evaluations(q), trial.candidate)
            step = self.task.timer(E, self.clock, self.generator)
            self._timed(fewer, step, 2)
            if fewer.variance > 0 or fewer.seconds > below:
                return None
            if self._alone(fewer):
                self._timed(fewer, step, ENOUGH - 2)
            else:
                self._together(fewer, ENOUGH)
            return fewer if fewer.variance == 0 else None
        return None

    def _together(self, trial: Trial, repeats: int) -> None:
        start = self.clock()
        trial.add(self.task.gradients(trial.estimator, repeats, self.generator)[0])
        trial.per_repeat = (self.clock() - start) / repeats

    def _fit(self, trial: Trial, repeats: int) -> None:
        r"""Coefficients c of :math:`g_0 + \sum_i c_i g_i` for the least variance, from estimates with common draws."""
        E, task, names = trial.estimator, self.task, trial.candidate.coefficients
        assert isinstance(E, nn.Module)
        own: list[nn.Parameter] = [getattr(E, name) for name in names]
        state, start = self.generator.get_state(), self.clock()

        def at(values: Sequence[float]) -> Tensor:
            self.generator.set_state(state)
            with torch.no_grad():
                for parameter, value in zip(own, values, strict=True):
                    parameter.fill_(value)
            return task.gradients(E, repeats, self.generator)[0].double()

        base = at([0.0] * len(own))
        parts = torch.stack(
            [at([float(i == j) for j in range(len(own))]) - base for i in range(len(own))]
        )
        centred, noise = parts - parts.mean(1, keepdim=True), base - base.mean(0)
        gram = torch.einsum("irp,jrp->ij", centred, centred)
        right = -torch.einsum("irp,rp->i", centred, noise)
        found = torch.linalg.lstsq(gram, right.unsqueeze(-1)).solution.squeeze(-1)
        with torch.no_grad():
            for parameter, value in zip(own, found.tolist(), strict=True):
                parameter.fill_(value)
        trial.add(base + torch.einsum("i,irp->rp", found, parts))
        trial.per_repeat = (self.clock() - start) / (repeats * (1 + len(own)))


def structure_of(task: GradientSampler, budget: int | None, clock: Clock) -> Structure:
    law, generator = task.view, task.generator(0)
    x = draw(law, 2, generator=generator)
    with torch.no_grad():
        task.f(x.clone())
        start = clock()
        task.f(x[:1].clone())
        seconds = (clock() - start) / max(1, law.batch_size)
    slope = relaxed = False
    if isinstance(law, Factors) and law.kind in RELAXABLE:
        slope = _differentiable(task.f, x, law)
        middle = to_point(law, law.probs.detach()).to(law.dtype).unsqueeze(0)
        relaxed = slope and _differentiable(task.f, torch.cat([middle, (middle + x) / 2]), law)
    table = 1 + sum(law.cardinalities) - law.d
    return Structure(
        kind=task.kind,
        cardinalities=law.cardinalities,
        batch=law.batch_size,
        own_table=hasattr(task.f, "neighbours"),
        slope=slope,
        relaxed=relaxed,
        budget=max(LEAST_BUDGET, 2 * table) if budget is None else budget,
        bounded=budget is not None,
        evaluation_seconds=seconds,
    )


def _differentiable(f: Function, x: Tensor, law: Factors) -> bool:
    """Whether f can be evaluated at x, and has a derivative there that is finite and not zero throughout."""
    try:
        fx, slope = value_and_slope(f, x, law)
    except Exception:  # f was not written for that; what it raises is its own affair
        return False
    return bool(fx.isfinite().all() and slope.isfinite().all() and (slope != 0).any())


def listed(
    task: GradientSampler, structure: Structure, candidates: Sequence[Candidate], biased: bool
) -> tuple[list[Trial], dict[str, str]]:
    """Candidates that fit, sized to the budget, and why the others do not."""
    trials: dict[str, Trial] = {}
    skipped: dict[str, str] = {}
    for candidate in candidates:
        E = candidate.estimator
        try:
            if not (E.unbiased or biased):
                raise ValueError("it is biased; biased=True allows it")
            if why := why_unsuitable(E, structure.kind):
                raise ValueError(why)
            if E.differentiates_f and not structure.slope:
                raise ValueError("f has no derivative in x")
            if not candidate.when(structure):
                raise ValueError("it is not worth a try here")
            allowed = (
                max(structure.budget, 0 if structure.bounded else FEWEST_POINTS)
                if not E.randomness
                else structure.budget
            )
            E = within_budget(E, task.q, allowed, _cost(task, structure))
            name = label(E)
            trials.setdefault(
                name,
                Trial(
                    name,
                    E if hasattr(E, "samples") else deepcopy(E),
                    E.evaluations(task.q),
                    candidate,
                ),
            )
        except (ValueError, TypeError) as error:
            skipped[label(E)] = str(error).rstrip(".")
    if not trials:
        reasons = "; ".join(f"{name}: {why}" for name, why in skipped.items())
        raise ValueError(
            f"advise: no candidate fits q, f and the budget of {structure.budget} evaluations. {reasons}."
        )
    return list(trials.values()), skipped


def _cost(task: GradientSampler, structure: Structure) -> Callable[[Estimator], int]:
    def cost(E: Estimator) -> int:
        if structure.own_table and isinstance(E, IndeCateR):
            return E.rows(task.q) * (1 + max(structure.cardinalities))
        return E.evaluations(task.q)

    return cost


def _merits(trials: Sequence[Trial]) -> dict[str, float]:
    """Mean squared error x time. Without any variance the time alone decides: rounding stands in for it."""
    unbiased = [trial for trial in trials if trial.estimator.unbiased]
    reference = min(unbiased, key=lambda trial: trial.variance / trial.seen.count, default=None)
    floor = torch.finfo(torch.float32).eps ** 2 * (reference or trials[0]).seen.norm2 or 1e-300
    return {trial.name: max(trial.error2(reference), floor) * trial.seconds for trial in trials}


def _doubt(one: Trial, other: Trial) -> float:
    """How many times worse an estimator may look than another without being so: two standard errors, and 10 % for the times."""
    return 1.1 * exp(2 * sqrt(one.error**2 + other.error**2))


def _explained(
    order: Sequence[Trial],
    merit: dict[str, float],
    structure: Structure,
    skipped: dict[str, str],
    seconds: float,
) -> str:
    best = order[0]
    step = median(best.times)
    why = f"variance {best.variance:.3g}" if best.variance else "no variance at all"
    if best.variance == inf:
        why = "but the pilot saw no gradient other than zero, so this is a guess: give it a larger budget or more steps"
    bias = "" if best.estimator.unbiased else ", biased"
    lines = [
        f"{best.name}: {best.evaluations} evaluations, {_duration(step)} per step, {why}{bias}.",
        str(structure),
    ]
    others = [
        f"{each.name} at {_times(merit[each.name] / merit[best.name])}" for each in order[1:4]
    ]
    if others and best.variance < inf:
        lines.append(f"Next in variance x time: {', '.join(others)}.")
    tried = f"{len(order)} candidates" if len(order) > 1 else "1 candidate"
    limit = "the budget of" if structure.bounded else "at most"
    cost = f"{_duration(seconds)}, as long as {seconds / step:.0f} steps"
    lines.append(f"Pilot: {tried} within {limit} {structure.budget} evaluations, {cost}.")
    return "\n".join(lines)


def _times(ratio: float) -> str:
    return f"{ratio:.2g} times" if ratio < 1000 else "over 1000 times"


def _duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


__all__: list[Any] = ["CANDIDATES", "Advice", "Candidate", "Structure", "Trial", "advise"]
