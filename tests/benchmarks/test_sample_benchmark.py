"""The benchmarks of sampling layers, in their quick modes."""

from pathlib import Path

import pytest
import torch
from benchmarks.temperatures import Autoencoder
from torch.distributions import Independent, OneHotCategorical

import catlog
from catlog.experiments import records
from gradients import assert_same
from scripts import run


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
    module: str, arguments: list[str], columns: set[str], tmp_path: Path
) -> None:
    path = tmp_path / "table.csv"
    run(f"benchmarks.{module}", *arguments, "--output", path)
    rows = records.read(path)
    assert rows
    assert columns <= set(rows[0])


def test_exact_bound_is_that_of_enumeration() -> None:
    model, images = Autoencoder(0).double(), torch.rand(2, 784, dtype=torch.float64).round()
    logits = model.logits(images).detach().requires_grad_()
    q = Independent(OneHotCategorical(logits=logits), 1)
    value = catlog.Exact()(lambda x: model.reconstruction(x, images), q)
    ours = model.reconstruction_exactly(logits, images)
    torch.testing.assert_close(ours, value, rtol=1e-10, atol=0)
    assert_same(ours, value, logits, rtol=1e-8, atol=1e-10)
