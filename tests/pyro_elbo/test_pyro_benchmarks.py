"""The benchmark of Pyro runs in its quick mode and agrees with what is known."""

from pathlib import Path
from typing import get_args

from benchmarks.measuring import Row, Table, selected

from catlog.pyro.elbo import Noise
from support.scripts import run


def rows_of(section: str, place: str, folder: Path) -> list[Row]:
    run("benchmarks.from_pyro", "--quick", "--only", section, "--output", folder)
    return Table(folder / place, ()).rows


def test_variances(tmp_path: Path) -> None:
    rows = rows_of("variance", "quality/pyro_variance.csv", tmp_path)
    ratios = {(row["problem"], row["method"]): row["ratio"] for row in rows}
    assert {problem for problem, _ in ratios} == {"mixture", "autoencoder", "chain"}
    assert ratios["mixture", "catlog.pyro.ELBO(IndeCateR(1))"] < 1e-10  # one variable each
    assert ratios["autoencoder", "catlog.pyro.ELBO(RLOO(31))"] < 0.1


def test_label_and_style(tmp_path: Path) -> None:
    rows = rows_of("ss_vae", "pyro/ss_vae.csv", tmp_path)
    bounds = {row["method"]: row["bound"] for row in rows if row["section"] == "training"}
    assert len(bounds) == 7  # three with two kinds of noise
    assert all(30 < bound < 45 for bound in bounds.values())  # 64 log 2 = 44.4
    sides = {"section": "gradient", "method": "Exact()", "steps": 2}
    shared, stratified = (selected(rows, noise=noise, **sides)[0] for noise in get_args(Noise))
    assert shared["encoder_y"] < 0.2 * stratified["encoder_y"]
    assert stratified["encoder_z"] < 0.2 * shared["encoder_z"]
