"""Every benchmark runs in its quick mode, and agrees with what is known."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
import torch
from benchmarks.from_gumbel_softmax import Autoencoder
from benchmarks.measuring import Args, Page, Row, Rows, Table, grouped, keyed, selected
from torch.distributions import Independent, OneHotCategorical

import catlog
from catlog.estimators import ESTIMATORS

Measure = Callable[..., list[Row]]


@pytest.fixture
def measure(tmp_path: Path) -> Measure:
    """Return a function that runs a benchmark and returns the rows of one of its files."""

    def rows(page: str, place: str, *arguments: str) -> list[Row]:
        benchmark = import_module(f"benchmarks.{page}").page
        benchmark.run(["--quick", "--output", str(tmp_path), *arguments])
        return Table(tmp_path / place, ()).rows

    return rows


def test_a_run_resumes_and_a_new_curve_replaces_the_old_one(tmp_path: Path) -> None:
    page = Page("", length=0)

    @page.section("curve.csv", "method")
    def curve(args: Args, table: Table) -> Rows:
        yield [{"method": "a", "step": i, "loss": 1.5, "unknown": None} for i in range(args.length)]

    for length in ("3", "2"):
        page.run(["--output", str(tmp_path), "--length", length])
    rows = Table(tmp_path / "curve.csv", ("method",)).rows
    assert [row["step"] for row in rows] == [0, 1]
    assert rows[0] == {"method": "a", "step": 0, "loss": 1.5, "unknown": None}


def test_advantages(measure: Measure) -> None:
    place, key = "quality/advantages.csv", ("reward", "estimator", "size", "prompt")
    rows = keyed(measure("advantages", place, "--only", "expected"), *key)
    assert len(rows) == 2 * 6 * 2 * 4
    for (_, estimator, size, _), row in rows.items():
        if estimator in ("reinforce", "rloo"):
            assert row["bias"] < 1e-12
        if estimator == "dr_grpo":
            assert row["scale"] == pytest.approx(1 - 1 / size)
    # Two rewards of 0 and 1 have the deviation 1 / sqrt(2), or none: A is +-1 / sqrt(2), not +-1.
    for prompt in ("easy", "harder", "hardest"):
        row = rows["right or wrong", "grpo", 2, prompt]
        assert row["scale"] == pytest.approx(0.5**0.5, rel=1e-3)


def test_choose(measure: Measure) -> None:
    columns = ("problem", "estimator", "draws", "repeats")
    rows = keyed(measure("choose", "quality/log_expectation.csv", "--only", "logarithms"), *columns)
    sampled, bias = rows["rare", "RLOO", 4, 1], 1 - 4 / 3 * (1 - 0.95**3)
    assert sampled["zero"] == pytest.approx(0.95**4, rel=1e-3)
    assert sampled["gradient_bias"] == pytest.approx(bias, rel=1e-3)
    rows = measure("choose", "quality/dependent_draws.csv", "--only", "draws")
    assert all(row["gain"] == 1 for row in selected(rows, draws="independent"))


def test_control_variates(measure: Measure) -> None:
    contest = measure("control_variates", "quality/contest.csv", "--only", "contest")
    assert all(row["evaluations"] <= 40 for row in contest)
    slopes = measure("control_variates", "quality/control_variates.csv", "--only", "slopes")
    assert len(slopes) == 2


def test_verdicts_are_the_claims(measure: Measure) -> None:
    rows = measure("estimators", "quality/estimators.csv")
    verdicts = {row["estimator"]: row["unbiased"] for row in rows if row["unbiased"]}
    assert verdicts == {name: "yes" if E().unbiased else "no" for name, E in ESTIMATORS.items()}
    measured = selected(rows, problem="4 bits")
    assert {row["estimator"] for row in measured} == set(ESTIMATORS)


def test_fast_functions(measure: Measure) -> None:
    times = measure("fast_functions", "speed/known_means.csv")
    errors = [row["gradient_error"] for row in times if row["method"] == "Exact"]
    assert len(errors) == 2
    assert max(errors) < 1e-12
    noise = measure("fast_functions", "quality/known_part.csv", "--only", "noise")
    assert len(noise) == 6
    assert all(row["ratio"] < 0.5 for row in noise)


def test_from_gumbel_softmax(measure: Measure) -> None:
    rows = measure("from_gumbel_softmax", "quality/temperatures.csv")
    assert {row["section"] for row in rows} == {"gradient", "training"}


def test_exact_bound_is_that_of_enumeration() -> None:
    model, images = Autoencoder(0).double(), torch.rand(2, 784, dtype=torch.float64).round()
    logits = model.logits(images).detach().requires_grad_()
    q = Independent(OneHotCategorical(logits=logits), 1)
    value = catlog.Exact()(lambda x: model.reconstruction(x, images), q)
    ours = model.reconstruction_exactly(logits, images)
    torch.testing.assert_close(ours, value, rtol=1e-10, atol=0)
    gradients = (torch.autograd.grad(v.sum(), logits, retain_graph=True)[0] for v in (ours, value))
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-10)


def test_from_pyro(measure: Measure) -> None:
    pytest.importorskip("pyro")
    rows = keyed(measure("from_pyro", "quality/pyro_variance.csv"), "problem", "method")
    assert rows["mixture", "catlog.pyro.ELBO(IndeCateR(1))"]["ratio"] < 1e-10  # one variable each
    assert rows["autoencoder", "catlog.pyro.ELBO(RLOO(31))"]["ratio"] < 0.1
    rows = selected(measure("from_pyro", "pyro/ss_vae.csv"), section="training")
    assert len(rows) == 10
    assert all(30 < row["bound"] < 45 for row in rows)  # 64 log 2 = 44.4


def test_overhead(measure: Measure) -> None:
    rows = measure("speed", "speed/overhead.csv", "--only", "overhead")
    assert all(row["ratio"] > 0 for row in rows)


def test_protocol_prints_runs(capsys: pytest.CaptureFixture[str]) -> None:
    import_module("benchmarks.protocol").main(["--only", "headline"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[0].endswith("--estimator SlopeCateR --samples 2 --options corrections=1")


def test_race(measure: Measure) -> None:
    runs = measure("race", "speed/cpu_races.csv", "--seeds", "0")
    assert {row["race"] for row in runs} == {"bits", "one-hot", "attention"}
    curves = measure("race", "speed/cpu_race_curves.csv", "--seeds", "0")
    assert set(grouped(curves, "race")) == {row["race"] for row in runs}


def test_scaling(measure: Measure) -> None:
    """It counts the messages: values and comparison, at the draws and at their neighbours."""
    rows = measure("scaling", "scaling/scaling.csv")
    assert {row["section"] for row in rows} == {"mapped", "estimate"}
    black_box = next(row for row in selected(rows, section="estimate") if row["messages"])
    assert black_box["messages"] == 4
    assert abs(black_box["kib"] * 1024 - (42 * 2 * 4 + 2 * 2 * 24)) < 1


def test_speed(measure: Measure) -> None:
    rows = keyed(measure("speed", "speed/speed_dvae_cpu.csv"), "method")
    assert rows["IndeCateR, literal formula",]["ratio"] == 1


def test_structured(measure: Measure) -> None:
    rows = measure("structured", "quality/structured_variance.csv")
    assert all(row["relative_to_rloo"] == 1 for row in selected(rows, method="RLOO"))
    counts = keyed(
        measure("structured", "quality/counts.csv", "--only", "counts"), "function", "estimator"
    )
    assert counts["linear", "CountDifferences(1)"]["variance"] < 1e-9
    assert counts["linear", "RLOO(17), truncated"]["variance"] > 1
    steps = measure("structured", "speed/structured_steps.csv", "--only", "steps")
    assert [row["q"] for row in steps] == ["BayesianNetwork", "Autoregressive", "LinearChainCRF"]


def test_suite(measure: Measure) -> None:
    rows = measure("suite", "quality/suite.csv")
    assert all((row["variance"] is None) == (row.get("skipped") is not None) for row in rows)


def test_advice(measure: Measure) -> None:
    """Races and regrets of one problem; nothing is said about their size."""
    options = ("--problems", "blocks", "--machine", "idle")
    regrets = measure("advice", "quality/advice.csv", *options)
    assert {row["machine"] for row in regrets} == {"idle"}
    assert all(1 <= row["median"] <= row["worst"] for row in regrets)
    assert keyed(regrets, "policy", "problem")["table", "all"]["picks"] == "RLOO(64) x1"
    assert len(selected(regrets, problem="all")) == 5
