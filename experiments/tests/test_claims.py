"""Every claim is decided by its rule, on made-up rows of the paper's full size."""

from typing import Any

import pytest

from catlog_experiments.report.claims import (
    CLAIMS,
    Claim,
    Verdict,
    addition,
    dvae,
    gradients,
    judge,
)
from catlog_experiments.report.claims import optimisation as opt
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
    return [row for size in gradients.SIZES for row in gradients_rows(function, size, results)]


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
    data: tuple[str, ...] = dvae.DATA, methods: dict[str, float] = BEST, **changes: Any
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
        for name in dvae.DATA
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
    (gradients.additive_gradients, ADDITIVE, YES),
    (gradients.additive_gradients, sized("additive", GS=(0.1, 5e-9)), NO),
    (gradients.additive_gradients, sized("additive", IndeCateR=(0.2, 1e-9)), NO),
    (gradients.additive_gradients, FEW_ESTIMATES, UNTESTED),
    (gradients.additive_gradients, gradients_rows("additive", (12, 3), WELL), UNTESTED),  # one size
    (gradients.additive_gradients, only(ADDITIVE, "IndeCateR", "RLOO"), UNTESTED),
    (gradients.additive_gradients, sized("pairwise"), NOT_RUN),
    (gradients.pairwise_gradients, sized("pairwise"), YES),
    (gradients.pairwise_gradients, sized("pairwise", IndeCateR=(0.0, 1e-3)), NO),
    (gradients.variance_by_work, sized("pairwise", IndeCateR=(0.0, 1e-3)), YES),  # 25 evaluations
    (gradients.variance_by_work, sized("pairwise", IndeCateR=(0.0, 1e-2)), NO),
    (gradients.rloo_next, ADDITIVE, YES),
    (gradients.rloo_next, sized("additive", GS=(0.01, 1e-4)), NO),
    (gradients.rloo_next, [], NOT_RUN),
    (gradients.gradients_time, ADDITIVE, YES),
    (gradients.gradients_time, only(ADDITIVE, "IndeCateR") + later(only(ADDITIVE, "GS")), NO),
    (gradients.gradients_time, only(ADDITIVE, "IndeCateR"), NOT_RUN),
]
OPTIMISATION = [
    (opt.lowest_variance, EXACT + optimised(**RIVALS), YES),
    (opt.lowest_variance, optimised(**SPEEDS), NO),
    (opt.lowest_variance, EXACT + optimised(RLOO_F=0.01), UNTESTED),
    (opt.fewest_iterations, optimised(**SPEEDS), YES),
    (opt.fewest_iterations, optimised(**SPEEDS | {"RLOO_F": 0.02}), NO),
    (opt.fewest_iterations, optimised(**SPEEDS | {"RLOO_F": 0.05}), NO),
    (opt.fewest_iterations, optimised(IndeCateR=1e-5, RLOO_F=1e-5), UNTESTED),
    (opt.fewest_iterations, [row for row in optimised(**SPEEDS) if row["seed"] == 0], UNTESTED),
    (opt.fewest_iterations, [], NOT_RUN),
    (opt.relaxation_struggles, optimised(**SPEEDS), YES),
    (opt.relaxation_struggles, optimised(IndeCateR=0.02, GS_F=0.02), NO),
    (opt.relaxation_struggles, [r for r in optimised(**SPEEDS) if r["iteration"] < 400], UNTESTED),
    (opt.optimisation_time, optimised(**SPEEDS), YES),
    (opt.optimisation_time, optimised(IndeCateR=0.02) + later(optimised(GS_F=0.1)), NO),
]
AUTOENCODERS = [
    (dvae.train_at_equal_time, autoencoders(), YES),
    (dvae.train_at_equal_time, autoencoders(methods=BEST | {"GS-S": 90.0}), NO),
    (dvae.train_at_equal_time, autoencoders(methods=BEST | {"GS-S": 95.0, "IndeCateR": 95.0}), NO),
    (dvae.train_at_equal_time, autoencoders(data=("mnist",)), UNTESTED),
    (dvae.train_at_equal_time, autoencoders(epochs=5), UNTESTED),
    (dvae.train_at_equal_time, autoencoders(seeds=1), UNTESTED),
    (dvae.train_at_equal_time, only(autoencoders(), "IndeCateR", "RLOO-F"), UNTESTED),
    (dvae.train_at_equal_time, [{**row, "samples": 20} for row in autoencoders()], NOT_RUN),
    (dvae.near_rloo, autoencoders(), YES),
    (dvae.near_rloo, autoencoders(methods=BEST | {"RLOO-F": 85.0}), NO),
    (dvae.near_rloo, autoencoders(epochs=3), UNTESTED),
    (dvae.overfitting, autoencoders(rise=20.0, epochs=200), YES),
    (dvae.overfitting, autoencoders(epochs=1000), NO),
    (dvae.overfitting, autoencoders(epochs=100), UNTESTED),
    (dvae.best_test_omniglot, autoencoders(epochs=1000), YES),
    (dvae.best_test_omniglot, autoencoders(epochs=1000, methods=BEST | {"GS-F": 94.5}), NO),
    (dvae.best_test_omniglot, autoencoders(), UNTESTED),
    (dvae.comparable_spread, noisy(IndeCateR=1, RLOO_F=1.2, RLOO_S=9, GS_S=1.5, GS_F=0.5), YES),
    (dvae.comparable_spread, noisy(IndeCateR=1, RLOO_F=0.1, RLOO_S=9, GS_S=2, GS_F=0.5), NO),
    (dvae.comparable_variance, noisy(IndeCateR=1, RLOO_F=1, RLOO_S=9, GS_S=0.5, GS_F=0.5), NO),
    (dvae.comparable_variance, noisy(IndeCateR=1, RLOO_F=1, RLOO_S=9), UNTESTED),
    (dvae.relaxation_slower, autoencoders(), YES),
    (dvae.relaxation_slower, autoencoders(methods={"IndeCateR": 95.0}), NOT_RUN),
    (dvae.categorical, categorical(LIMITS), YES),
    (dvae.categorical, categorical(LIMITS | {"RLOO-F": 200.0}), NO),
    (dvae.categorical, categorical(LIMITS, epochs=4), UNTESTED),
    (dvae.categorical, categorical(LIMITS, seeds=1), UNTESTED),
]
ADDITION = [
    (addition.only_per_variable, added(**SUMS), YES),
    (addition.only_per_variable, added(**SUMS | {"RLOO_F": 0.86}), NO),
    (addition.only_per_variable, added(**SUMS | {"IndeCateR_D": [0.86, 0.3]}), NO),
    (addition.only_per_variable, added(IndeCateR_D=0.86, RLOO_F=0.1), UNTESTED),
    (addition.only_per_variable, [row for row in added(**SUMS) if row["epoch"] < 9], UNTESTED),
    (addition.only_per_variable, added(digits=8, **SUMS), NOT_RUN),
    (addition.per_variable_beats_shared, added(**SUMS), YES),
    (addition.per_variable_beats_shared, added(**SUMS | {"IndeCateR": 0.86}), NO),
    (addition.per_variable_beats_shared, added(IndeCateR=[0.4], IndeCateR_D=[0.8]), UNTESTED),
    (addition.beyond, added(24, IndeCateR_D=0.75) + added(32, IndeCateR_D=0.7), YES),
    (addition.beyond, added(24, IndeCateR_D=0.75) + added(32, IndeCateR_D=0.5), NO),
    (addition.beyond, added(24, IndeCateR_D=0.75), UNTESTED),
    (addition.beyond, [], NOT_RUN),
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
    assert decide(dvae.relaxation_slower, rows, level).outcome == NO
    slow = StepTimes({("dvae", name): 9.0 if name == "IndeCateR" else 1.0 for name in BEST})
    assert decide(dvae.train_at_equal_time, rows, slow).outcome == NO
    two_methods = StepTimes({("dvae", "IndeCateR"): 1.0, ("dvae", "RLOO-F"): 4.0})
    assert decide(dvae.train_at_equal_time, rows, two_methods).outcome == UNTESTED
    of_two = StepTimes(
        {("dvae, 10 categories", name): 1.0 for name in ("IndeCateR", "IndeCateR-D")}
    )
    assert decide(dvae.categorical, categorical(LIMITS), of_two).outcome == UNTESTED
    uneven = StepTimes({("optimisation", "IndeCateR"): 1.0, ("optimisation", "GS-F"): 30.0})
    assert decide(opt.optimisation_time, optimised(**SPEEDS), uneven).outcome == NO


def test_variances_of_runs_of_different_lengths_are_compared_at_equal_iterations() -> None:
    rows = noisy(IndeCateR=1, RLOO_F=1.2, RLOO_S=9, GS_S=1.5, GS_F=0.5)
    for row in rows:  # in the second half IndeCateR is noisier, but RLOO-F was not run so far
        is_second_half = row["epoch"] > 50
        if row["estimator"] == "IndeCateR" and is_second_half:
            row["gradient_variance"] *= 100
    longer = decide(dvae.comparable_variance, rows)
    assert longer.outcome == NO
    cut = [row for row in rows if row["estimator"] != "RLOO-F" or row["epoch"] <= 50]
    assert decide(dvae.comparable_variance, cut).outcome == YES


def test_small_runs_are_not_testable_and_missing_runs_are_not_run() -> None:
    small = [{**row, "data": "mnist-5000"} for row in autoencoders(data=("mnist",), epochs=2)]
    verdicts = {claim.key: verdict for claim, verdict in judge(Evidence.from_rows(small))}
    assert verdicts["dvae-time"].outcome == UNTESTED
    assert verdicts["dvae-time"].why.startswith("at this size")
    assert verdicts["addition"].outcome == NOT_RUN
    assert {verdict.outcome for _, verdict in judge(Evidence([]))} == {NOT_RUN}
