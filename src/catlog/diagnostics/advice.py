"""Which estimator trains fastest on f and q? A short pilot decides."""

# Keeps the signature short in `help`: names of types, not what they stand for.
from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, nan, sqrt
from numbers import Real

import torch
from torch import Tensor

from ..core.checks import check_count
from ..core.estimator import Estimator
from ..core.evaluator import Function
from ..core.left_alone import left_alone
from .arms import AnyEstimator, as_estimator, joined_reasons
from .pilot import LADDER, Pilot, Step, level_with_best, variance_of
from .task import Clock, DistributionLike, Loss, Penalty, Task

LEVEL = 1.3  # times the best score: what a race to a target could hardly tell apart
FREE = 1.5  # times the seconds of the quickest RLOO among them: more draws at little cost
ZERO = "all of its gradients were zero"


@dataclass(frozen=True)
class Trial:
    """What was measured of a candidate.

    Attributes:
        name: its repr.
        estimator: after what it learned in the pilot.
        evaluations: of f per estimate and batch element.
        repeats: the number of estimates.
        seconds: the least time of a step.
        variance: of its gradient, summed over the parameters.
        bias: the distance of the mean gradient from the best unbiased one, minus the noise in it;
            0 if the estimator is unbiased.
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
    bias: float
    times_as_long: float
    error: float
    is_level: bool


@dataclass(frozen=True)
class Advice:
    """The estimator to use, and why.

    Attributes:
        estimator: ready to be used. If it learns, it starts from what the pilot found.
        trials: what was measured of every unbiased candidate, in the order in which level ones are
            named.
        biased: the same of biased ones, which are not ranked.
        skipped: why other candidates were not tried.
        seconds: the time that the pilot took.
        explanation: a few lines, also given by ``print(advice)``.
    """

    estimator: AnyEstimator
    trials: tuple[Trial, ...] = field(repr=False)
    biased: tuple[Trial, ...] = field(repr=False)
    skipped: dict[str, str] = field(repr=False)
    seconds: float
    explanation: str = field(repr=False)

    def __str__(self) -> str:
        return self.explanation


def advise(
    f: Function,
    q: DistributionLike,
    parameters: Tensor | Sequence[Tensor] | None = None,
    *,
    budget: int | None = None,
    biased: bool = False,
    loss: Loss | None = None,
    penalty: Penalty | None = None,
    step: Step | float | None = None,
    steps: float = 30,
    seconds: float = 2.0,
    candidates: Sequence[str | AnyEstimator] | None = None,
    seed: int = 0,
    clock: Clock = time.perf_counter,
) -> Advice:
    r"""Find the estimators that train fastest on f and q, in a short pilot.

    For a given progress, training takes a time that is about proportional to

    .. math::
        \bigl(10\, \lVert g \rVert^2 + \sigma^2 + \text{variance}\bigr)
        \times \text{seconds per step}

    where g is the gradient, summed over the batch, :math:`\sigma^2` is the noise in it that comes
    from the choice of the minibatch, and the variance is that of the estimator. The first term is
    the cost of a step without noise, which less noise cannot reduce: momentum averages the noise of
    about 10 steps. So once the noise is small compared with the gradient, or with the noise of the
    minibatch, more precision is worth nothing. If the estimator's variance dominates, the score is
    variance x time (McCandlish et al., "An empirical model of large-batch training", 2018, section
    2.2).

    The candidates make one estimate each, in turn, up to 256 times. After 4 rounds, and again
    later, those that are far behind are left out. The time of a step is the least of all rounds.
    Most often a few candidates are level, within 30 % or within the error of the pilot. All of them
    are named. The choice is an RLOO, if one is level: with the most draws that cost little, at most
    1.5 times the seconds of the quickest level one. For noise that seems harmless at the start of
    training hurts later. So the choice is the same in most calls, although the scores are not. The
    same seed makes the same draws.

    Nothing else changes, even if the pilot is interrupted: parameters, gradients, torch's random
    number generators and the buffers of the modules that f, q and ``step`` refer to (running
    statistics of BatchNorm) are left as they were.

    The pilot sees f and q as they are now. At the start of training the gradient is often long, and
    noise that will hurt later seems harmless. So ask again after a few epochs.

    Args:
        f, q, parameters: as in :func:`catlog.compare`. Noise of the minibatch is counted if the
            batch of q is computed from shared parameters, as by a network.
        budget: the most evaluations of f per step and batch element. None: what IndeCateR needs for
            two draws, at least 64. Only within the budget are all points enumerated.
        biased: also measure :class:`ReinMax` and hard Gumbel-Softmax. They are an option to try,
            never the answer: no pilot can see whether training with them arrives.
        loss: what you do with the value, if the loss is no weighted sum of values, such as
            ``lambda value: -value.log()``. It maps tensors element by element. The noise of the
            value then counts as well, and the bias that it makes.
        penalty: what you add to the loss of each batch element, as a function of q that returns one
            number per element: ``lambda q: kl_divergence(q, prior)``. Without it, the gradient g is
            that of E[f] alone. It may be longer than that of your loss, if the two terms partly
            cancel, as in an autoencoder; then the same noise hurts more.
        step: your training step. Either a callable that makes one step with the estimator that it
            gets, which is simply timed; its first call may compile, and is not counted. The
            parameters of q and f are restored, but not the state of your optimiser, so give it one
            that you do not need. Or the seconds that a step takes apart from the estimate and its
            gradients. None: only these are timed.
        steps: the pilot takes at most about as long as this many training steps,
        seconds: or this long, if that is longer. Two candidates are tried in any case.
        candidates: the estimators to try, or their reprs; None: those of the table on the page
            "Compare and advise".
        seed: the seed of the pilot's draws.
        clock: a function that returns seconds.

    >>> import torch
    >>> from torch.distributions import Categorical, Independent
    >>> from catlog.functions import Additive
    >>> f = Additive(torch.arange(60.0).view(20, 3))
    >>> advice = advise(f, Independent(Categorical(logits=torch.zeros(20, 3)), 1))
    >>> E = advice.estimator
    >>> min(trial.times_as_long for trial in advice.trials)
    1.0
    """
    if budget is not None:
        check_count("advise", "budget", budget)
    if not steps > 0:
        raise ValueError(f"advise: `steps` must be positive, but {steps} was given.")
    if not seconds >= 0:
        raise ValueError(f"advise: `seconds` must be at least 0, but {seconds} was given.")
    if not (step is None or callable(step) or (isinstance(step, Real) and step >= 0)):
        raise ValueError(
            f"advise: `step` must be a callable or seconds of at least 0, but {step!r} was given."
        )
    chosen = [candidates] if isinstance(candidates, str | Estimator) else candidates
    if chosen is not None and not chosen:
        raise ValueError(
            "candidates: at least one is needed, but none was given. Leave the argument out for "
            "the usual ones."
        )
    start = clock()
    with left_alone(f, q, loss, penalty, step):
        torch.manual_seed(seed)
        task = Task(f, q, parameters, loss, penalty, clock)
        pilot = Pilot(task, step, lambda least: start + max(seconds, steps * least))
        pilot.enter([as_estimator(E, "candidates") for E in chosen or ()], budget, biased, seed)
        pilot.run()
        return _advice(pilot, clock() - start)


def _advice(pilot: Pilot, seconds: float) -> Advice:
    scores = pilot.scores()
    is_known = any(score.value < inf for score in scores.values())
    reasons = {}
    for name, arm in pilot.arms.items():
        if arm.in_parameters.count < 2:
            reasons[name] = "the pilot had no time for it"
        elif not arm.times:
            reasons[name] = "far behind, before its whole step was timed"
        elif arm.E.unbiased and name not in scores:
            reasons[name] = ZERO
        elif arm.E.unbiased and not is_known:
            reasons[name] = "its gradient is NaN or infinite"
        elif not scores:
            reasons[name] = "biased, and judged by unbiased ones only. Add RLOO(4)"
    skipped = {name: why.split(". ")[0] for name, why in pilot.skipped.items()} | reasons
    if not is_known:
        ours = {name: why for name, why in reasons.items() if "no time" not in why} | skipped
        raise ValueError(f"advise: no candidate could be used. {joined_reasons(ours)}.")
    best = min(scores.values()).value
    level = level_with_best(scores, LEVEL)
    trials = [
        Trial(
            name=name,
            estimator=arm.E,
            evaluations=arm.evaluations,
            repeats=arm.in_parameters.count,
            seconds=pilot.seconds(arm),
            variance=variance_of(arm),
            bias=0.0 if arm.E.unbiased else sqrt(pilot.squared_bias(arm)),
            times_as_long=scores[name].value / best if name in scores else nan,
            error=scores[name].error if name in scores else nan,
            is_level=name in level,
        )
        for name, arm in pilot.arms.items()
        if name not in skipped
    ]
    ranked = tuple(trial for trial in trials if trial.estimator.unbiased)
    biased = tuple(trial for trial in trials if not trial.estimator.unbiased)
    # What is listed as slower never beats the choice.
    most = min((trial.times_as_long for trial in ranked if not trial.is_level), default=inf)
    level_ones = [trial for trial in ranked if trial.is_level and trial.times_as_long <= most]
    family = type(LADDER[0])
    ladder = [trial for trial in level_ones if type(trial.estimator) is family]
    quickest = min((trial.seconds for trial in ladder), default=inf)
    free = [trial for trial in ladder if trial.seconds <= FREE * quickest]
    fastest = min(ranked, key=lambda trial: trial.times_as_long)
    choice = max(free, key=lambda trial: trial.evaluations, default=fastest)
    lines = [
        *_ranking(choice, ranked, seconds),
        *_noise(pilot, choice, skipped),
        *_options(pilot, choice, biased),
    ]
    if skipped:
        left_out = [
            f"{', '.join(name for name, why in skipped.items() if why == reason)} ({reason})"
            for reason in dict.fromkeys(skipped.values())
        ]
        lines.append(f"Not tried: {'; '.join(left_out)}.")
    return Advice(choice.estimator, ranked, biased, skipped, seconds, "\n".join(lines))


def _ranking(choice: Trial, ranked: Sequence[Trial], seconds: float) -> list[str]:
    """Say what is level, and how much slower the others are; other numbers of draws come first."""
    within = f"within the error of this pilot ({seconds:.2g} s)"
    level = ", ".join(trial.name for trial in ranked if trial.is_level)
    if level == choice.name:
        lines = [f"Take {choice.name}: no other is level with it, {within}."]
    else:
        lines = [f"Level, {within}: {level}. Take {choice.name}."]
    slower = [trial for trial in ranked if not trial.is_level]
    family = type(choice.estimator)
    slower.sort(key=lambda trial: (type(trial.estimator) is not family, trial.times_as_long))
    if slower:
        times = ", ".join(f"{trial.name} {trial.times_as_long:.2g}" for trial in slower)
        lines.append(f"Times as long as the best of these: {times}. Below {LEVEL} means nothing.")
    return lines


def _noise(pilot: Pilot, choice: Trial, skipped: Mapping[str, str]) -> list[str]:
    """Say how noisy the choice is, and what is special about f."""
    lines = []
    is_sparse = len(pilot.unbiased()) <= list(skipped.values()).count(ZERO)
    if is_sparse or not pilot.reference().mean.any():
        lines.append("The pilot saw hardly a gradient other than zero, so this is a guess.")
    elif pilot.minibatch > 0:
        share = choice.variance / pilot.minibatch
        hint = ". Below 1, more draws hardly help" if share < 1 else ""
        lines.append(f"Its noise: {share:.2g} times the minibatch's{hint}.")
    if pilot.miss > 0:
        lines.append(
            f"f keeps its values: an unseen point takes {1000 * pilot.miss:.2g} ms longer. Times "
            "are those of unseen points."
        )
    return lines


def _options(pilot: Pilot, choice: Trial, biased: Sequence[Trial]) -> list[str]:
    """Say what a step of biased estimators takes, and how to judge them."""
    if not biased:
        return []
    length = sqrt(pilot.reference().norm2) or 1.0
    parts = [
        f"{trial.name} (a step takes {trial.seconds / choice.seconds:.2g} of {choice.name}'s, "
        f"the bias is {trial.bias / length:.2g} of the gradient)"
        for trial in biased
    ]
    return [
        f"Biased, so not ranked: {', '.join(parts)}. To judge one, train with it and with "
        f"{choice.name} for 1,000 steps each, and compare the losses."
    ]
