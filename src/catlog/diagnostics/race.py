"""The race between candidates: rounds of measurements, each for those that may still win."""

from collections.abc import Sequence
from math import exp

from .pilot import Pilot
from .trials import Trial

ERRORS = (ValueError, TypeError, RuntimeError, NotImplementedError)  # of f or of an estimator


def explore(pilot: Pilot, trials: list[Trial]) -> list[Trial]:
    """Measure candidates in rounds and return those that could be measured.

    First every candidate with few draws, then the promising ones with the number of draws that
    seems best for them; these are added to `trials`. After every further round at most half of them
    continue, and none that is surely worse than the leader. A candidate that fails, or that there
    is no time for, has the reason in ``skipped``.
    """
    _first_round(pilot, trials, trials, pilot.settings.first_share)
    pilot.sharpen_reference(trials)
    pilot.measure_truth(trials)
    pilot.measure_minibatch(trials)
    _first_round(pilot, _resized(pilot, trials), trials)
    measured = [trial for trial in trials if trial.is_measured]
    remaining = _contenders(pilot, measured, measured)
    rounds = pilot.settings.rounds
    for number, (error, timed_steps) in enumerate(rounds[1:], start=1):
        if len(remaining) <= 1:
            break
        for place, trial in enumerate(remaining):
            shares = (len(remaining) - place) * (len(rounds) - number)
            try:
                pilot.refine(trial, error, timed_steps, pilot.time_left(trials) / shares)
            except ERRORS as problem:
                trial.skipped = _first_line(problem)
        measured = [trial for trial in trials if trial.is_measured]
        remaining = _contenders(pilot, remaining, measured)
    return measured


def choose(pilot: Pilot, trials: Sequence[Trial]) -> Trial:
    """Confirm the leader and return the best.

    With few repeats the apparent minimum is biased low, so the leader is measured again.
    """
    settings, scoring = pilot.settings, pilot.scoring
    for _ in range(settings.confirmations):
        leader = scoring.ranked(trials)[0]
        is_late = pilot.time_left(trials, settings.overtime) < 0
        has_repeats = leader.moments.count >= settings.least_repeats
        is_sure = has_repeats and (
            scoring.errors(trials)[leader.name] <= settings.sure_error
            or _is_clearly_ahead(pilot, leader, trials)
        )
        if leader.is_exact or (is_sure and (is_late or not pilot.may_have_missed(leader))):
            break
        pilot.confirm(leader, is_late)
    scores, errors = scoring.scores(trials), scoring.errors(trials)
    return min(trials, key=lambda trial: scores[trial.name] * exp(errors[trial.name]))


def _first_round(
    pilot: Pilot, new: Sequence[Trial], trials: list[Trial], share: float = 1.0
) -> None:
    """Measure new candidates once; `trials` are those to compare them with."""
    error, _ = pilot.settings.rounds[0]
    for trial in list(new):
        if new is not trials:
            trials.append(trial)
        try:
            pilot.first_measurement(trial, trials, error, share)
            if pilot.scoring.minibatch == 0:
                pilot.measure_minibatch(trials)
        except ERRORS as problem:
            trial.skipped = _first_line(problem)


def _resized(pilot: Pilot, trials: Sequence[Trial]) -> list[Trial]:
    """Return promising candidates with other numbers of draws, the most promising first."""
    measured = [trial for trial in trials if trial.is_measured]
    predictions: list[tuple[float, int, Trial]] = []
    for trial in pilot.scoring.ranked(measured):
        if pilot.time_left(trials) < pilot.settings.reserve_steps * trial.seconds:
            break
        try:
            size, score = pilot.best_size(trial, measured)
        except ERRORS as problem:
            trial.skipped = _first_line(problem)
        else:
            predictions.append((score, size, trial))
    if not predictions:
        return []
    limit = pilot.settings.size_doubt * min(score for score, _, _ in predictions)
    return [
        trial.resized(size, pilot.task)
        for score, size, trial in sorted(predictions, key=lambda prediction: prediction[0])
        if size != trial.samples and score <= limit
    ]


def _contenders(pilot: Pilot, remaining: Sequence[Trial], measured: Sequence[Trial]) -> list[Trial]:
    """Return the better half of the remaining trials, less those that are surely worse."""
    order = [trial for trial in pilot.scoring.ranked(measured) if trial in remaining]
    worse = pilot.scoring.surely_worse(order[0], measured) if order else set()
    close = [trial for trial in order if trial.name not in worse]
    return close[: max(1, (len(remaining) + 1) // 2)]


def _is_clearly_ahead(pilot: Pilot, leader: Trial, trials: Sequence[Trial]) -> bool:
    return len(pilot.scoring.surely_worse(leader, trials)) == len(trials) - 1


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0].rstrip(".")
