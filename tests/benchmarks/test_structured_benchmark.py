"""The benchmark of structured laws runs in its quick mode, and what it writes is sound."""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROBLEMS = {
    "chain": 16,
    "chain, interactions": 16,
    "dag": 19,
    "transformer": 85,
    "mdp": 25,
}  # evaluations of SCateR(1)
METHODS = {"Reinforce", "RLOO", "LEG", "RAM", "SCateR", "SCateR, common", "CritiCateR"}


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp("structured")
    command = [
        sys.executable,
        str(ROOT / "benchmarks/structured.py"),
        "--quick",
        "--output",
        str(folder),
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, folder


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_variance(output: tuple[str, Path]) -> None:
    text, folder = output
    rows = {
        (row["problem"], row["method"]): row for row in read(folder / "structured_variance.csv")
    }
    assert set(rows) == {(problem, method) for problem in PROBLEMS for method in METHODS}
    for (problem, method), row in rows.items():
        assert int(row["evaluations"]) == PROBLEMS[problem]
        assert float(row["variance"]) > 0
        assert float(row["low_95"]) <= float(row["relative_to_rloo"]) <= float(row["high_95"])
        assert (
            float(row["largest_z"]) < 8
        )  # with 40 repeats the tails are heavier than a normal variable's
        if method == "RLOO":
            assert float(row["relative_to_rloo"]) == 1
            assert int(row["conditional_rows"]) == 2 * int(row["variables"]) * int(
                row["evaluations"]
            )  # drawn, differentiated
    # A sweep of a chain: the base and every move of an earlier variable; then the base again, differentiably.
    assert int(rows["chain", "SCateR"]["conditional_rows"]) == sum(1 + 3 * i for i in range(5)) + 5
    for problem in ("transformer", "mdp"):  # by a wide margin, so that few repeats show it
        assert float(rows[problem, "CritiCateR"]["high_95"]) < 1
    assert all(float(rows[problem, "SCateR"]["low_95"]) > 1 for problem in PROBLEMS)
    assert (
        float(rows["chain", "RLOO"]["main_effects"])
        > 0.3
        > float(rows["chain, interactions", "RLOO"]["main_effects"])
    )
    assert re.search(
        r"budget 1x: CritiCateR below RLOO on [2-5] of 5 problems: .*transformer", text
    )
    assert (folder / "structured_variance.png").read_bytes()[:4] == b"\x89PNG"


def test_scaling(output: tuple[str, Path]) -> None:
    text, folder = output
    rows = {
        (row["what"], row["law"], int(row["d"])): row
        for row in read(folder / "structured_scaling.csv")
    }
    for law in ("with a state", "without"):
        for d in (
            4,
            8,
            16,
        ):  # one conditional for the base and one for every move of an earlier variable
            assert int(rows["sweep", law, d]["conditional_rows"]) == sum(
                1 + 7 * i for i in range(d)
            )
            assert int(rows["sweep", law, d]["points"]) == 1 + 7 * d
        assert float(rows["loop", law, 8]["fastest"]) > 2 * float(rows["sweep", law, 8]["fastest"])
    grows = re.findall(
        r"(sweep|estimate), (.*): time grows as d\^([\d.]+) .*, conditional rows as d\^([\d.]+)",
        text,
    )
    assert [each[:2] for each in grows] == [
        ("sweep", "with a state"),
        ("estimate", "with a state"),
        ("sweep", "without"),
    ]
    assert all(1.9 < float(rows_exponent) < 2.3 for *_, rows_exponent in grows)
    assert all(0.3 < float(time_exponent) < 3.5 for *_, time_exponent, _ in grows)
    assert len(re.findall("times faster than the loop, same points", text)) == 2
