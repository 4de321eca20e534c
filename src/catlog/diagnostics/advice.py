"""Which estimator, with which settings? A short pilot on f and q decides."""

# Keeps the signature short in `help`: names of types, not what they stand for.
from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from numbers import Real

from torch import Tensor

from ..core.checks import check_count
from ..core.estimator import Estimator
from ..core.evaluator import Function
from ..core.left_alone import left_alone
from ..estimators import MemoryCateR
from .candidates import CANDIDATES, Candidate
from .degenerate import is_degenerate, moved
from .explanation import explain
from .gradient_samples import Clock, DistributionLike, GradientSampler, Loss, Penalty, Step
from .pilot import Pilot
from .race import choose, explore
from .sizing import joined_reasons
from .structure import Structure, probe
from .trials import Trial, shortlist
from .user_step import UserStep


@dataclass(frozen=True)
class Advice:
    """The estimator to use, and why.

    Attributes:
        estimator: Ready to be used. If it learns, it starts from what the pilot found.
        explanation: A few lines, also given by ``print(advice)``.
        seconds: The time that the pilot took.
        step_seconds: The time of a step with this estimator: q, estimate and gradients, or what
            `step` says.
        minibatch_variance: The variance that the choice of the minibatch gives to the gradient.
        trials: What was measured or predicted of every candidate and number of draws, the choice
            first, then by score.
        skipped: Why other candidates were not tried.
        structure: What was known about f and q beforehand.
    """

    estimator: Estimator
    explanation: str
    seconds: float
    step_seconds: float
    minibatch_variance: float
    trials: tuple[Trial, ...] = field(repr=False)
    skipped: dict[str, str] = field(repr=False)
    structure: Structure

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
    fixed: bool = False,
    steps: float = 30,
    seconds: float = 5.0,
    candidates: Sequence[Candidate | Estimator] | None = None,
    seed: int = 0,
    clock: Clock = time.perf_counter,
) -> Advice:
    r"""Find the estimator that trains fastest on f and q, in a short pilot.

    For a given progress, training takes a time that is about proportional to

    .. math::
        \bigl(10\, \lVert g \rVert^2 + 100\, \text{bias}^2 + \sigma^2 + \text{variance}\bigr)
        \times \text{seconds per step}

    where g is the gradient, summed over the batch, :math:`\sigma^2` is the noise in it that comes
    from the choice of the minibatch, and bias and variance are those of the estimator. The first
    term is the cost of a step without noise, which less noise cannot reduce. So once the noise is
    small compared with the gradient, or with the noise of the minibatch, more precision is worth
    nothing. If the estimator's variance dominates, the score is variance x time. The factors 10 and
    100 are rough: momentum averages the noise of about 10 steps, but does not average bias.

    The pilot measures every candidate that fits q, f and the budget with few draws. From this it
    predicts the score with other numbers of draws (1, 2, 4, 8, 16, ... within the budget): the
    variance falls as 1 / draws, and the time of a step is an affine function of the draws.
    Estimators that use the same independent draws (RLOO, CritiCateR, BBVI, Reinforce) are measured
    on one set of evaluations. The best few are then timed in turn. If their scores are level, the
    least biased one wins. If all categories are about equally likely, symmetries can hide the noise
    of an estimator until the first step, so the pilot adds noise to the logits. If only some calls
    of SlopeCateR correct (``every``), it is judged by the mean time and the variance over calls of
    both kinds. It is not tried beside a compiled `step`, whose kinds of calls the pilot cannot tell
    apart.

    Nothing else changes: gradients, torch's random number generators and the buffers of the modules
    that f, q and `step` refer to (running statistics of BatchNorm) are left as they were.

    The pilot sees f and q as they are now. At the start of training the gradient is often long, and
    noise that will hurt later seems harmless. So train for a few epochs with any estimator before
    you ask.

    Args:
        f, q, parameters: As in :func:`catlog.compare`. Noise of the minibatch is counted if the
            batch of q is computed from shared parameters, as by a network.
        budget: The most evaluations of f per step and batch element. A function with its own
            neighbour table (:mod:`catlog.functions`) counts as 1 + k evaluations per draw of
            IndeCateR, and one that knows its mean under q as none for Exact. Of SlopeCateR with
            ``every``, it is the mean over calls that counts. None: what IndeCateR needs for two
            draws, at least 64, or all points of q, up to 4096.
        biased: Allow biased estimators, such as :class:`ReinMax`.
        loss: What you do with the value, if the loss is no weighted sum of values, such as
            ``lambda value: -value.log()``. It maps tensors element by element. The noise of the
            value then counts as well.
        penalty: What you add to the loss of each batch element, as a function of q that returns one
            number per element: ``lambda q: kl_divergence(q, prior)``. Without it, the gradient g is
            that of E[f] alone. It may be longer than that of your loss, if the two terms partly
            cancel, as in an autoencoder; then the same noise hurts more.
        step: Your training step. Either a callable that makes one step with the estimator that it
            gets: it is timed for promising candidates, after one call that is not counted, since it
            may compile. If it is shorter than the pilot's own steps, because it is compiled, it
            alone decides: it is timed for the candidates that may win, and the choice gets further
            draws if they are nearly free. The parameters of q and f are restored, but not the state
            of your optimiser, so give it one that you do not need. Or the seconds that a step takes
            apart from the estimate and its gradients. None: only these are timed.
        fixed: f never changes between steps (no network in training, no new data), so
            :class:`MemoryCateR` is a candidate.
        steps: The pilot takes at most about as long as this many training steps,
        seconds: or this long, if that is longer. The first two candidates are tried in any case,
            and the leader is measured again if few estimates may have flattered it.
        candidates: What to try, estimators or ``Candidate`` with further settings; None:
            ``catlog.diagnostics.CANDIDATES``. To add yours, give ``[*CANDIDATES, Mine()]``.
        seed: The seed of the pilot's draws.
        clock: A function that returns seconds.

    >>> import torch
    >>> from torch.distributions import Categorical, Independent
    >>> from catlog.functions import Additive
    >>> f = Additive(torch.arange(60.0).view(20, 3))
    >>> advice = advise(f, Independent(Categorical(logits=torch.zeros(20, 3)), 1))
    >>> E = advice.estimator
    >>> advice.trials[0].evaluations <= advice.structure.budget
    True
    """
    _check_numbers(budget, step, steps, seconds)
    if isinstance(candidates, Candidate | Estimator):
        candidates = [candidates]
    if candidates is not None and not candidates:
        raise ValueError(
            "candidates: at least one is needed, but none was given. Leave the argument out for "
            "catlog.diagnostics.CANDIDATES."
        )
    prototypes = [_as_candidate(entry) for entry in candidates or CANDIDATES]
    start = clock()
    with left_alone(f, q, loss, penalty, step):
        task = GradientSampler(f, q, parameters, loss, penalty, clock)
        if is_moved := is_degenerate(task):
            task = GradientSampler(f, moved(task, q, seed), task.parameters, loss, penalty, clock)
        structure = replace(probe(task, budget), is_fixed=fixed, is_moved=is_moved)
        fitted = [_fitted(prototype, structure) for prototype in prototypes]
        trials, skipped = shortlist(task, structure, fitted, biased)
        user_step = UserStep(step if callable(step) else None, task)
        for trial in trials:
            trial.rest_seconds = 0.0 if step is None or callable(step) else float(step)
        generator = task.generator(seed)
        pilot = Pilot(task, structure, generator, user_step, start, steps, seconds, trials)
        best = choose(pilot, explore(pilot))
        # What went wrong in the pilot comes first.
        skipped = {entry.name: entry.skipped for entry in trials if entry.skipped} | skipped
        if best is None:
            raise ValueError(f"advise: no candidate could be used. {joined_reasons(skipped)}.")
    ranked = pilot.scoring.ranked(pilot.measured)
    order = [best, *(trial for trial in ranked if trial is not best)]
    pilot_seconds = clock() - start
    return Advice(
        estimator=best.estimator,
        explanation=explain(order, pilot.scoring, structure, pilot_seconds),
        seconds=pilot_seconds,
        step_seconds=best.usual_seconds,
        minibatch_variance=pilot.scoring.minibatch,
        trials=tuple(order),
        skipped=skipped,
        structure=structure,
    )


def _check_numbers(
    budget: int | None, step: Step | float | None, steps: float, seconds: float
) -> None:
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


def _as_candidate(entry: Candidate | Estimator) -> Candidate:
    """Return an estimator as a candidate, or raise unless it is one of the two."""
    if isinstance(entry, Candidate):
        return entry
    if isinstance(entry, type) or not isinstance(entry, Estimator):
        raise TypeError(
            f"candidates: estimators or Candidates are needed, but {entry!r} was given. Give "
            "instances, as in [RLOO(4), IndeCateR(1)]."
        )
    return Candidate(entry)


def _fitted(candidate: Candidate, structure: Structure) -> Candidate:
    """Return the candidate; MemoryCateR gets a critic per batch element, if f is fixed."""
    E = candidate.estimator
    if not (isinstance(E, MemoryCateR) and structure.is_fixed):
        return candidate
    variables = max(E.max_variables, structure.d)
    E = MemoryCateR(E.samples, E.size, structure.batch, variables, E.validate)
    return replace(candidate, estimator=E)
