"""Every claim is decided by its rule, on made-up rows of the paper's full size."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from catlog_experiments.report.claims import CLAIMS, Verdict, judge
from catlog_experiments.report.runs import Evidence
from made_up_rows import (
    BEST,
    DATA,
    SIZES,
    STEP_MS,
    WELL,
    Row,
    addition_rows,
    dvae_rows,
    gradients_rows,
    optimisation_rows,
)


def decide(key: str, rows: list[Row], problem: str = "", **step_ms: float) -> Verdict:
    times = [
        {"problem": problem, "method": name.replace("_", "-"), "ms": ms}
        for name, ms in step_ms.items()
    ]
    (claim,) = [claim for claim in CLAIMS if claim.key == key]
    return claim.judge(Evidence.from_rows(rows, times))


def sized(function: str, **changes: tuple[float, float]) -> list[Row]:
    """Return the gradients at all sizes, good for IndeCateR apart from the changes."""
    results = WELL | changes
    return [row for size in SIZES for row in gradients_rows(function, size, results)]


def only(rows: list[Row], *methods: str) -> list[Row]:
    return [row for row in rows if row["estimator"] in methods]


def later(rows: list[Row]) -> list[Row]:
    return [{**row, "seconds": 90 * row["seconds"]} for row in rows]


def gathered(rows_of: Callable[[str, Any], list[Row]], values: Mapping[str, Any]) -> list[Row]:
    """Return the rows of every method with its value; in the keys, _ may stand for -."""
    pairs = ((key.replace("_", "-"), value) for key, value in values.items())
    return [row for method, value in pairs for row in rows_of(method, value)]


def optimised(**speeds: float) -> list[Row]:
    return gathered(lambda method, speed: optimisation_rows(method, speed, 1e-9), speeds)


def added(digits: int = 16, **accuracies: Any) -> list[Row]:
    return gathered(lambda method, share: addition_rows(digits, method, share), accuracies)


def autoencoders(
    data: tuple[str, ...] = DATA, methods: Mapping[str, float] = BEST, **changes: Any
) -> list[Row]:
    def rows_of(method: str, limit: float) -> list[Row]:
        ms = STEP_MS[method]
        return [row for name in data for row in dvae_rows(name, method, limit, ms, **changes)]

    return gathered(rows_of, methods)


def noisy(**variances: float) -> list[Row]:
    return gathered(lambda name, v: autoencoders(methods={name: 95.0}, variance=v), variances)


def categorical(limits: dict[str, float]) -> list[Row]:
    def rows_of(method: str, limit: float) -> list[Row]:
        ms = 2.0 if "Inde" in method else 9.0
        return dvae_rows("fashion-mnist", method, limit, ms, categories=10)

    return gathered(rows_of, limits)


SPEEDS = {"IndeCateR": 0.02, "RLOO_F": 0.01, "RLOO_S": 0.003, "GS_F": 0.0001}
RIVALS = {"RLOO_F": 0.01, "RLOO_S": 0.003, "GS_F": 0.0001}
UNLOGGED = [{**row, "gradient_variance": None} for row in optimised(GS_F=1e-4)]
EXACT = optimisation_rows("IndeCateR", 0.01, 0.0)
SUMS = {"IndeCateR": 0.4, "IndeCateR_D": 0.86, "RLOO_F": [0.86, 0.86, 0.1], "RLOO_S": 0.05}
LIMITS = {"IndeCateR-D": 230.0, "IndeCateR": 231.0, "RLOO-F": 229.5, "GS-F": 240.0}
ADDITIVE = sized("additive")
FEW_ESTIMATES = gradients_rows("additive", (12, 3), WELL, estimates=20)

YES, NO, UNTESTED, NOT_RUN = "holds", "does not hold", "not testable", "not run"

# fmt: off
GRADIENTS = [
    ("gradients", ADDITIVE, YES),
    ("gradients", sized("additive", IndeCateR=(0.2, 1e-9)), NO),
    ("gradients", FEW_ESTIMATES, UNTESTED),
    ("gradients", gradients_rows("additive", (12, 3), WELL), UNTESTED),  # one size
    ("gradients-pairwise", sized("pairwise", IndeCateR=(0.0, 1e-3)), NO),
    ("gradients-work", sized("pairwise", IndeCateR=(0.0, 1e-3)), YES),  # 25 evaluations
    ("gradients-rloo", sized("additive", GS=(0.01, 1e-4)), NO),
    ("gradients-time", only(ADDITIVE, "IndeCateR") + later(only(ADDITIVE, "GS")), NO),
]
OPTIMISATION = [
    ("optimisation-variance", EXACT + optimised(**RIVALS), YES),
    ("optimisation-variance", optimised(**SPEEDS), NO),
    ("optimisation-variance", EXACT + optimised(RLOO_F=0.01, RLOO_S=0.01) + UNLOGGED, UNTESTED),
    ("optimisation-speed", optimised(**SPEEDS | {"RLOO_F": 0.02}), NO),
    ("optimisation-speed", optimised(IndeCateR=1e-5, RLOO_F=1e-5), UNTESTED),
    ("optimisation-speed", [row for row in optimised(**SPEEDS) if row["seed"] == 0], UNTESTED),
    ("optimisation-relaxation", optimised(**SPEEDS), YES),
    ("optimisation-relaxation", [r for r in optimised(**SPEEDS) if r["iteration"] < 400], UNTESTED),
    ("optimisation-time", optimised(IndeCateR=0.02) + later(optimised(GS_F=0.1)), NO),
]
AUTOENCODERS = [
    ("dvae-time", autoencoders(), YES),
    ("dvae-time", autoencoders(methods=BEST | {"GS-S": 95.0, "IndeCateR": 95.0}), NO),
    ("dvae-time", autoencoders(epochs=5), UNTESTED),
    ("dvae-time", [{**row, "samples": 20} for row in autoencoders()], NOT_RUN),
    ("dvae-iterations", autoencoders(), YES),
    ("dvae-iterations", autoencoders(methods=BEST | {"RLOO-F": 85.0}), NO),
    ("dvae-overfitting", autoencoders(rise=20.0, epochs=200), YES),
    ("dvae-overfitting", autoencoders(epochs=1000), NO),
    ("dvae-overfitting", autoencoders(epochs=100), UNTESTED),
    ("dvae-omniglot", autoencoders(epochs=1000), YES),
    ("dvae-omniglot", autoencoders(epochs=1000, methods=BEST | {"GS-F": 94.5}), NO),
    ("dvae-spread", noisy(IndeCateR=1, RLOO_F=1.2, RLOO_S=9, GS_S=1.5, GS_F=0.5), YES),
    ("dvae-variance", noisy(IndeCateR=1, RLOO_F=1, RLOO_S=9, GS_S=0.5, GS_F=0.5), NO),
    ("dvae-relaxation-time", autoencoders(), YES),
    ("dvae-relaxation-time", autoencoders(methods={"IndeCateR": 95.0}), NOT_RUN),
    ("dvae-categories", categorical(LIMITS), YES),
    ("dvae-categories", categorical(LIMITS | {"RLOO-F": 200.0}), NO),
]
ADDITION = [
    ("addition", added(**SUMS), YES),
    ("addition", added(**SUMS | {"RLOO_F": 0.86}), NO),
    ("addition", added(IndeCateR_D=0.86, RLOO_F=0.1), UNTESTED),
    ("addition", [row for row in added(**SUMS) if row["epoch"] < 9], UNTESTED),
    ("addition-shared", added(**SUMS), YES),
    ("addition-shared", added(IndeCateR=[0.4], IndeCateR_D=[0.8]), UNTESTED),
    ("addition-beyond", added(24, IndeCateR_D=0.75) + added(32, IndeCateR_D=0.7), YES),
]
# fmt: on
CASES = GRADIENTS + OPTIMISATION + AUTOENCODERS + ADDITION
NAMES = [f"{key}-{outcome}" for key, _, outcome in CASES]


@pytest.mark.parametrize(("key", "rows", "outcome"), CASES, ids=NAMES)
def test_claim_is_decided_by_its_rule(key: str, rows: list[Row], outcome: str) -> None:
    verdict = decide(key, rows)
    assert verdict.outcome == outcome, verdict.why
    assert verdict.why


def test_every_claim_has_a_case() -> None:
    assert {key for key, _, _ in CASES} == {claim.key for claim in CLAIMS}
    assert len({claim.key for claim in CLAIMS}) == len(CLAIMS) == 20


def test_step_times_decide_over_the_clocks() -> None:
    rows, ten = autoencoders(), "dvae, 10 categories"
    assert decide("dvae-relaxation-time", rows, "dvae", IndeCateR=1.0, GS_F=1.1).outcome == NO
    slow = {name.replace("-", "_"): 1.0 for name in BEST} | {"IndeCateR": 9.0}
    assert decide("dvae-time", rows, "dvae", **slow).outcome == NO
    assert decide("dvae-time", rows, "dvae", IndeCateR=1.0, RLOO_F=4.0).outcome == UNTESTED
    untimed = decide("dvae-categories", categorical(LIMITS), ten, IndeCateR=1.0, IndeCateR_D=1.0)
    assert untimed.outcome == UNTESTED
    uneven = decide("optimisation-time", optimised(**SPEEDS), "optimisation", IndeCateR=1, GS_F=30)
    assert uneven.outcome == NO


def test_variances_of_runs_of_different_lengths_are_compared_at_equal_iterations() -> None:
    rows = noisy(IndeCateR=1, RLOO_F=1.2, RLOO_S=9, GS_S=1.5, GS_F=0.5)
    for row in rows:  # in the second half IndeCateR is noisier, but RLOO-F was not run so far
        is_second_half = row["epoch"] > 50
        if row["estimator"] == "IndeCateR" and is_second_half:
            row["gradient_variance"] *= 100
    longer = decide("dvae-variance", rows)
    assert longer.outcome == NO
    cut = [row for row in rows if row["estimator"] != "RLOO-F" or row["epoch"] <= 50]
    assert decide("dvae-variance", cut).outcome == YES


def test_small_runs_are_not_testable_and_missing_runs_are_not_run() -> None:
    small = [{**row, "data": "mnist-5000"} for row in autoencoders(data=("mnist",), epochs=2)]
    verdicts = {claim.key: verdict for claim, verdict in judge(Evidence.from_rows(small))}
    assert verdicts["dvae-time"].outcome == UNTESTED
    assert verdicts["dvae-time"].why.startswith("at this size")
    assert verdicts["addition"].outcome == NOT_RUN
    assert {verdict.outcome for _, verdict in judge(Evidence.from_rows([]))} == {NOT_RUN}
