"""Every claim is decided by its rule, on made-up runs of the paper's sizes."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from catlog_experiments.report.claims import CLAIMS, Verdict, judge
from catlog_experiments.report.runs import TEXTS, Evidence
from made_up_rows import Row, addition, dvae, gradients, optimisation

Made = Mapping[str, Mapping[str, Any]]  # arguments of a function of made_up_rows, by method

MAKERS: dict[str, Callable[..., list[Row]]] = {
    "gradients": gradients, "optimisation": optimisation, "dvae": dvae, "addition": addition,
}  # fmt: skip
YES, NO, UNTESTED = "holds", "does not hold", "not testable"


def decide(
    key: str, made: Made, cases: int = 9, step_ms: Mapping[str, float] | None = None, **more: Any
) -> Verdict:
    """Judge a claim by runs of every size and data set that it is about."""
    (claim,) = [claim for claim in CLAIMS if claim.key == key]
    experiment, rows = key.partition("-")[0], []
    for case in TEXTS["cases"][claim.cases][:cases]:
        settings = {name: case[name] for name in {*case} - {"name", "method", "experiment"}}
        for method in [case["method"]] if "method" in case else made:
            rows += MAKERS[experiment](method, **{**settings, **made[method], **more})
    problem = "dvae, 10 categories" if claim.cases == "categories" else experiment
    times = [{"problem": problem, "method": m, "ms": ms} for m, ms in (step_ms or {}).items()]
    return claim.judge(Evidence.from_rows(rows, times))


def of(name: str, **values: Any) -> Made:
    """Return made-up runs with a value of one argument for each method; _ stands for -."""
    return {method.replace("_", "-"): {name: value} for method, value in values.items()}


def noisy(**variances: float) -> Made:
    return {
        method.replace("_", "-"): {"gradient_variance": value, "gradient_spread": value}
        for method, value in variances.items()
    }


WELL: Made = {
    "IndeCateR": {"distance": 0.0, "variance": 1e-9},
    "REINFORCE": {"distance": 0.3, "variance": 1e-3},
    "RLOO": {"distance": 0.06, "variance": 1e-4},
    "GS": {"distance": 0.13, "variance": 1e-4},
}
WORSE = {**WELL, "IndeCateR": {"distance": 0.2, "variance": 1e-3}}
SPEEDS = of("steps", IndeCateR=100, RLOO_F=200, RLOO_S=800, GS_F=9999)
EXACT = {**SPEEDS, "IndeCateR": {"steps": 100, "noise": 0.0}}
BOUNDS = of("limit", IndeCateR=95.0, RLOO_F=94.0, RLOO_S=115.0, GS_F=100.0, GS_S=104.0)
STEP_MS = {"IndeCateR": 1.0, "RLOO-F": 4.0, "RLOO-S": 0.9, "GS-F": 5.0, "GS-S": 0.9}
BEST = {name: {**BOUNDS[name], "ms": STEP_MS[name]} for name in BOUNDS}
LIMITS = of("limit", IndeCateR_D=230.0, IndeCateR=231.0, RLOO_F=229.5, GS_F=240.0)
TENS = {name: {**LIMITS[name], "ms": 2.0 if "Inde" in name else 9.0} for name in LIMITS}
SOLVED = {"epochs": 50, "digits": 16}
SUMS = of("accuracy", IndeCateR=0.4, IndeCateR_D=0.86, RLOO_F=[0.86, 0.1], RLOO_S=0.05)
SHARES = of("accuracy", IndeCateR_D=0.75)
SPREAD = noisy(IndeCateR=1, RLOO_F=1.2, RLOO_S=9, GS_S=1.5, GS_F=0.5)

# fmt: off
CASES: list[tuple[str, Made, dict[str, Any], str]] = [
    ("gradients", WELL, {}, YES),
    ("gradients", WORSE, {}, NO),
    ("gradients", WELL, {"estimates": [None, 20]}, UNTESTED),
    ("gradients-pairwise", WORSE, {}, NO),
    ("gradients-work", WORSE, {}, YES),  # 25 evaluations
    ("gradients-rloo", {**WELL, "GS": {"distance": 0.01, "variance": 1e-4}}, {}, NO),
    ("gradients-time", {**WELL, "GS": {**WELL["GS"], "seconds": [0.0, 90.0]}}, {}, NO),
    ("optimisation-variance", EXACT, {}, YES),
    ("optimisation-variance", SPEEDS, {}, NO),  # level
    ("optimisation-variance", {**EXACT, "GS-F": {"steps": 9999, "noise": None}}, {}, UNTESTED),
    ("optimisation-speed", SPEEDS, {}, YES),
    ("optimisation-speed", {**SPEEDS, "RLOO-F": {"steps": 100}}, {}, NO),
    ("optimisation-speed", of("steps", IndeCateR=9999, RLOO_F=9999), {}, UNTESTED),
    ("optimisation-speed", SPEEDS, {"seeds": 1}, UNTESTED),
    ("optimisation-relaxation", SPEEDS, {}, YES),
    ("optimisation-time", SPEEDS, {"step_ms": {"IndeCateR": 1.0, "GS-F": 30.0}}, NO),
    ("dvae-time", BEST, {}, YES),
    ("dvae-time", {**BEST, "GS-S": {"limit": 95.0, "ms": 0.9}}, {}, NO),
    ("dvae-time", BEST, {"epoch": [0, 1, 2, 5]}, UNTESTED),
    ("dvae-time", BEST, {"samples": 20}, UNTESTED),  # other methods
    ("dvae-time", BEST, {"step_ms": {**STEP_MS, "IndeCateR": 9.0}}, NO),
    ("dvae-time", BEST, {"step_ms": {"IndeCateR": 1.0, "RLOO-F": 4.0}}, UNTESTED),
    ("dvae-iterations", BEST, {}, YES),
    ("dvae-iterations", {**BEST, "RLOO-F": {"limit": 85.0}}, {}, NO),
    ("dvae-overfitting", BEST, {"test": [500, 100, 95, 100]}, YES),
    ("dvae-overfitting", BEST, {"epoch": [0, 100, 500, 1000]}, NO),
    ("dvae-overfitting", BEST, {}, UNTESTED),
    ("dvae-omniglot", BEST, {"epoch": [0, 100, 200, 500]}, YES),
    ("dvae-omniglot", {**BEST, "GS-F": {"limit": 94.5}}, {"epoch": [0, 100, 200, 500]}, NO),
    ("dvae-spread", SPREAD, {}, YES),
    ("dvae-variance", {**SPREAD, **noisy(GS_S=0.5)}, {}, NO),
    ("dvae-relaxation-time", BEST, {}, YES),
    ("dvae-relaxation-time", BEST, {"step_ms": {"IndeCateR": 1.0, "GS-F": 1.1}}, NO),
    ("dvae-categories", TENS, {}, YES),
    ("dvae-categories", {**TENS, "RLOO-F": {"limit": 200.0, "ms": 9.0}}, {}, NO),
    ("dvae-categories", TENS, {"step_ms": {"IndeCateR": 1.0, "IndeCateR-D": 1.0}}, UNTESTED),
    ("addition", SUMS, SOLVED, YES),
    ("addition", {**SUMS, **of("accuracy", RLOO_F=0.86)}, SOLVED, NO),
    ("addition", of("accuracy", IndeCateR_D=0.86, RLOO_F=0.1), SOLVED, UNTESTED),
    ("addition", SUMS, {"epochs": 9}, UNTESTED),
    ("addition-shared", SUMS, SOLVED, YES),
    ("addition-shared", of("accuracy", IndeCateR=[0.1, 0.9], IndeCateR_D=[0.8, 0.5]), SOLVED, NO),
    ("addition-beyond", SHARES, {"epochs": 50}, YES),
    ("addition-beyond", SHARES, {"cases": 1, "epochs": 50}, UNTESTED),
]
# fmt: on


@pytest.mark.parametrize(
    ("key", "made", "more", "outcome"), CASES, ids=[f"{case[0]}-{case[3]}" for case in CASES]
)
def test_claim_is_decided_by_its_rule(
    key: str, made: Made, more: dict[str, Any], outcome: str
) -> None:
    verdict = decide(key, made, **more)
    assert verdict.outcome == outcome, verdict.why
    assert verdict.why


def test_every_claim_has_a_case() -> None:
    assert {case[0] for case in CASES} == {claim.key for claim in CLAIMS}
    assert len({claim.key for claim in CLAIMS}) == len(CLAIMS) == 20


def test_variances_of_runs_of_different_lengths_are_compared_at_equal_iterations() -> None:
    later = {"gradient_variance": [1.0, 1.0, 1.0, 900.0]}  # where RLOO-F was not run any more
    made = {**SPREAD, "IndeCateR": later}
    assert decide("dvae-variance", made).outcome == NO
    short = {"iteration": [0, 1, 2, 30_000], "epoch": [0, 1, 2, 50], **SPREAD["RLOO-F"]}
    assert decide("dvae-variance", {**made, "RLOO-F": short}).outcome == YES


def test_without_runs_nothing_is_decided() -> None:
    verdicts = [verdict for _, verdict in judge(Evidence.from_rows(dvae("IndeCateR")))]
    assert {verdict.outcome for verdict in verdicts} == {UNTESTED}
    assert verdicts[-1].why.startswith("24 digits: not run")
