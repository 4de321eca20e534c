"""The numbers that steer the pilot of :func:`catlog.advise`.

Times are in seconds, errors are relative standard errors of a variance.
"""

# The default budget, in evaluations of f.
LEAST_BUDGET = 64
EXACT_POINTS = 4096  # it allows Exact for up to this many points

# The score. A momentum of 0.9, which is Adam's too, averages 1 / (1 - 0.9) gradients: this divides
# their noise, not the signal. Bias is not averaged, and it stays when the gradient shrinks. Its
# weight is a rough number: in single runs of two autoencoders, the steps that straight-through
# estimators needed, relative to ReinMax, gave 13, 56 and 240.
MOMENTUM_STEPS = 10.0
BIAS_WEIGHT = 100.0

# First measurements.
FIRST_EVALUATIONS = 4  # of the first number of draws; an expensive candidate keeps its own number
CHEAP_EVALUATIONS = 16  # candidates that need more are tried last
FIRST_REPEATS = 4  # of a first batched call
FIRST_ERROR = 0.3  # to reach if a few repeats suffice; above it, other draws' variance counts
EXTRA_STEPS = 3  # more first steps, at most, if few parameters share the variance
RESERVE_STEPS = 3  # of the leader, which must be left for a candidate to be tried
USUAL_SHARE = 1 / 2  # of the time left that a first measurement may take
COLD_SHARE = 1 / 20  # of the time left; a shorter first step that seems too slow is repeated
HOPE_TIMES = 1.5  # a candidate is too slow if its time alone makes its score so many times the best

# Plain draws are evaluated in sets, which serve all estimators that use such draws, with all
# numbers of draws up to the size of a set.
SET_SIZE = 16
FIRST_SETS = 2  # that are evaluated first,
MOST_SETS = 4  # and at most before the rounds
# The time of f at one point from which on few points are used to time it. If the points of an
# estimate take longer, timed steps use values of f that are known.
SLOW_EVALUATION = 0.01

# Other numbers of draws.
SIZE_STEP = 4  # a promising candidate is timed with so many times the draws
SIZE_GAP = 1.5  # numbers of draws differ by this factor, at least
SIZED_CANDIDATES = 5  # the most that are tried with another number of draws

# What candidates are compared with.
GROUPS = 8  # of the batch, to estimate the noise of the minibatch
TRUTH_REPEATS = 32  # estimates, at most, of a gradient that no candidate has
TRUTH_ERROR = 0.05  # of the score: estimates for a bias end when their noise is this share
REFERENCE_SHARE = 1 / 4  # of the time left that all these take, at most

# Estimates.
EVALUATIONS_PER_CALL = 2**12  # of f in one batched call, about
ENTRIES_PER_CALL = 2**20  # of the gradients of one batched call, about
MANY_ENTRIES = 1000  # if a gradient has more, two estimates show its variance
SELECTED_ENTRIES = 2**15  # chosen at random, of which mean and variance are computed
LEAST_REPEATS = 4  # if a batched call holds fewer, they run one by one
MOST_REPEATS = 256  # that a target error may ask for
# From this many repeats on, their own spread counts in the error of the variance. Fewer say nothing
# about the tails, so the estimates are taken as normal.
REPEATS_FOR_SPREAD = 8
MOST_DIMENSIONS = 100  # parameters that are taken to share the variance; more are correlated

# Rounds: the error to reach and the number of timed steps of each.
ROUNDS = ((0.2, 2), (0.1, 4))
TIMING_SECONDS = 0.05  # there are more timed steps if they take less than this,
MOST_TIMED_STEPS = 12  # up to this many
STEPS_IN_A_ROW = 10  # of the user, timed together on a GPU, which works while the next is launched
CONTENDERS = 6  # trials in the first round, at most; then at most half remain
CONTENDERS_PER_CANDIDATE = 2  # that differ in their number of draws only
DOUBT_ERRORS = 2.0  # a candidate stays in the race unless it is worse by this many errors
DOUBT_TIMES = 1.3  # and by this factor, which allows for the error of the times

# The choice.
SURE_ERROR = 0.25  # the leader is measured again until its error is at most this,
CONFIRMATIONS = 6  # at most this many times
CONFIRMING_STEPS = 2  # timed steps of a confirmation; batches may take as long again
OVERTIME = 1.1  # the pilot's time is exceeded by more than this only to reach the sure error
RARE_REPEATS = 64  # fewer may have missed rare, large values of f
LEVEL_TIMES = 1.25  # candidates whose scores differ by less than this factor are level
