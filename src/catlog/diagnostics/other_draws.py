"""Candidates with other numbers of draws: which may be better, and trials of them."""

from collections.abc import Callable, Sequence
from math import inf, log

from ..diagnostics import pilot_settings as settings
from .pilot import Pilot
from .sizing import fewest_draws
from .trials import Trial


def seconds_by_draws(
    few: tuple[int, float], many: tuple[int, float], least_per_draw: float = 0.0
) -> Callable[[int], float]:
    """Return the time of a step as an affine function of the draws, through two points of it.

    A further draw takes at least `least_per_draw`, however the two times are disturbed. Fewer draws
    take at least half of their share of the time.
    """
    (fewer, least_seconds), (more, most_seconds) = few, many
    per_draw = max(least_per_draw, (most_seconds - least_seconds) / max(1, more - fewer))

    def seconds(samples: int) -> float:
        least = least_seconds * min(1.0, samples / fewer / 2)
        return max(least, least_seconds + (samples - fewer) * per_draw)

    return seconds


def sizes(pilot: Pilot, trial: Trial) -> list[int]:
    """Return the numbers of draws to consider: powers of two, and the most in the budget."""
    most = trial.most_samples
    if most is None or trial.is_exact:
        return [trial.samples]
    try:
        fewest = fewest_draws(trial.estimator, lambda E: E.evaluations(pilot.task.q))
    except ValueError:
        return [trial.samples]
    powers = {2**i for i in range(16) if fewest <= 2**i <= most / settings.SIZE_GAP}
    return sorted(powers | {trial.samples, most})


def best_hope(pilot: Pilot, trial: Trial, trials: Sequence[Trial]) -> tuple[float, int]:
    """Return a bound below the score with any number of draws, and the number that attains it.

    The variance is taken to be inverse to the draws. A further draw takes at least the time of its
    evaluations, and fewer draws take at least their share of the time. If the step is compiled,
    draws take as long as plain ones.
    """
    rest = pilot.scoring.squared_errors(trials)[trial.name] - trial.variance
    floor = pilot.scoring.floor(trials) + rest
    is_compiled = pilot.user_step.is_compiled
    per_draw = pilot.least_step_seconds(trial) / trial.samples
    if is_compiled:
        per_draw = pilot.user_step.draw_seconds or 0.0

    def bound(samples: int) -> float:
        noise = trial.variance * trial.samples / samples
        seconds = trial.seconds + (samples - trial.samples) * per_draw
        if samples < trial.samples and not is_compiled:
            seconds = trial.seconds * samples / trial.samples
        return (floor + noise) * seconds

    return min((bound(samples), samples) for samples in sizes(pilot, trial))


def other_sizes(pilot: Pilot, trial: Trial, hope: int) -> list[Trial]:
    """Return trials of the candidate with other draws, of which one is timed.

    `hope` says whether more or fewer draws seem better. The others are predicted: the variance is
    inverse to the draws, the time affine in them.
    """
    others = [size for size in sizes(pilot, trial) if size != trial.samples]
    if trial.variance == 0:  # more draws are of no use
        others = [size for size in others if size < trial.samples]
    if not others or trial.variance == inf:
        return []
    chosen = min(others)
    if chosen > trial.samples or hope > trial.samples:
        wanted = settings.SIZE_STEP * trial.samples
        chosen = min(others, key=lambda size: abs(size - wanted))
    pilot.user_step.use(trial)
    timed = trial.resized(chosen, pilot.task)
    pilot.user_step.use(timed)
    pilot.run_steps(timed, 2)
    if pilot.user_step.is_compiled:  # a few estimates take less time than compiling did
        for entry in (trial, timed):
            pilot.run(entry, settings.LEAST_REPEATS - entry.moments.count, inf)
    predicted = [size for size in others if size != chosen]
    return [timed, *_between(pilot, trial, timed, predicted)]


def _between(pilot: Pilot, first: Trial, second: Trial, sizes: Sequence[int]) -> list[Trial]:
    """Predict the times from both trials, and the variance from the nearer one that is known."""
    few, many = sorted((first, second), key=lambda trial: trial.samples)
    per_draw = pilot.user_step.ratio * pilot.least_step_seconds(first) / first.samples
    seconds = seconds_by_draws(
        (few.samples, min(few.times)), (many.samples, min(many.times)), per_draw
    )
    sources = [first]
    if second.moments.count >= settings.LEAST_REPEATS:
        sources.append(second)

    def nearest(size: int) -> Trial:
        return min(sources, key=lambda source: abs(log(size / source.samples)))

    return [nearest(size).resized(size, pilot.task, seconds(size)) for size in sizes]


def plain_trials(pilot: Pilot, trial: Trial) -> list[Trial]:
    """Measure a candidate of plain draws with all numbers of draws up to the size of a set.

    Return the trials with other numbers of draws. More draws than a set has are predicted.
    """
    user_step, plain = pilot.user_step, pilot.plain
    considered = sizes(pilot, trial)
    small = [size for size in considered if size <= plain.size]
    more = [size for size in considered if size > plain.size]
    trials = {
        size: trial if size == trial.samples else trial.resized(size, pilot.task) for size in small
    }
    plain.extend(settings.FIRST_SETS)
    pilot.replay(trial)
    if trial.error > settings.FIRST_ERROR:
        plain.extend(settings.MOST_SETS)
    for entry in trials.values():
        pilot.replay(entry)
    smallest, largest = trials[small[0]], trials[small[-1]]
    next_size = settings.SIZE_STEP * smallest.samples
    second = trials[max(size for size in small if size <= next_size)]
    few, many = pilot.plain_seconds(smallest), pilot.plain_seconds(second)
    user_step.look(smallest, few)
    few, many = user_step.ratio * few, user_step.ratio * many
    per_draw = user_step.ratio * (pilot.least_step_seconds(trial) / trial.samples)
    if user_step.is_compiled and user_step.draw_seconds is None:
        user_step.use(smallest)
        user_step.use(second)
        few, many = smallest.seconds, second.seconds
        further = max(1, second.samples - smallest.samples)
        user_step.draw_seconds = max(0.0, many - few) / further
    elif user_step.is_compiled:
        few = max(few, user_step.fastest)
    per_draw = max(per_draw, user_step.draw_seconds or 0.0)
    seconds = seconds_by_draws((smallest.samples, few), (second.samples, many), per_draw)
    for size, entry in trials.items():
        entry.expected_seconds = seconds(size)
        if not entry.is_whole:
            entry.rest_seconds += user_step.rest_seconds or 0.0
    predicted = [largest.resized(size, pilot.task, seconds(size)) for size in more]
    return [*(entry for entry in trials.values() if entry is not trial), *predicted]
