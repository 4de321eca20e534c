"""Benchmarks run in their quick modes, resume, and agree with what is known."""

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from benchmarks.estimator_times import SETTINGS
from benchmarks.shared_machine import WAITING
from benchmarks.tables import exponent, grouped, keyed
from benchmarks.temperatures import Autoencoder
from torch.distributions import Independent, OneHotCategorical

import catlog
from benchmarks import arithmetic
from catlog_experiments import records
from support.gradients import assert_same
from support.scripts import ROOT, run

Measure = Callable[..., list[records.Row]]


@pytest.fixture
def measure(tmp_path: Path) -> Measure:
    """Return a function that runs a benchmark and returns the rows of its table."""

    def rows(module: str, *arguments: object) -> list[records.Row]:
        run(f"benchmarks.{module}", *arguments, "--output", tmp_path / "table.csv")
        return records.read(tmp_path / "table.csv")

    return rows


@pytest.mark.parametrize(
    ("module", "arguments", "columns"),
    [
        ("sample", ["--rounds", "1"], {"shape", "method", "ms", "ratio"}),
        ("temperatures", ["--quick"], {"section", "estimator", "bias", "variance", "bound"}),
        ("dependent_draws", ["--quick"], {"model", "estimator", "draws", "gain", "decoder_gain"}),
        ("slope_predictions", ["--quick"], {"estimator", "beta", "residual", "noise"}),
    ],
)
def test_writes_its_table(
    module: str, arguments: list[str], columns: set[str], measure: Measure
) -> None:
    rows = measure(module, *arguments)
    assert rows
    assert columns <= set(rows[0])


def test_bias_of_advantages(measure: Measure) -> None:
    rows = keyed(measure("advantages", "--quick"), "reward", "estimator", "size", "prompt")
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


def test_arithmetic(measure: Measure) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own imports
        pytest.importorskip("transformers")
    rows = measure("arithmetic", "--quick")
    assert {row["method"] for row in rows} == {"rloo", "criticater", "vineppo", "grpo"}
    ends = [row for row in rows if row["step"] > 0]
    assert all(1500 <= row["tokens"] < 1500 + 2 * 16 * 8 * 3 for row in ends)
    assert all(0 < row["reward"] < 1 for row in ends)


def test_a_new_curve_replaces_the_old_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also where it has fewer points than before."""
    monkeypatch.setattr("sys.argv", ["", "--quick", "--output", str(tmp_path / "table.csv")])
    for steps in ([0, 20, 39], [0, 20, 37]):

        def train(method: str, seed: int, *_: object, steps: list[int] = steps, **__: object):  # type: ignore[no-untyped-def]
            return [{"seed": seed, "method": method, "step": step} for step in steps]

        monkeypatch.setattr(arithmetic, "train", train)
        arithmetic.main()
    rows = records.read(tmp_path / "table.csv")
    assert [row["step"] for row in rows if row["method"] == "rloo"] == steps


def test_coin_sequences(measure: Measure) -> None:
    """With the policy of the gallery."""
    rows = measure("coin_sequences", "--quick", "--seeds", 5)
    assert [row["estimator"] for row in rows] == ["RLOO", "CritiCateR", "SCateR"]
    for row in rows:
        assert -1.3 < row["reward"] < row["best"] == 0.8958
        assert 0 < row["exact"] < 1
    assert measure("coin_sequences", "--quick", "--seeds", 5) == rows  # nothing is repeated


def test_counts(measure: Measure) -> None:
    rows = keyed(measure("counts", "--repeats", 20), "function", "estimator")
    assert len(rows) == 12
    assert rows["linear", "CountDifferences(1)"]["variance"] < 1e-9
    assert rows["linear", "RLOO(17), truncated"]["variance"] > 1


def test_interventions(measure: Measure) -> None:
    """The benchmark itself checks that the loop and the sweep find the same points."""
    table = measure("interventions", "--quick")
    rows = keyed(table, "what", "law", "d")
    for kind in ("with a state", "without"):
        for d in (4, 8, 16):
            sweep = rows["sweep", kind, d]
            # One conditional for the base draw, and one for every move of an earlier variable.
            assert sweep["conditional_rows"] == sum(1 + 7 * i for i in range(d))
            assert sweep["points"] == 1 + 7 * d
        assert rows["loop", kind, 8]["fastest"] > 2 * rows["sweep", kind, 8]["fastest"]
    growing = grouped((row for row in table if row["what"] != "loop"), "what", "law")
    assert list(growing) == [
        ("sweep", "with a state"),
        ("estimate", "with a state"),
        ("sweep", "without"),
    ]
    for column, least, most in (("conditional_rows", 1.9, 2.3), ("milliseconds", 0.3, 3.5)):
        for same in growing.values():
            sizes, costs = ([row[name] for row in same] for name in ("d", column))
            assert least < exponent(sizes, costs) < most


def test_known_means(tmp_path: Path) -> None:
    options = ["--sizes", "6", "60", "--timings", "2", "--repeats", "100"]
    run("benchmarks.known_means", *options, "--root", tmp_path)
    times = records.read(tmp_path / "speed" / "known_means.csv")
    errors = [row["gradient_error"] for row in times if row["method"] == "Exact"]
    assert len(errors) == 2
    assert max(errors) < 1e-12
    noise = records.read(tmp_path / "quality" / "known_part.csv")
    assert len(noise) == 6
    assert all(row["ratio"] < 0.5 for row in noise)


def test_bias_of_logarithms(measure: Measure) -> None:
    columns = ("problem", "estimator", "draws", "repeats")
    rows = keyed(measure("log_expectation", "--quick"), *columns)
    assert len(rows) == 2 * (1 + 3 + 5)
    exact = rows["rare", "Exact", 1, 1]
    assert exact["probability"] == pytest.approx(0.05)
    assert abs(exact["value_bias"]) < 1e-6  # of the floor
    sampled, bias = rows["rare", "RLOO", 4, 1], 1 - 4 / 3 * (1 - 0.95**3)
    assert sampled["zero"] == pytest.approx(0.95**4, rel=1e-3)
    assert sampled["gradient_bias"] == pytest.approx(bias, rel=1e-3)


def test_exact_bound_is_that_of_enumeration() -> None:
    model, images = Autoencoder(0).double(), torch.rand(2, 784, dtype=torch.float64).round()
    logits = model.logits(images).detach().requires_grad_()
    q = Independent(OneHotCategorical(logits=logits), 1)
    value = catlog.Exact()(lambda x: model.reconstruction(x, images), q)
    ours = model.reconstruction_exactly(logits, images)
    torch.testing.assert_close(ours, value, rtol=1e-10, atol=0)
    assert_same(ours, value, logits, rtol=1e-8, atol=1e-10)


def test_estimator_times_of_two_sources(measure: Measure) -> None:
    options = ["--source", ROOT / "src", "--variables", 6, "--batch", 3, "--rounds", 2]
    rows = measure("estimator_times", *options)
    assert [row["estimator"] for row in rows] == list(SETTINGS)
    assert all(row["ms"] > 0 and row["before_ms"] > 0 and row["speedup"] > 0 for row in rows)
    assert all((row["over_rloo"] is None) == row["estimator"].startswith("RLOO") for row in rows)


def test_shared_machine(measure: Measure) -> None:
    rows = measure("shared_machine", "--rounds", 2, "--batch", 2, "--variables", 5)
    assert {(row["waiting"], row["busy"]) for row in rows} == {
        (waiting, busy) for waiting in WAITING for busy in (0, 1)
    }
    assert all(row["ratio"] == 1 for row in rows if row["method"] == "literal formula")
