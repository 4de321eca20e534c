"""The benchmark of variances runs in its quick mode and agrees with what is known."""

from pathlib import Path

from catlog_experiments import records
from support.scripts import run


def test_variances(tmp_path: Path) -> None:
    output = tmp_path / "pyro_variance.csv"
    run("benchmarks.pyro_variance", "--quick", "--output", output)
    rows = {(row["problem"], row["method"]): row for row in records.read(output)}
    assert {problem for problem, _ in rows} == {"mixture", "autoencoder", "chain"}
    assert rows["mixture", "catlog.pyro.ELBO(IndeCateR(1))"]["ratio"] < 1e-10  # one variable each
    assert rows["autoencoder", "catlog.pyro.ELBO(RLOO(31))"]["ratio"] < 0.1
