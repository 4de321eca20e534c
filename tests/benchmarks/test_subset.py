"""The benchmarks of subsets run in their quick modes, and float32 is as precise as they say."""

from math import log
from pathlib import Path

import torch
from benchmarks.subset_autoencoder import sum_of_gamma

from catlog.experiments import records
from scripts import run


def test_subset(tmp_path: Path) -> None:
    run("benchmarks.subset", "--quick", "--output", tmp_path)
    rows = records.read(tmp_path / "speed_cpu.csv")
    assert {row["how"] for row in rows} == {"Subset", "plain loop", "Gumbel top-k"}
    assert all(row["ms"] >= 0 for row in rows)
    errors = records.read(tmp_path / "stability.csv")
    for row in errors:
        if row["how"] == "Subset":
            assert max(row["marginals"], row["gradient"], row["log_prob_per_item"]) < 1e-5


def test_subset_autoencoder(tmp_path: Path) -> None:
    path = tmp_path / "autoencoder.csv"
    run("benchmarks.subset_autoencoder", "--quick", "--seeds", "0", "--output", path)
    rows = records.read(path)
    assert {row["estimator"] for row in rows} == {"RLOO", "CritiCateR", "SIMPLE", "I-MLE"}
    for name in ("RLOO", "CritiCateR", "SIMPLE", "I-MLE"):
        losses = [row["loss"] for row in rows if row["estimator"] == name]
        assert losses[-1] < losses[0]


def test_sums_of_gamma_noise_are_nearly_gumbel() -> None:
    """The noise of I-MLE: k of them have the mean and variance of ten terms of a Gumbel's series.

    At 5 standard errors of 200,000 sums.
    """
    torch.manual_seed(0)
    count = 200_000
    total = sum_of_gamma(torch.Size([count, 5]), 5).sum(-1)
    harmonic = sum(1 / i for i in range(1, 11))
    variance = sum(1 / i**2 for i in range(1, 11))
    assert abs(total.mean() - (harmonic - log(10))) < 5 * (variance / count) ** 0.5
    assert abs(total.var() / variance - 1) < 5 * (6 / count) ** 0.5
