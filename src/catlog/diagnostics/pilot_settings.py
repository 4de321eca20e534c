"""The numbers that steer the pilot of :func:`catlog.advise`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PilotSettings:
    """Limits of the pilot. Times are in seconds, errors are relative standard errors of a variance.

    Attributes:
        least_budget: The smallest default budget, in evaluations of f.
        exact_points: The default budget allows Exact for up to this many points.
        momentum_steps: The weight of the squared gradient in the score. A momentum of 0.9, which is
            Adam's too, averages 1 / (1 - 0.9) gradients: this divides their noise, not the signal.
        bias_weight: The weight of the squared bias in the score; a rough number. Bias is not
            averaged, and it stays when the gradient shrinks. In single runs of two autoencoders,
            the steps that straight-through estimators needed, relative to ReinMax, gave 13, 56 and
            240.
        first_evaluations: A candidate is first tried with as many draws as need this many
            evaluations; an expensive one with its own number of draws.
        cheap_evaluations: Candidates that need more evaluations than this are tried last.
        set_size: Plain draws are evaluated in sets of this many, which serve all estimators that
            use such draws, with all numbers of draws up to this.
        first_sets: The number of sets that are evaluated first,
        most_sets: and at most before the rounds.
        size_step: A promising candidate is timed with this many times the draws.
        size_gap: Numbers of draws differ by this factor, at least.
        sized_candidates: The most candidates that are tried with another number of draws.
        slow_evaluation: The time of f at one point from which on few points are used to time it. If
            the points of an estimate take longer, timed steps use values of f that are known.
        groups: The batch is divided into this many groups to estimate the noise of the minibatch.
        truth_repeats: Estimates, at most, of a gradient that no candidate has and that all are
            compared with.
        truth_error: Estimates for a bias end if their noise, counted as a bias, is this share of
            the score.
        reference_share: All these take at most this share of the time left.
        evaluations_per_call: Evaluations of f in one batched call, about.
        entries_per_call: Entries of the gradients of one batched call, about.
        many_entries: If a gradient has more entries, two estimates show its variance.
        selected_entries: Mean and variance are computed for at most this many entries, chosen at
            random.
        first_repeats: Repeats of a first batched call.
        least_repeats: If a batched call holds fewer repeats than this, they run one by one.
        most_repeats: The most repeats that a target error may ask for.
        repeats_for_spread: From this many repeats on, their own spread counts in the error of the
            variance. Fewer say nothing about the tails, so the estimates are taken as normal.
        most_dimensions: At most this many parameters are taken to share the variance; more of them
            are correlated.
        first_error: The error to reach in a first measurement, if a few repeats suffice. From this
            error on, a variance is known better from the same candidate with other draws.
        rounds: For every further round, the error to reach and the number of timed steps.
        timing_seconds: The number of timed steps is larger if they take less than this,
        most_timed_steps: up to this many.
        steps_in_a_row: The user's steps are timed in groups of this many on a GPU, which works on
            one while the next is launched.
        contenders: The most trials in the first of these rounds; then at most half remain.
        contenders_per_candidate: The most of them that differ in their number of draws only.
        reserve_steps: A candidate is only tried if the time left is this many steps of the leader.
        usual_share: The share of the time left that a first measurement may take.
        extra_steps: More first steps, at most, if few parameters share the variance.
        sure_error: The leader is measured again until its error is at most this,
        confirmations: at most this many times.
        confirming_steps: Timed steps of a confirmation; batches may take as long again.
        overtime: The pilot's time is exceeded by more than this factor only to reach `sure_error`.
        rare_repeats: Fewer repeats than this may have missed rare, large values of f.
        doubt_errors: A candidate stays in the race unless it is worse by this many standard errors
        doubt_times: and by this factor, which allows for the error of the times.
        level_times: Candidates whose scores differ by less than this factor are level.
        hope_times: A candidate is too slow if its time alone, without any noise, makes its score
            this many times the best.
    """

    least_budget: int = 64
    exact_points: int = 4096
    momentum_steps: float = 10
    bias_weight: float = 100
    first_evaluations: int = 4
    cheap_evaluations: int = 16
    set_size: int = 16
    first_sets: int = 2
    most_sets: int = 4
    size_step: int = 4
    size_gap: float = 1.5
    sized_candidates: int = 5
    slow_evaluation: float = 0.01
    groups: int = 8
    truth_repeats: int = 32
    truth_error: float = 0.05
    reference_share: float = 1 / 4
    evaluations_per_call: int = 2**12
    entries_per_call: int = 2**20
    many_entries: int = 1000
    selected_entries: int = 2**15
    first_repeats: int = 4
    least_repeats: int = 4
    most_repeats: int = 256
    repeats_for_spread: int = 8
    most_dimensions: float = 100
    first_error: float = 0.3
    rounds: tuple[tuple[float, int], ...] = ((0.2, 2), (0.1, 4))
    timing_seconds: float = 0.05
    most_timed_steps: int = 12
    steps_in_a_row: int = 10
    contenders: int = 6
    contenders_per_candidate: int = 2
    reserve_steps: float = 3
    usual_share: float = 1 / 2
    extra_steps: int = 3
    sure_error: float = 0.25
    confirmations: int = 6
    confirming_steps: int = 2
    overtime: float = 1.1
    rare_repeats: int = 64
    doubt_errors: float = 2
    doubt_times: float = 1.3
    level_times: float = 1.25
    hope_times: float = 1.5


SETTINGS = PilotSettings()
