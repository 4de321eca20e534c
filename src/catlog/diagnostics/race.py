"""The race between candidates: rounds of measurements, each for those that may still win."""

from collections.abc import Sequence
from math import exp

from .pilot import Pilot
from .trials import Trial, doubt, merits, ranked

ERRORS = (ValueError, TypeError, RuntimeError, NotImplementedError)  # of f or of an estimator


def explore(pilot: Pilot, trials: Sequence[Trial]) -> list[Trial]:
    """Measure candidates in rounds and return those that could be measured.

    After every round at most half of them continue, and none that is surely worse than the leader.
    A candidate that fails, or that there is no time for, has the reason in ``skipped``.
    """
    exact = _first_round(pilot, trials)
    measured = [trial for trial in trials if trial.is_measured]
    if exact or not measured:
        return measured + exact
    remaining = _contenders(trials, measured)
    rounds = pilot.settings.rounds
    for number, (error, timed_steps) in enumerate(rounds[1:], start=1):
        if len(remaining) == 1 or not measured:
            break
        for place, trial in enumerate(remaining):
            shares = (len(remaining) - place) * (len(rounds) - number)
            try:
                pilot.refine(trial, error, timed_steps, pilot.time_left(trials) / shares)
            except ERRORS as problem:
                trial.skipped = _first_line(problem)
        measured = [trial for trial in trials if trial.is_measured]
        remaining = _contenders(remaining, measured) if measured else []
    return measured


def choose(pilot: Pilot, trials: Sequence[Trial]) -> Trial:
    """Confirm the leader and return the best.

    With few repeats the apparent minimum is biased low, so the leader is measured again.
    """
    settings = pilot.settings
    for _ in range(settings.confirmations):
        leader = ranked(trials)[0]
        is_late = pilot.time_left(trials, settings.overtime) < 0
        has_repeats = leader.moments.count >= settings.least_repeats
        is_sure = leader.error <= settings.sure_error or (
            has_repeats and _is_clearly_ahead(leader, trials)
        )
        if leader.is_exact or (is_sure and (is_late or not pilot.may_have_missed(leader))):
            break
        pilot.confirm(leader, is_late)
    merit = merits(trials)
    return min(trials, key=lambda trial: merit[trial.name] * exp(trial.error))


def _first_round(pilot: Pilot, trials: Sequence[Trial]) -> list[Trial]:
    """Measure every candidate once; return those without variance, which end the race."""
    error, _ = pilot.settings.rounds[0]
    for place, trial in enumerate(trials):
        exact = None
        try:
            pilot.first_measurement(trial, error, pilot.time_left(trials))
            if trial.is_measured and trial.variance == 0:
                exact = pilot.with_fewest_draws(trial)
        except ERRORS as problem:
            trial.skipped = _first_line(problem)
        if exact is not None:
            return [exact, *_cheaper(pilot, trials[place + 1 :], exact)]
    return []


def _cheaper(pilot: Pilot, rest: Sequence[Trial], exact: Trial) -> list[Trial]:
    """Skip the rest of the candidates, but for those without variance that are faster than `exact`.

    Each has its fewest draws. The search ends with the pilot's time.
    """
    found = []
    for trial in rest:
        trial.skipped = f"{exact.name} has no variance"
        if pilot.clock() - pilot.start > pilot.steps * exact.seconds:
            continue
        try:
            fewer = pilot.with_fewest_draws(trial, exact.seconds)
        except ERRORS as problem:
            trial.skipped = _first_line(problem)
        else:
            found += [] if fewer is None else [fewer]
    return found


def _contenders(remaining: Sequence[Trial], measured: Sequence[Trial]) -> list[Trial]:
    """Return the better half of the remaining trials, less those that are surely worse."""
    merit = merits(measured)
    order = sorted(
        (trial for trial in remaining if trial.is_measured), key=lambda trial: merit[trial.name]
    )
    close = [
        trial
        for trial in order
        if merit[trial.name] <= merit[order[0].name] * doubt(trial, order[0])
    ]
    return close[: max(1, (len(remaining) + 1) // 2)]


def _is_clearly_ahead(leader: Trial, trials: Sequence[Trial]) -> bool:
    merit = merits(trials)
    return all(
        merit[trial.name] > merit[leader.name] * doubt(leader, trial)
        for trial in trials
        if trial is not leader
    )


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0].rstrip(".")
