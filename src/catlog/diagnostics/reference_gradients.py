"""What all candidates of a pilot are compared with: gradient, penalty, noise of the minibatch."""

from collections.abc import Sequence
from math import ceil, inf, sqrt

import torch

from ..core.estimator import Estimator
from ..diagnostics import pilot_settings as settings
from ..estimators import RLOO
from .kinds_of_calls import mean_over_kinds
from .moments import Moments
from .other_draws import best_hope
from .pilot import Pilot
from .trials import Trial


def measure_penalty(pilot: Pilot) -> None:
    """Compute the gradient of what is added to the loss, if anything is."""
    gradient = pilot.task.penalty_gradient()
    if gradient is not None:
        pilot.scoring.penalty = pilot.selected(gradient).double()


def measure_minibatch(pilot: Pilot) -> None:
    """Estimate the noise of the minibatch, with the estimator of the least variance.

    A bias is no hindrance: the differences between batch elements are much the same.
    """
    known = [trial for trial in pilot.measured if trial.moments.count and trial.variance < inf]
    if not known or not pilot.task.shares_parameters:
        return
    best = min(known, key=lambda trial: trial.variance)
    if pilot.minibatch_by is not None and best.variance > pilot.minibatch_by.variance / 2:
        return
    pilot.minibatch_by = best
    E, groups = best.estimator, settings.GROUPS
    total = mean_over_kinds(E, lambda: pilot.task.minibatch_variance(E, groups, pilot.generator))
    pilot.scoring.minibatch = max(0.0, total - best.variance)


def sharpen_biases(pilot: Pilot) -> None:
    """Make more estimates with biased candidates and with the unbiased one that judges them."""
    repeated = [trial for trial in pilot.measured if trial.moments.count > 1]
    unbiased = [trial for trial in repeated if trial.estimator.unbiased and trial.variance < inf]
    if len(unbiased) in (0, len(repeated)) or pilot.task.has_loss:
        return
    best = min(unbiased, key=lambda trial: trial.variance * trial.seconds)
    limit = settings.HOPE_TIMES * min(pilot.scoring.scores(repeated).values())
    biased = [
        trial
        for trial in repeated
        if not trial.estimator.unbiased and best_hope(pilot, trial, repeated)[0] < limit
    ]
    for trial in (best, *biased):
        time_left = settings.REFERENCE_SHARE * pilot.time_left()
        needed = _repeats_for_bias(pilot, trial, repeated) - trial.moments.count
        pilot.run(trial, min(settings.MOST_REPEATS, needed), time_left)


def _repeats_for_bias(pilot: Pilot, trial: Trial, trials: Sequence[Trial]) -> int:
    """Return how many estimates make the noise in a squared bias a small part of the score."""
    leader = pilot.scoring.ranked(trials)[0]
    total = pilot.scoring.scores(trials)[leader.name] / leader.seconds
    noise = settings.BIAS_WEIGHT * trial.variance * sqrt(2 / trial.dimensions)
    return ceil(noise / (settings.TRUTH_ERROR * total)) if noise < inf else 0


def is_needed_as_reference(pilot: Pilot, trial: Trial, time_left: float) -> bool:
    """Return whether a slow, unbiased candidate is needed to measure the bias of others."""
    if not trial.estimator.unbiased or pilot.task.has_loss or time_left == inf:
        return False
    if all(entry.estimator.unbiased for entry in pilot.trials):
        return False
    few = settings.LEAST_REPEATS
    unbiased = [
        entry for entry in pilot.measured if entry.estimator.unbiased and entry.moments.count > 1
    ]
    if any(_repeats_for_bias(pilot, entry, unbiased) <= few for entry in unbiased):
        return False
    return few * trial.seconds < settings.REFERENCE_SHARE * time_left


def measure_truth(pilot: Pilot) -> None:
    """Estimate the gradient that biases are measured against, unless a candidate has it.

    With a loss it is the gradient at the exact E[f]. If all candidates are biased, RLOO judges
    them.
    """
    task = pilot.task
    unbiased = [trial for trial in pilot.measured if trial.estimator.unbiased]
    if not pilot.measured or (unbiased and not task.has_loss):
        return
    exact = [trial for trial in unbiased if trial.is_exact]
    best = min(exact or unbiased, key=lambda trial: trial.variance, default=None)
    if best is None:
        judge: Estimator = RLOO(settings.SET_SIZE)
        seconds, _ = task.timed(lambda: task.gradients_at_mean_value(judge, 1, pilot.generator))
        seconds = max(seconds, torch.finfo(torch.float64).tiny)
    else:
        judge, seconds = best.estimator, best.seconds
    repeats = settings.TRUTH_REPEATS
    time_left = settings.REFERENCE_SHARE * pilot.time_left()
    if exact:
        repeats = 2
    elif time_left < repeats * seconds:
        repeats = max(settings.LEAST_REPEATS, int(time_left / seconds))
    gradients = task.gradients_at_mean_value(judge, repeats, pilot.generator)
    pilot.scoring.truth = Moments()
    pilot.scoring.truth.add(pilot.selected(gradients))
