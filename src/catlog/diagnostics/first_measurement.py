"""The first measurement of a candidate: a timed step and a few estimates, if they are worth it."""

from math import inf

import torch

from ..diagnostics import pilot_settings as settings
from .coefficient_fit import fit_coefficients
from .other_draws import plain_trials
from .pilot import Pilot
from .reference_gradients import is_needed_as_reference
from .trials import Trial

NO_TIME = "the pilot had no time for it"
KINDS_IF_COMPILED = "your step is compiled, and the pilot cannot see which of its calls correct"
TOO_SLOW = "its steps take too long, even if they had no noise"


def measure_first(pilot: Pilot, trial: Trial) -> None:
    """Time a step and make a few estimates, or skip the candidate.

    A candidate that uses plain draws, of which few sets serve all, is tried with other numbers of
    draws as well.
    """
    user_step = pilot.user_step
    time_left, most_seconds = pilot.time_left(), _most_seconds(pilot)
    trial.skipped = _why_untried(pilot, trial, time_left, most_seconds)
    if trial.skipped is not None:
        return
    if pilot.shares_draws(trial):
        pilot.trials += plain_trials(pilot, trial)
        return
    trial.rest_seconds += user_step.rest_seconds or 0.0
    gradient = pilot.timed_gradient(trial)
    if most_seconds < trial.seconds < settings.COLD_SHARE * time_left:
        gradient = pilot.timed_gradient(trial)
    warm_up = trial.candidate.warm_up if trial.learns else 0
    trial.skipped = _why_given_up(pilot, trial, warm_up, time_left, most_seconds)
    if trial.skipped is not None:
        return
    for _ in range(warm_up):
        gradient = pilot.timed_gradient(trial)  # the first was made before it learned anything
    if trial.is_exact:
        pilot.timed_gradient(trial)
        pilot.add(trial, torch.stack([gradient, gradient]))
    elif trial.candidate.coefficients and not pilot.task.has_loss:
        has_many = pilot.entries > settings.MANY_ENTRIES
        fit_coefficients(pilot, trial, 2 if has_many else pilot.first_repeats(trial))
    else:
        pilot.add(trial, torch.stack([gradient, pilot.timed_gradient(trial)]))
        _add_further_estimates(pilot, trial)
    if user_step.call is not None and user_step.rest_seconds is None:
        user_step.look(trial, min(trial.times))
        trial.times = [seconds * user_step.ratio for seconds in trial.times]
        trial.rest_seconds = user_step.rest_seconds or 0.0


def _most_seconds(pilot: Pilot) -> float:
    """Return the step time with which an estimator without noise is level with the leader."""
    timed = pilot.measured
    floor = pilot.scoring.floor(timed) if len(timed) > 1 else 0.0
    if floor <= 0:
        return inf
    return settings.HOPE_TIMES * min(pilot.scoring.scores(timed).values()) / floor


def _why_untried(pilot: Pilot, trial: Trial, time_left: float, most_seconds: float) -> str | None:
    """Return why not even one step of a candidate is made; None if it is tried."""
    same_was_slow = any(
        entry.skipped == TOO_SLOW
        and type(entry.estimator) is type(trial.estimator)
        and entry.kinds == trial.kinds
        and entry.evaluations <= trial.evaluations
        for entry in pilot.trials
    )
    least_seconds = pilot.user_step.ratio * pilot.least_step_seconds(trial)
    if least_seconds > most_seconds or same_was_slow:
        return f"its {trial.evaluations} evaluations take too long for what they gain"
    if trial.kinds > 1 and pilot.user_step.is_compiled:
        return KINDS_IF_COMPILED
    has_time = time_left == inf or time_left >= settings.RESERVE_STEPS * pilot.leader_seconds
    return None if has_time else NO_TIME


def _why_given_up(
    pilot: Pilot, trial: Trial, warm_up: int, time_left: float, most_seconds: float
) -> str | None:
    """Return why a candidate is given up after its first step; None if it is not."""
    cannot_shrink = trial.most_samples is None or trial.samples <= 2
    if (
        cannot_shrink
        and not pilot.user_step.is_compiled
        and trial.seconds > most_seconds
        and not is_needed_as_reference(pilot, trial, time_left)
    ):
        return TOO_SLOW
    further_steps = 2 * (1 + len(trial.candidate.coefficients)) + warm_up
    needed = (1 if trial.is_exact else further_steps) * trial.kinds * trial.seconds
    return NO_TIME if needed > settings.USUAL_SHARE * time_left else None


def _add_further_estimates(pilot: Pilot, trial: Trial) -> None:
    """Make a few more estimates if two say little, because few parameters share the noise."""
    error = settings.FIRST_ERROR
    if trial.error <= error:
        return
    if not pilot.runs_one_by_one(trial):
        pilot.run_batched(trial, pilot.first_repeats(trial))
        pilot.batches_are_slow = trial.seconds_per_repeat > trial.kinds * trial.seconds
    elif not trial.candidate.expensive:
        extra = min(settings.EXTRA_STEPS, trial.repeats_to_reach(error))
        pilot.run_steps(trial, extra)
