"""The benchmark of Pyro runs in its quick mode and agrees with what is known."""

from pathlib import Path

from benchmarks.measuring import Table

from support.scripts import run


def test_variances_and_training(tmp_path: Path) -> None:
    run("benchmarks.from_pyro", "--quick", "--output", tmp_path)
    rows = Table(tmp_path / "quality/pyro_variance.csv", ()).rows
    ratios = {(row["problem"], row["method"]): row["ratio"] for row in rows}
    assert ratios["mixture", "catlog.pyro.ELBO(IndeCateR(1))"] < 1e-10  # one variable each
    assert ratios["autoencoder", "catlog.pyro.ELBO(RLOO(31))"] < 0.1
    rows = Table(tmp_path / "pyro/ss_vae.csv", ()).rows
    bounds = [row["bound"] for row in rows if row["section"] == "training"]
    assert len(bounds) == 10
    assert all(30 < bound < 45 for bound in bounds)  # 64 log 2 = 44.4
