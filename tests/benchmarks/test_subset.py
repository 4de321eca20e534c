"""The benchmarks of subsets run in their quick modes, and float32 is as precise as they say."""

from math import log
from pathlib import Path

import torch
from benchmarks.subset_autoencoder import Autoencoder, sum_of_gamma

from catlog_experiments import records
from support.scripts import run


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
    printed = run("benchmarks.subset_autoencoder", "--quick", "--seeds", "0", "--output", path)
    assert "step " not in printed  # nothing is repeated


def test_models_of_several_seeds_are_separate() -> None:
    """Their losses and gradients are those of each model alone."""
    mean, images = torch.rand(12), torch.rand(2, 7, 12)
    together = Autoencoder(mean, 6, 5, 2, [3, 4])
    alone = [Autoencoder(mean, 6, 5, 2, [seed]) for seed in (3, 4)]
    x = together.code(images).sample((3,))
    losses = together.loss(x, images) * together.code(images).mean.sum(-1)
    losses.mean((0, 2)).sum().backward()
    for i, model in enumerate(alone):
        part = images[i : i + 1]
        loss = model.loss(x[:, i : i + 1], part) * model.code(part).mean.sum(-1)
        torch.testing.assert_close(loss.squeeze(1), losses[:, i])
        loss.mean().backward()
        for one, both in zip(model.parameters(), together.parameters(), strict=True):
            torch.testing.assert_close(one.grad[0], both.grad[i])


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
