"""The numbers that steer the pilot of :func:`catlog.advise`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PilotSettings:
    """Limits of the pilot. Times are in seconds, errors are relative standard errors of a variance.

    Attributes:
        least_budget: The smallest default budget, in evaluations of f.
        exact_points: The default budget allows Exact for up to this many points.
        first_evaluations: A candidate is first tried with as many draws as need this many
            evaluations; an expensive one with its own number of draws.
        cheap_evaluations: Candidates that need more evaluations than this are tried last.
        size_step: It is then timed with this many times the draws, to predict the best number.
        size_doubt: The predicted number is tried if its score is at most this many times the best.
        slow_evaluation: The time of f at one point from which on few points are used to time it.
        groups: The batch is divided into this many groups to estimate the noise of the minibatch.
        truth_repeats: Estimates of the gradient that a biased one is compared with under a loss.
        momentum_steps: Gradients that an optimiser averages: 1 / (1 - 0.9) with the usual momentum.
        bias_weight: The weight of a squared bias relative to a variance; a rough number. In one run
            each of two autoencoders, the steps that Gumbel-Softmax needed, relative to ReinMax,
            gave 56 (20 variables of 10 categories) and 13 (200 bits).
        first_share: The share of the pilot's time in which all candidates are tried with few draws.
        reference_share: The share of the time left for the unbiased estimator that biases are
            measured against.
        evaluations_per_call: Evaluations of f in one batched call, about.
        first_repeats: Repeats of the first batched call.
        least_repeats: If a batched call holds fewer repeats than this, they run one by one.
        most_repeats: The most repeats that a target error may ask for.
        repeats_for_spread: From this many repeats on, their own spread counts in the error of the
            variance. Fewer say nothing about the tails, so the estimates are taken as normal.
        rounds: For every round, the error to reach and the number of timed steps.
        reserve_steps: A candidate is only tried if the time left is this many steps of the leader.
        usual_share: The share of the time left that a first measurement may take.
        batch_share, batch_steps: The first batches of a candidate take at most this share of the
            time left, and at most as long as this many of its steps.
        extra_steps: More first steps, at most, if few parameters share the variance.
        sure_error: The leader is measured again until its error is at most this,
        confirmations: at most this many times.
        confirming_steps: Timed steps of a confirmation; batches may take as long again.
        overtime: The pilot's time is exceeded by more than this factor only to reach `sure_error`.
        rare_repeats: Fewer repeats than this may have missed rare, large values of f.
        doubt_errors: A candidate stays in the race unless it is worse by this many standard errors
        doubt_times: and by this factor, which allows for the error of the times.
    """

    least_budget: int = 64
    exact_points: int = 4096
    first_evaluations: int = 4
    cheap_evaluations: int = 16
    size_step: int = 4
    size_doubt: float = 3
    slow_evaluation: float = 0.01
    groups: int = 8
    truth_repeats: int = 32
    momentum_steps: float = 10
    bias_weight: float = 25
    first_share: float = 0.5
    reference_share: float = 1 / 4
    evaluations_per_call: int = 2**12
    first_repeats: int = 16
    least_repeats: int = 4
    most_repeats: int = 256
    repeats_for_spread: int = 8
    rounds: tuple[tuple[float, int], ...] = ((0.3, 1), (0.12, 2), (0.06, 3))
    reserve_steps: float = 3
    usual_share: float = 1 / 2
    batch_share: float = 1 / 6
    batch_steps: float = 6
    extra_steps: int = 3
    sure_error: float = 0.25
    confirmations: int = 6
    confirming_steps: int = 2
    overtime: float = 1.1
    rare_repeats: int = 64
    doubt_errors: float = 2
    doubt_times: float = 1.1


DEFAULTS = PilotSettings()
