"""The race between candidates: rounds of measurements, each for those that may still win."""

from collections import Counter
from collections.abc import Sequence
from itertools import product
from math import exp, inf

from ..diagnostics import pilot_settings as settings
from .first_measurement import measure_first
from .other_draws import best_hope, other_sizes
from .pilot import Pilot
from .reference_gradients import measure_minibatch, measure_penalty, measure_truth, sharpen_biases
from .trials import Trial


def explore(pilot: Pilot) -> list[Trial]:
    """Measure candidates in rounds and return the finalists, all timed in turn.

    First every candidate with few draws, then the promising ones with other numbers of draws; these
    are added to the pilot's trials. After every further round at most half of them continue, and
    none that is surely worse than the leader. A candidate that fails, or that there is no time for,
    has the reason in ``skipped``.
    """
    measure_penalty(pilot)
    for trial in list(pilot.trials):
        with trial.given_up_on_error():
            measure_first(pilot, trial)
            if pilot.scoring.minibatch == 0:
                measure_minibatch(pilot)
    sharpen_biases(pilot)
    measure_truth(pilot)
    measure_minibatch(pilot)
    if pilot.user_step.is_compiled:
        _time_compiled_steps(pilot)
    else:
        _try_other_sizes(pilot)
    remaining = _contenders(pilot, pilot.measured, settings.CONTENDERS)
    finalists = remaining
    for error, timed_steps in settings.ROUNDS:
        if len(remaining) > 1:
            _run_round(pilot, remaining, error, timed_steps)
            finalists = remaining
            remaining = _contenders(pilot, remaining, (len(remaining) + 1) // 2)
    return finalists


def _try_other_sizes(pilot: Pilot) -> None:
    """Add trials of promising candidates with other numbers of draws."""
    for trial, hope in _promising(pilot):
        if pilot.time_left() < settings.RESERVE_STEPS * trial.seconds:
            break
        with trial.given_up_on_error():
            pilot.trials += other_sizes(pilot, trial, hope)


def _time_compiled_steps(pilot: Pilot) -> None:
    """Time the user's compiled step with candidates that may win; the good ones with more draws.

    It may take long to compile, so this ends when no candidate can beat the best of those timed,
    and most candidates are timed once only.
    """
    for _ in range(settings.SIZED_CANDIDATES):
        floor = pilot.scoring.floor(pilot.measured)
        errors = pilot.scoring.squared_errors(pilot.measured)
        waiting = [trial for trial in _of_one_size(pilot) if not trial.is_whole]
        trial = min(waiting, key=lambda trial: errors[trial.name], default=None)
        # A step may turn out to be as short as the shortest.
        shortest = pilot.user_step.fastest
        if trial is None or (floor + errors[trial.name]) * shortest > _best_of_timed(pilot):
            break
        with trial.given_up_on_error():
            pilot.user_step.use(trial)
            score = pilot.scoring.scores(pilot.measured)[trial.name]
            if score <= settings.HOPE_TIMES * _best_of_timed(pilot):
                size = best_hope(pilot, trial, pilot.measured)[1]
                pilot.trials += other_sizes(pilot, trial, size)


def _of_one_size(pilot: Pilot) -> list[Trial]:
    """Return the trials of candidates without trials of other sizes, if their noise is known."""
    counts = Counter(id(trial.candidate) for trial in pilot.measured)
    return [
        trial
        for trial in pilot.measured
        if counts[id(trial.candidate)] == 1 and trial.variance < inf
    ]


def _best_of_timed(pilot: Pilot) -> float:
    """Return the best score of those whose step was timed; infinite if there is none."""
    scores = pilot.scoring.scores(pilot.measured)
    return min((scores[trial.name] for trial in pilot.measured if trial.is_whole), default=inf)


def _run_round(pilot: Pilot, contenders: Sequence[Trial], error: float, timed_steps: int) -> None:
    """Time further steps of all in turn, then make estimates until the error is reached."""
    shortest = min(trial.seconds for trial in contenders)
    quick_steps = int(settings.TIMING_SECONDS / max(shortest, 1e-9))
    count = min(settings.MOST_TIMED_STEPS, max(timed_steps, quick_steps))
    old_times: dict[str, int] = {}
    for _, trial in product(range(count), contenders):
        if trial.skipped is not None or pilot.time_left() < trial.seconds:
            continue
        with trial.given_up_on_error():
            pilot.user_step.use(trial)
            old_times.setdefault(trial.name, len(trial.times))
            pilot.run_steps(trial, 1)
    for trial in contenders:  # only times of the same minute can be compared
        trial.times = trial.times[old_times.get(trial.name, 0) :]
    for place, trial in enumerate(contenders):
        share = pilot.time_left() / (len(contenders) - place)
        if share <= 0 or trial.is_exact or not trial.is_measured:
            continue
        # The error of the variance counts as far as the variance does.
        errors = pilot.scoring.errors(pilot.measured)
        ratio = trial.error / max(errors[trial.name], 1e-9)
        with trial.given_up_on_error():
            repeats = trial.repeats_to_reach(error * max(1.0, ratio))
            pilot.run(trial, repeats, share)


def _confirm(pilot: Pilot, trial: Trial, is_late: bool, is_new: bool) -> None:
    """Time further steps of the leader and, unless it is late, add cheap batches.

    Times of a new leader are old, so they are replaced.
    """
    steps = settings.CONFIRMING_STEPS
    if is_new:
        trial.times = []
    pilot.user_step.use(trial)
    pilot.run_steps(trial, steps)
    if not is_late and pilot.may_have_missed(trial):
        batch = min(settings.RARE_REPEATS // trial.kinds, pilot.batch_limit(trial))
        pilot.run_batched(trial, batch)
    elif not pilot.runs_one_by_one(trial):
        repeats = trial.repeats_to_reach(settings.SURE_ERROR)
        pilot.run(trial, repeats, steps * trial.seconds)


def choose(pilot: Pilot, finalists: list[Trial]) -> Trial | None:
    """Confirm the leader and return the best finalist; None if all failed.

    With few repeats the apparent minimum is biased low, so the leader is measured again. If it is
    none of the finalists, it becomes one, with new times.
    """
    scoring = pilot.scoring
    for _ in range(settings.CONFIRMATIONS):
        trials = pilot.measured
        if not trials:
            break
        errors, leader = scoring.errors(trials), scoring.ranked(trials)[0]
        is_late = pilot.time_left(settings.OVERTIME) < 0
        has_repeats = leader.moments.count >= settings.LEAST_REPEATS
        is_sure = has_repeats and (
            errors[leader.name] <= settings.SURE_ERROR
            or len(scoring.surely_worse(leader, trials)) == len(trials) - 1
        )
        is_done = is_sure and (is_late or not pilot.may_have_missed(leader))
        is_timed = leader in finalists and pilot.is_timed(leader)
        if is_timed and (leader.is_exact or is_done):
            break
        is_new = leader not in finalists
        with leader.given_up_on_error():
            _confirm(pilot, leader, is_late, is_new)
        if is_new:
            finalists.append(leader)
    timed = [trial for trial in finalists if trial.is_measured and pilot.is_timed(trial)]
    if not timed:
        return None
    best = least_biased(pilot, timed)
    return with_cheap_draws(pilot, best) if pilot.user_step.is_compiled else best


def with_cheap_draws(pilot: Pilot, best: Trial) -> Trial:
    """Return the best candidate with the most draws that are level with it in score and in time.

    Further draws often take little time in a compiled step. They cost no more than this time, and
    noise hurts more later, when the gradient is smaller.
    """

    def is_level(trial: Trial) -> bool:
        scores, times = pilot.scoring.scores(pilot.measured), settings.LEVEL_TIMES
        in_score = scores[trial.name] <= times * scores[best.name]
        return in_score and trial.seconds <= times * best.seconds

    more = [
        trial
        for trial in pilot.measured
        if trial.candidate is best.candidate and trial.samples > best.samples
    ]
    for trial in sorted(more, key=lambda trial: trial.samples, reverse=True):
        if not is_level(trial):
            continue
        with trial.given_up_on_error():
            _confirm(pilot, trial, is_late=True, is_new=True)
        if trial.is_measured and is_level(trial):
            return trial
    return best


def least_biased(pilot: Pilot, finalists: Sequence[Trial]) -> Trial:
    """Return the finalist with the best score or, of candidates that are level, the least bias.

    Bias hurts more later, when the gradient is smaller.
    """
    scoring, trials = pilot.scoring, pilot.measured
    scores, errors = scoring.scores(trials), scoring.errors(trials)
    careful = {trial.name: scores[trial.name] * exp(errors[trial.name]) for trial in finalists}
    order = sorted(finalists, key=lambda trial: careful[trial.name])
    limit = settings.LEVEL_TIMES * careful[order[0].name]
    best = {id(trial.candidate): trial for trial in reversed(order)}
    level = [trial for trial in best.values() if careful[trial.name] <= limit]
    squared_errors = scoring.squared_errors(trials)

    def bias(trial: Trial) -> float:
        return squared_errors[trial.name] - trial.variance if trial.variance < inf else inf

    return min(level, key=lambda trial: (bias(trial), careful[trial.name]))


def _promising(pilot: Pilot) -> list[tuple[Trial, int]]:
    """Return the trials that may win with another number of draws, and that number, best first."""
    timed = pilot.measured
    best = min(pilot.scoring.scores(timed).values(), default=inf)
    hopes = [(*best_hope(pilot, trial, timed), trial) for trial in _of_one_size(pilot)]
    hopes.sort(key=lambda entry: entry[:2])
    hopeful = [(trial, size) for hope, size, trial in hopes if hope <= best]
    return hopeful[: settings.SIZED_CANDIDATES]


def _contenders(pilot: Pilot, remaining: Sequence[Trial], most: int) -> list[Trial]:
    """Return the best of the remaining trials, less those that are surely worse."""
    timed = pilot.measured
    order = [trial for trial in pilot.scoring.ranked(timed) if trial in remaining]
    worse = pilot.scoring.surely_worse(order[0], timed) if order else set()
    contenders: list[Trial] = []
    counts = Counter[int]()
    for trial in order:
        counts[id(trial.candidate)] += 1
        is_alike = counts[id(trial.candidate)] > settings.CONTENDERS_PER_CANDIDATE
        if trial.name not in worse and not is_alike:
            contenders.append(trial)
    return contenders[: max(1, most)]
