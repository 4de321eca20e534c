"""The race between candidates: rounds of measurements, each for those that may still win."""

from collections import Counter
from collections.abc import Sequence
from math import exp, inf

from .pilot import Pilot
from .trials import Trial, measured


def explore(pilot: Pilot, trials: list[Trial]) -> list[Trial]:
    """Measure candidates in rounds and return the finalists, all timed in turn.

    First every candidate with few draws, then the promising ones with other numbers of draws; these
    are added to `trials`. After every further round at most half of them continue, and none that is
    surely worse than the leader. A candidate that fails, or that there is no time for, has the
    reason in ``skipped``.
    """
    pilot.measure_penalty()
    for trial in list(trials):
        with trial.given_up_on_error():
            trials += pilot.first_measurement(trial, trials)
            if pilot.scoring.minibatch == 0:
                pilot.measure_minibatch(trials)
    pilot.sharpen_biases(trials)
    pilot.measure_truth(trials)
    pilot.measure_minibatch(trials)
    if pilot.is_compiled:
        _time_compiled_steps(pilot, trials)
    else:
        _try_other_sizes(pilot, trials)
    remaining = _contenders(pilot, measured(trials), trials, pilot.settings.contenders)
    finalists = remaining
    for error, timed_steps in pilot.settings.rounds:
        if len(remaining) > 1:
            pilot.run_round(remaining, trials, error, timed_steps)
            finalists = remaining
            remaining = _contenders(pilot, remaining, trials, (len(remaining) + 1) // 2)
    return finalists


def _try_other_sizes(pilot: Pilot, trials: list[Trial]) -> None:
    """Add trials of promising candidates with other numbers of draws."""
    for trial, hope in _promising(pilot, trials):
        if pilot.time_left(trials) < pilot.settings.reserve_steps * trial.seconds:
            break
        with trial.given_up_on_error():
            trials += pilot.other_sizes(trial, hope)


def _time_compiled_steps(pilot: Pilot, trials: list[Trial]) -> None:
    """Time the user's compiled step with candidates that may win; the good ones with more draws.

    It may take long to compile, so this ends when no candidate can beat the best of those timed,
    and most candidates are timed once only.
    """
    for _ in range(pilot.settings.sized_candidates):
        hopes = pilot.hopes_of_compiled(trials)
        if not hopes or hopes[0][0] > _best_of_timed(pilot, trials):
            break
        trial = hopes[0][1]
        with trial.given_up_on_error():
            pilot.use_whole_step(trial)
            score = pilot.scoring.scores(measured(trials))[trial.name]
            if score <= pilot.settings.hope_times * _best_of_timed(pilot, trials):
                trials += pilot.other_sizes(trial, pilot.best_hope(trial, measured(trials))[1])


def _best_of_timed(pilot: Pilot, trials: Sequence[Trial]) -> float:
    """Return the best score of those whose step was timed; infinite if there is none."""
    timed = measured(trials)
    scores = pilot.scoring.scores(timed)
    return min((scores[trial.name] for trial in timed if trial.is_whole), default=inf)


def choose(pilot: Pilot, finalists: list[Trial], trials: Sequence[Trial]) -> Trial | None:
    """Confirm the leader and return the best finalist; None if all failed.

    With few repeats the apparent minimum is biased low, so the leader is measured again. If it is
    none of the finalists, it becomes one, with new times.
    """
    settings, scoring = pilot.settings, pilot.scoring
    for _ in range(settings.confirmations):
        trials = measured(trials)
        if not trials:
            break
        errors, leader = scoring.errors(trials), scoring.ranked(trials)[0]
        is_late = pilot.time_left(trials, settings.overtime) < 0
        has_repeats = leader.moments.count >= settings.least_repeats
        is_sure = has_repeats and (
            errors[leader.name] <= settings.sure_error
            or len(scoring.surely_worse(leader, trials)) == len(trials) - 1
        )
        is_done = is_sure and (is_late or not pilot.may_have_missed(leader))
        is_timed = leader in finalists and pilot.is_timed(leader)
        if is_timed and (leader.is_exact or is_done):
            break
        is_new = leader not in finalists
        with leader.given_up_on_error():
            pilot.confirm(leader, is_late, is_new)
        if is_new:
            finalists.append(leader)
    finalists = measured(finalists)
    timed = [trial for trial in finalists if pilot.is_timed(trial)]
    if not timed:
        return None
    best = least_biased(pilot, timed, measured(trials))
    return with_cheap_draws(pilot, best, trials) if pilot.is_compiled else best


def with_cheap_draws(pilot: Pilot, best: Trial, trials: Sequence[Trial]) -> Trial:
    """Return the best candidate with the most draws that are level with it in score and in time.

    Further draws often take little time in a compiled step. They cost no more than this time, and
    noise hurts more later, when the gradient is smaller.
    """

    def is_level(trial: Trial) -> bool:
        scores, times = pilot.scoring.scores(measured(trials)), pilot.settings.level_times
        in_score = scores[trial.name] <= times * scores[best.name]
        return in_score and trial.seconds <= times * best.seconds

    more = [
        trial
        for trial in measured(trials)
        if trial.candidate is best.candidate and trial.samples > best.samples
    ]
    for trial in sorted(more, key=lambda trial: trial.samples, reverse=True):
        if not is_level(trial):
            continue
        with trial.given_up_on_error():
            pilot.confirm(trial, is_late=True, is_new=True)
        if trial.is_measured and is_level(trial):
            return trial
    return best


def least_biased(pilot: Pilot, finalists: Sequence[Trial], trials: Sequence[Trial]) -> Trial:
    """Return the finalist with the best score or, of candidates that are level, the least bias.

    Bias hurts more later, when the gradient is smaller.
    """
    scoring = pilot.scoring
    scores, errors = scoring.scores(trials), scoring.errors(trials)
    careful = {trial.name: scores[trial.name] * exp(errors[trial.name]) for trial in finalists}
    order = sorted(finalists, key=lambda trial: careful[trial.name])
    limit = pilot.settings.level_times * careful[order[0].name]
    best = {id(trial.candidate): trial for trial in reversed(order)}
    level = [trial for trial in best.values() if careful[trial.name] <= limit]
    squared_errors = scoring.squared_errors(trials)

    def bias(trial: Trial) -> float:
        return squared_errors[trial.name] - trial.variance if trial.variance < inf else inf

    return min(level, key=lambda trial: (bias(trial), careful[trial.name]))


def _promising(pilot: Pilot, trials: Sequence[Trial]) -> list[tuple[Trial, int]]:
    """Return the trials that may win with another number of draws, and that number, best first."""
    timed = measured(trials)
    if not timed:
        return []
    best = min(pilot.scoring.scores(timed).values())
    counts = Counter(id(trial.candidate) for trial in timed)  # some have other sizes already
    hopes = [
        (*pilot.best_hope(trial, timed), place)
        for place, trial in enumerate(timed)
        if counts[id(trial.candidate)] == 1 and trial.variance < inf
    ]
    hopeful = [(timed[place], size) for hope, size, place in sorted(hopes) if hope <= best]
    return hopeful[: pilot.settings.sized_candidates]


def _contenders(
    pilot: Pilot, remaining: Sequence[Trial], trials: Sequence[Trial], most: int
) -> list[Trial]:
    """Return the best of the remaining trials, less those that are surely worse."""
    timed = measured(trials)
    order = [trial for trial in pilot.scoring.ranked(timed) if trial in remaining]
    worse = pilot.scoring.surely_worse(order[0], timed) if order else set()
    contenders: list[Trial] = []
    counts = Counter[int]()
    for trial in order:
        counts[id(trial.candidate)] += 1
        is_alike = counts[id(trial.candidate)] > pilot.settings.contenders_per_candidate
        if trial.name not in worse and not is_alike:
            contenders.append(trial)
    return contenders[: max(1, most)]
