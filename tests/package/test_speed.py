"""The benchmark of speed runs in its quick mode, and its tables are sound."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from catlog_experiments import records
from support.scripts import ROOT, run

SECTIONS = ("ceilings", "dvae", "categorical", "addition", "scaling", "memory")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[records.Row]]:
    folder: Path = tmp_path_factory.mktemp("speed")
    printed = run("benchmarks.speed", "--quick", "--output", folder)
    assert all(f"\n{section}\n" in printed for section in SECTIONS)
    return {path.stem: records.read(path) for path in folder.glob("*.csv")}


def test_every_section_is_written(tables: dict[str, list[records.Row]]) -> None:
    assert set(tables) == {f"speed_{name}_cpu" for name in (*SECTIONS, "exponents")} | {
        "step_times_cpu"
    }
    assert all(
        row["ms"] > 0
        for name in ("dvae", "categorical", "addition", "scaling")
        for row in tables[f"speed_{name}_cpu"]
    )


def test_a_product_that_the_machine_cannot_do_is_left_out() -> None:
    """It is tried in a child process; tests/no_bfloat16 stands in for such a machine."""
    folders = [ROOT / "tests" / "no_bfloat16", ROOT, *filter(None, sys.path)]
    code = """
import torch
from benchmarks.speed.steps import ceilings
from benchmarks.speed.timing import Bench

rows = ceilings(Bench("cpu", 2, False, True, ()))
assert [row["what"] for row in rows] == ["product, float32", "copy"]
for product in (torch.mm, torch.nn.functional.linear, torch.matmul):
    try:
        product(*torch.ones(2, 3, 3, dtype=torch.bfloat16))
    except RuntimeError as error:
        print(error)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "product, bfloat16: not available on this machine" in done.stdout
    assert done.stdout.count("aten::mm: a product of 16-bit matrices, which not every CPU") == 3


def test_gradients_are_those_of_the_literal_formula(tables: dict[str, list[records.Row]]) -> None:
    rows = {row["method"]: row for row in tables["speed_dvae_cpu"]}
    for name in ("IndeCateR, black-box f", "IndeCateR, first-layer-linear"):
        assert 0 < rows[name]["gradient_error"] < 3e-5  # 4 images only; 2e-6 with 100
    assert rows["IndeCateR, literal formula"]["evaluations"] == 2 + 2 * 170 * 2
    assert rows["IndeCateR, first-layer-linear"]["evaluations"] == 2 + 2 * 170
    assert (
        rows["IndeCateR, first-layer-linear"]["gflop"]
        < 0.7 * rows["IndeCateR, black-box f"]["gflop"]
    )


def test_evaluations_are_counted(tables: dict[str, list[records.Row]]) -> None:
    for row in tables["speed_scaling_cpu"]:
        if row["f"] in ("black box", "sum"):
            moves = row["D"] * (row["K"] - 1) if row["f"] == "black box" else 2 * row["K"] - 1
            assert row["evaluations"] == 1 + moves


def test_step_times_are_for_the_report(tables: dict[str, list[records.Row]]) -> None:
    times = {(row["problem"], row["method"]) for row in tables["step_times_cpu"]}
    assert {
        ("dvae", "IndeCateR"),
        ("dvae", "IndeCateR-Taylor"),
        ("dvae, 10 categories", "IndeCateR-D"),
    } <= times
    assert ("addition, 2 digits", "RLOO-F") in times


def test_memory_is_that_of_a_chunk(tables: dict[str, list[records.Row]]) -> None:
    for row in tables["speed_memory_cpu"]:
        assert row["peak_mib"] < 1536
        assert abs(row["peak_mib"] - row["baseline_mib"] - row["above_mib"]) < 1
