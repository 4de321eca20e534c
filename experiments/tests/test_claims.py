"""Every claim is decided by its rule, on made-up rows of the paper's full size."""

from typing import Any

import pytest

from catlog_experiments.report import claims
from catlog_experiments.report.claims import CLAIMS, Claim, Verdict, judge
from catlog_experiments.report.runs import Evidence
from catlog_experiments.report.step_times import NO_STEP_TIMES, StepTimes
from made_up_rows import (
    BEST,
    STEP_MS,
    WELL,
    Row,
    addition_rows,
    dvae_rows,
    gradients_rows,
    optimisation_rows,
)


def decide(claim: Claim, rows: list[Row], times: StepTimes = NO_STEP_TIMES) -> Verdict:
    return claim.judge(Evidence.from_rows(rows, times))


def sized(function: str, **changes: tuple[float, float]) -> list[Row]:
    """Return the gradients at all sizes, good for IndeCateR apart from the changes."""
    results = WELL | changes
    return [row for size in claims.SIZES for row in gradients_rows(function, size, results)]


def only(rows: list[Row], *methods: str) -> list[Row]:
    return [row for row in rows if row["estimator"] in methods]


def later(rows: list[Row]) -> list[Row]:
    return [{**row, "seconds": 90 * row["seconds"]} for row in rows]


def optimised(**speeds: float) -> list[Row]:
    return [
        row
        for method, speed in speeds.items()
        for row in optimisation_rows(method.replace("_", "-"), speed, 1e-9)
    ]


def autoencoders(
    data: tuple[str, ...] = claims.DATA, methods: dict[str, float] = BEST, **changes: Any
) -> list[Row]:
    return [
        row
        for name in data
        for method, limit in methods.items()
        for row in dvae_rows(name, method, limit, STEP_MS[method], **changes)
    ]


def noisy(**variances: float) -> list[Row]:
    return [
        row
        for name in claims.DATA
        for method, variance in variances.items()
        for row in dvae_rows(name, method.replace("_", "-"), 95.0, 1.0, variance=variance)
    ]


def categorical(limits: dict[str, float], **changes: Any) -> list[Row]:
    ms = {"IndeCateR": 2.0, "IndeCateR-D": 2.0, "RLOO-F": 9.0}
    return [
        row
        for method, limit in limits.items()
        for row in dvae_rows("fashion-mnist", method, limit, ms[method], categories=10, **changes)
    ]


def added(digits: int = 16, **accuracies: Any) -> list[Row]:
    return [
        row
        for method, accuracy in accuracies.items()
        for row in addition_rows(digits, method.replace("_", "-"), accuracy)
    ]


SPEEDS = {"IndeCateR": 0.02, "RLOO_F": 0.01, "RLOO_S": 0.003, "GS_F": 0.0001}
RIVALS = {"RLOO_F": 0.01, "RLOO_S": 0.003, "GS_F": 0.0001}
EXACT = optimisation_rows("IndeCateR", 0.01, 0.0)
SUMS = {"IndeCateR": 0.4, "IndeCateR_D": 0.86, "RLOO_F": [0.86, 0.86, 0.1], "RLOO_S": 0.05}
LIMITS = {"IndeCateR-D": 230.0, "IndeCateR": 231.0, "RLOO-F": 229.5}
ADDITIVE = sized("additive")
FEW_ESTIMATES = gradients_rows("additive", (12, 3), WELL, estimates=20)

YES, NO, UNTESTED, NOT_RUN = "holds", "does not hold", "not testable", "not run"

# fmt: off
GRADIENTS = [
    (claims.additive_gradients, ADDITIVE, YES),
    (claims.additive_gradients, sized("additive", GS=(0.1, 5e-9)), NO),
    (claims.additive_gradients, sized("additive", IndeCateR=(0.2, 1e-9)), NO),
    (claims.additive_gradients, FEW_ESTIMATES, UNTESTED),
    (claims.additive_gradients, gradients_rows("additive", (12, 3), WELL), UNTESTED),  # one size
    (claims.additive_gradients, only(ADDITIVE, "IndeCateR", "RLOO"), UNTESTED),
    (claims.additive_gradients, sized("pairwise"), NOT_RUN),
    (claims.pairwise_gradients, sized("pairwise"), YES),
    (claims.pairwise_gradients, sized("pairwise", IndeCateR=(0.0, 1e-3)), NO),
    (claims.variance_by_work, sized("pairwise", IndeCateR=(0.0, 1e-3)), YES),  # 25 evaluations
    (claims.variance_by_work, sized("pairwise", IndeCateR=(0.0, 1e-2)), NO),
    (claims.rloo_next, ADDITIVE, YES),
    (claims.rloo_next, sized("additive", GS=(0.01, 1e-4)), NO),
    (claims.rloo_next, [], NOT_RUN),
    (claims.gradients_time, ADDITIVE, YES),
    (claims.gradients_time, only(ADDITIVE, "IndeCateR") + later(only(ADDITIVE, "GS")), NO),
    (claims.gradients_time, only(ADDITIVE, "IndeCateR"), NOT_RUN),
]
OPTIMISATION = [
    (claims.lowest_variance, EXACT + optimised(**RIVALS), YES),
    (claims.lowest_variance, optimised(**SPEEDS), NO),
    (claims.lowest_variance, EXACT + optimised(RLOO_F=0.01), UNTESTED),
    (claims.fewest_iterations, optimised(**SPEEDS), YES),
    (claims.fewest_iterations, optimised(**SPEEDS | {"RLOO_F": 0.02}), NO),
    (claims.fewest_iterations, optimised(**SPEEDS | {"RLOO_F": 0.05}), NO),
    (claims.fewest_iterations, optimised(IndeCateR=1e-5, RLOO_F=1e-5), UNTESTED),
    (claims.fewest_iterations, [row for row in optimised(**SPEEDS) if row["seed"] == 0], UNTESTED),
    (claims.fewest_iterations, [], NOT_RUN),
    (claims.relaxation_struggles, optimised(**SPEEDS), YES),
    (claims.relaxation_struggles, optimised(IndeCateR=0.02, GS_F=0.02), NO),
    (
        claims.relaxation_struggles,
        [row for row in optimised(**SPEEDS) if row["iteration"] < 400],
        UNTESTED,
    ),
    (claims.optimisation_time, optimised(**SPEEDS), YES),
    (claims.optimisation_time, optimised(IndeCateR=0.02) + later(optimised(GS_F=0.1)), NO),
]
AUTOENCODERS = [
    (claims.train_at_equal_time, autoencoders(), YES),
    (claims.train_at_equal_time, autoencoders(methods=BEST | {"GS-S": 90.0}), NO),
    (claims.train_at_equal_time, autoencoders(methods=BEST | {"GS-S": 95, "IndeCateR": 95}), NO),
    (claims.train_at_equal_time, autoencoders(data=("mnist",)), UNTESTED),
    (claims.train_at_equal_time, autoencoders(epochs=5), UNTESTED),
    (claims.train_at_equal_time, autoencoders(seeds=1), UNTESTED),
    (claims.train_at_equal_time, only(autoencoders(), "IndeCateR", "RLOO-F"), UNTESTED),
    (claims.train_at_equal_time, [{**row, "samples": 20} for row in autoencoders()], NOT_RUN),
    (claims.near_rloo, autoencoders(), YES),
    (claims.near_rloo, autoencoders(methods=BEST | {"RLOO-F": 85.0}), NO),
    (claims.near_rloo, autoencoders(epochs=3), UNTESTED),
    (claims.overfitting, autoencoders(rise=20.0, epochs=200), YES),
    (claims.overfitting, autoencoders(epochs=1000), NO),
    (claims.overfitting, autoencoders(epochs=100), UNTESTED),
    (claims.best_test_omniglot, autoencoders(epochs=1000), YES),
    (claims.best_test_omniglot, autoencoders(epochs=1000, methods=BEST | {"GS-F": 94.5}), NO),
    (claims.best_test_omniglot, autoencoders(), UNTESTED),
    (claims.comparable_spread, noisy(IndeCateR=1, RLOO_F=1.2, RLOO_S=9, GS_S=1.5, GS_F=0.5), YES),
    (claims.comparable_spread, noisy(IndeCateR=1, RLOO_F=0.1, RLOO_S=9, GS_S=2, GS_F=0.5), NO),
    (claims.comparable_variance, noisy(IndeCateR=1, RLOO_F=1, RLOO_S=9, GS_S=0.5, GS_F=0.5), NO),
    (claims.comparable_variance, noisy(IndeCateR=1, RLOO_F=1, RLOO_S=9), UNTESTED),
    (claims.relaxation_slower, autoencoders(), YES),
    (claims.relaxation_slower, autoencoders(methods={"IndeCateR": 95.0}), NOT_RUN),
    (claims.categorical, categorical(LIMITS), YES),
    (claims.categorical, categorical(LIMITS | {"RLOO-F": 200.0}), NO),
    (claims.categorical, categorical(LIMITS, epochs=4), UNTESTED),
    (claims.categorical, categorical(LIMITS, seeds=1), UNTESTED),
]
ADDITION = [
    (claims.only_per_variable, added(**SUMS), YES),
    (claims.only_per_variable, added(**SUMS | {"RLOO_F": 0.86}), NO),
    (claims.only_per_variable, added(**SUMS | {"IndeCateR_D": [0.86, 0.3]}), NO),
    (claims.only_per_variable, added(IndeCateR_D=0.86, RLOO_F=0.1), UNTESTED),
    (claims.only_per_variable, [row for row in added(**SUMS) if row["epoch"] < 9], UNTESTED),
    (claims.only_per_variable, added(digits=8, **SUMS), NOT_RUN),
    (claims.per_variable_beats_shared, added(**SUMS), YES),
    (claims.per_variable_beats_shared, added(**SUMS | {"IndeCateR": 0.86}), NO),
    (claims.per_variable_beats_shared, added(IndeCateR=[0.4], IndeCateR_D=[0.8]), UNTESTED),
    (claims.beyond, added(24, IndeCateR_D=0.75) + added(32, IndeCateR_D=0.7), YES),
    (claims.beyond, added(24, IndeCateR_D=0.75) + added(32, IndeCateR_D=0.5), NO),
    (claims.beyond, added(24, IndeCateR_D=0.75), UNTESTED),
    (claims.beyond, [], NOT_RUN),
]
# fmt: on
CASES = GRADIENTS + OPTIMISATION + AUTOENCODERS + ADDITION
NAMES = [f"{claim.key}-{outcome}" for claim, _, outcome in CASES]


@pytest.mark.parametrize(("claim", "rows", "outcome"), CASES, ids=NAMES)
def test_claim_is_decided_by_its_rule(claim: Claim, rows: list[Row], outcome: str) -> None:
    verdict = decide(claim, rows)
    assert verdict.outcome == outcome, verdict.why
    assert verdict.why


def test_every_claim_has_a_case() -> None:
    assert {claim.key for claim, _, _ in CASES} == {claim.key for claim in CLAIMS}
    assert len({claim.key for claim in CLAIMS}) == len(CLAIMS) == 20


def test_step_times_decide_over_the_clocks() -> None:
    rows = autoencoders()
    level = StepTimes({("dvae", "IndeCateR"): 1.0, ("dvae", "GS-F"): 1.1})
    assert decide(claims.relaxation_slower, rows, level).outcome == NO
    slow = StepTimes({("dvae", name): 9.0 if name == "IndeCateR" else 1.0 for name in BEST})
    assert decide(claims.train_at_equal_time, rows, slow).outcome == NO
    two_methods = StepTimes({("dvae", "IndeCateR"): 1.0, ("dvae", "RLOO-F"): 4.0})
    assert decide(claims.train_at_equal_time, rows, two_methods).outcome == UNTESTED
    of_two = StepTimes(
        {("dvae, 10 categories", name): 1.0 for name in ("IndeCateR", "IndeCateR-D")}
    )
    assert decide(claims.categorical, categorical(LIMITS), of_two).outcome == UNTESTED
    uneven = StepTimes({("optimisation", "IndeCateR"): 1.0, ("optimisation", "GS-F"): 30.0})
    assert decide(claims.optimisation_time, optimised(**SPEEDS), uneven).outcome == NO


def test_variances_of_runs_of_different_lengths_are_compared_at_equal_iterations() -> None:
    rows = noisy(IndeCateR=1, RLOO_F=1.2, RLOO_S=9, GS_S=1.5, GS_F=0.5)
    for row in rows:  # in the second half IndeCateR is noisier, but RLOO-F was not run so far
        is_second_half = row["epoch"] > 50
        if row["estimator"] == "IndeCateR" and is_second_half:
            row["gradient_variance"] *= 100
    longer = decide(claims.comparable_variance, rows)
    assert longer.outcome == NO
    cut = [row for row in rows if row["estimator"] != "RLOO-F" or row["epoch"] <= 50]
    assert decide(claims.comparable_variance, cut).outcome == YES


def test_small_runs_are_not_testable_and_missing_runs_are_not_run() -> None:
    small = [{**row, "data": "mnist-5000"} for row in autoencoders(data=("mnist",), epochs=2)]
    verdicts = {claim.key: verdict for claim, verdict in judge(Evidence.from_rows(small))}
    assert verdicts["dvae-time"].outcome == UNTESTED
    assert verdicts["dvae-time"].why.startswith("at this size")
    assert verdicts["addition"].outcome == NOT_RUN
    assert {verdict.outcome for _, verdict in judge(Evidence([]))} == {NOT_RUN}
