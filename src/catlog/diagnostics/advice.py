"""Which estimator trains fastest on f and q? A short pilot decides."""

# Keeps the signature short in `help`: names of types, not what they stand for.
from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import torch
from torch import Tensor

from ..core.checks import check_count, check_number, check_positive
from ..core.evaluator import Function
from ..core.left_alone import left_alone
from .arms import listed
from .naming import AnyEstimator, Chosen, named_estimators
from .pilot import LADDER, Pilot, Step, Trial
from .task import Clock, DistributionLike, Loss, Penalty, Task

LEVEL = 1.3  # times the best score: what a race to a target could hardly tell apart
FREE = 1.5  # times the seconds of the quickest RLOO among them: more draws at little cost
ZERO = "all of its gradients were zero"
NO_TIME = "the pilot had no time for it"
BEHIND = "far behind, before its whole step was timed"


@dataclass(frozen=True)
class Advice:
    """The estimator to use, and why.

    Attributes:
        estimator: ready to be used. If it learns, it starts from what the pilot found.
        trials: what was measured of every candidate, in the order in which level ones are named.
        skipped: why other candidates were not tried.
        seconds: the time that the pilot took.
        explanation: a few lines, also given by ``print(advice)``.
    """

    estimator: AnyEstimator
    trials: tuple[Trial, ...] = field(repr=False)
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
    candidates: Chosen | None = None,
    seed: int = 0,
    clock: Clock = time.perf_counter,
) -> Advice:
    r"""Find the estimators that train fastest on f and q, in a short pilot.

    For a given progress, training takes a time that is about proportional to

    .. math::
        \bigl(10\, \lVert g \rVert^2 + \text{variance}\bigr) \times \text{seconds per step}

    where g is the gradient, summed over the batch, and the variance is that of the estimator. The
    first term is the cost of a step without noise, which less noise cannot reduce: momentum
    averages the noise of about 10 steps. So once the noise is small compared with the gradient,
    more precision is worth nothing. If the variance dominates, the score is variance x time
    (McCandlish et al., "An empirical model of large-batch training", 2018, section 2.2).

    The candidates make one estimate each, in turn, up to 256 times. After 4 rounds, and again
    later, those that are far behind are left out. The time of a step is the least of all rounds.
    Most often a few candidates are level, within 30 % or within the error of the pilot. All of them
    are named. The choice is an RLOO, if one is level: with the most draws that cost little, at most
    1.5 times the seconds of the quickest level one. For noise that seems harmless at the start of
    training hurts later. So the choice is the same in most calls, although the scores are not. The
    same seed makes the same draws. The times of RLOO lie on a line in the number of draws.

    Nothing else changes, even if the pilot is interrupted: parameters, gradients, torch's random
    number generators and the buffers of the modules that f, q and ``step`` refer to (running
    statistics of BatchNorm) are left as they were.

    The pilot sees f and q as they are now. At the start of training the gradient is often long, and
    noise that will hurt later seems harmless. So ask again after a few epochs.

    Args:
        f, q, parameters: as in :func:`catlog.compare`.
        budget: the most evaluations of f per step and batch element. None: what IndeCateR needs for
            two draws, at least 64. Only within the budget are all points enumerated.
        biased: also name :class:`ReinMax` and hard Gumbel-Softmax, if f is differentiable. They are
            an option to try, never the answer: no pilot can see whether training with them arrives.
        loss: what you do with the value, if the loss is no weighted sum of values, such as
            ``lambda value: -value.log()``. It maps tensors element by element. The noise of the
            value then counts as well, and the bias that it makes.
        penalty: what you add to the loss of each batch element, as a function of q that returns one
            number per element: ``lambda q: kl_divergence(q, prior)``. Without it, the gradient g is
            that of E[f] alone. It may be longer than that of your loss, if the two terms partly
            cancel, as in an autoencoder; then the same noise hurts more.
        step: your training step. Either a callable that makes one step with the estimator that it
            gets, which is simply timed; its first call may compile, and its time is no step's. The
            parameters of q and f are restored, but not the state of your optimiser, so give it one
            that you do not need. Or the seconds that a step takes apart from the estimate and its
            gradients. None: only these are timed.
        steps: the pilot takes at most as long as this many training steps,
        seconds: or this long, if that is longer. Two candidates are tried in any case. If steps are
            compiled, allow for the compilation of each.
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
    check_positive("advise", "steps", steps)
    check_number("advise", "seconds", seconds, 0)
    if not callable(step):
        check_number("advise", "step", step or 0.0, 0, kind="a callable or seconds")
    chosen = None if candidates is None else named_estimators(candidates, "candidates")
    start = clock()
    with left_alone(f, q, loss, penalty, step):
        torch.manual_seed(seed)
        task = Task(f, q, parameters, loss, penalty, clock)
        pilot = Pilot(task, step, lambda least: start + max(seconds, steps * least))
        pilot.enter(chosen, budget, seed)
        pilot.run()
        trials = pilot.trials(LEVEL)
        return _advice(pilot, trials, clock() - start, biased)


def _advice(pilot: Pilot, trials: Sequence[Trial], seconds: float, biased: bool) -> Advice:
    known = [trial for trial in trials if trial.variance < inf]
    reasons = _reasons(pilot, known)
    skipped = reasons | pilot.failed | pilot.refused  # what went wrong comes first
    if not known:
        raise ValueError(f"advise: no candidate could be used. {listed(skipped)}.")
    skipped = {name: why.split(". ")[0] for name, why in skipped.items()}
    choice = _choice(known)
    lines = _ranking(choice, known, seconds)
    if len(pilot.seeing()) <= list(reasons.values()).count(ZERO):
        lines.append("The pilot saw hardly a gradient other than zero, so this is a guess.")
    if pilot.miss > 0:
        lines.append(
            f"f keeps its values: an unseen point takes {1000 * pilot.miss:.2g} ms longer. Times "
            "are those of unseen points."
        )
    if biased and any(arm.E.differentiates_f for arm in pilot.arms.values()):
        lines.append(
            "Biased, so not tried: ReinMax(1), ReinMax(4), GumbelSoftmax(1, hard=True). To judge "
            f"one, train with it and with {choice.name} for 1,000 steps each, and compare the "
            "losses."
        )
    if skipped:
        lines.append(f"Not tried: {listed(skipped)}.")
    return Advice(choice.estimator, tuple(known), skipped, seconds, "\n".join(lines))


def _reasons(pilot: Pilot, known: Sequence[Trial]) -> dict[str, str]:
    """Return why nothing can be said of candidates that were entered."""
    names, reasons = {trial.name for trial in known}, {}
    for name, arm in pilot.arms.items():
        if name not in pilot.tried(2):
            is_behind = arm.moments.count > 1 and name not in pilot.alive
            reasons[name] = BEHIND if is_behind else NO_TIME
        elif arm.moments.variance == inf:
            reasons[name] = "its gradient is NaN or infinite"
        elif name not in names:
            reasons[name] = ZERO
    return reasons


def _choice(ranked: Sequence[Trial]) -> Trial:
    """Return RLOO with the most draws that cost little, if one is level; else the best."""
    # What is listed as slower never beats the choice.
    most = min((trial.times_as_long for trial in ranked if not trial.is_level), default=inf)
    family = type(LADDER[0])
    level = [trial for trial in ranked if trial.is_level and trial.times_as_long <= most]
    ladder = [trial for trial in level if type(trial.estimator) is family]
    quickest = min((trial.seconds for trial in ladder), default=inf)
    free = [trial for trial in ladder if trial.seconds <= FREE * quickest]
    fastest = min(ranked, key=lambda trial: trial.times_as_long)
    return max(free, key=lambda trial: trial.evaluations, default=fastest)


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
        lines.append(f"Training time (best = 1): {times}. Factors below {LEVEL} mean nothing.")
    return lines
