"""The benchmark of Pyro runs in its quick mode and agrees with what is known."""

from pathlib import Path

from benchmarks.measuring import Row, Table

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
    noise = {
        row["noise"]: row
        for row in rows
        if (row["section"], row["code"], row["method"]) == ("gradient", "label", "Exact()")
    }
    assert noise["shared"]["encoder_y"] < 0.2 * noise["stratified"]["encoder_y"]
    assert noise["stratified"]["encoder_z"] < 0.2 * noise["shared"]["encoder_z"]


def test_air(tmp_path: Path) -> None:
    rows = rows_of("air", "pyro/air.csv", tmp_path)
    methods = {"TraceGraph_ELBO"} | {
        f"ELBO({name})" for name in ("RLOO(2)", "RLOO(4)", "SCateR(1)", "Exact()")
    }
    for section in ("gradient", "training"):
        assert {row["method"] for row in rows if row["section"] == section} == methods
    assert all(row["bound"] < -15 for row in rows if row["section"] == "training")
