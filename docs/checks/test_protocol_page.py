"""The page of published protocols renders from whatever was run, and takes no run for another."""

import re
from pathlib import Path
from shutil import copytree

import measured
import pytest
from measured import protocol
from render import page as written

from catlog_experiments import records


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copytree(measured.RESULTS / "protocol", tmp_path / "protocol")
    monkeypatch.setattr(measured, "RESULTS", tmp_path)
    return tmp_path


def rows(estimator: str, samples: int, end: int, bounds: list[float], **more: object) -> list[dict]:
    config = {
        "experiment": "dvae", "estimator": estimator, "samples": samples, "seed": 0,
        "options": "", "models": len(bounds), "epochs": 2000, "protocol": "bernoulli",
        "data": "mnist", "variables": 200, "categories": 2,
    } | more  # fmt: skip
    logged = []
    for step in range(0, end + 1, 10_000):
        row = {**config, "iteration": step, "epoch": step / 500, "train": 0.0}
        for name in ("train", "test", "test_few"):
            row |= {f"{name}.{s}": bound + (end - step) / 1e4 for s, bound in enumerate(bounds)}
        logged.append(row)
    return logged


def test_numbers_of_a_page(results: Path, tmp_path: Path) -> None:
    """Means over models, standard errors, the last common step, and the verdict."""
    slope = {"options": "corrections=1"}
    table = [
        *rows("SlopeCateR", 2, 30_000, [99.0, 101.0], **slope),
        *rows("SlopeCateR", 2, 30_000, [100.0], **slope, seed=7),
        *rows("ARMS", 3, 20_000, [102.0, 102.0]),
        *rows("ARMS", 3, 50_000, [300.0, 300.0], data="fashion-mnist"),
    ]
    records.write(table, results / "protocol" / "bits.csv")
    page = written("protocol")
    # 20,000 steps are common, where the bounds of SlopeCateR are one nat lower.
    line = "| SlopeCateR(2, corrections=1) | 3 | 3 | -101.00 ± 0.58 | 30,000 | -100.00 ± 0.58 |"
    assert line in page
    assert "train, 20,000 steps" in page
    assert "| ARMS(3) | 3 | 2 | -102.00 ± 0.00 | 20,000 |" in page
    ours = "| MNIST, binary pixels | -100.00 ± 0.58 | 30,000 | -100.46† | +0.46 |"
    assert ours in page
    # One method alone: its last step is the common one.
    (line,) = re.findall(r"\| ARMS\(3\) \| 3 \| 2 \| -300.00 ± 0.00 \|.*", page)
    assert "50,000" not in line
    assert "train, 50,000 steps" in page
    assert "| RODEO(3) | 3 |  | not run |" in page
    for name, draw in protocol.figures().items():
        draw(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 10_000


def test_categorical_runs(results: Path) -> None:
    size = {"protocol": "categorical", "categories": 8, "variables": 4, "epochs": 60}
    table = rows("ReinMax", 1, 30_000, [103.0, 105.0], **size)
    table[-1] |= {"relative_bias2": 0.25, "relative_variance": 2.0}
    table += rows("RLOO", 4, 20_000, [110.0], **(size | {"categories": 64, "variables": 8}))
    records.write(table, results / "protocol" / "categories.csv")
    page = written("protocol")
    assert "| ReinMax(1) (biased) | 104.00 ± 1.00 | not run |" in page
    assert "110.00 (epoch 40)" in page
    assert "| ReinMax(1) | 8 x 4 | 0.25 | 2 |" in page
    assert "| ReinMax, published |  |  |  |  |  |  | 103.21† |" in page
