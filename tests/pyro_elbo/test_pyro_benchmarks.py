"""The benchmarks of examples of Pyro run in their quick modes and agree with what is known."""

from pathlib import Path

from catlog_experiments import records
from support.scripts import run


def test_label_and_style(tmp_path: Path) -> None:
    output = tmp_path / "ss_vae.csv"
    run("benchmarks.pyro_ss_vae", "--quick", "--output", output)
    rows = records.read(output)
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
    output = tmp_path / "air.csv"
    run("benchmarks.pyro_air", "--quick", "--output", output)
    rows = records.read(output)
    methods = {"TraceGraph_ELBO"} | {
        f"ELBO({name})" for name in ("RLOO(2)", "RLOO(4)", "SCateR(1)", "Exact()")
    }
    for section in ("gradient", "training"):
        assert {row["method"] for row in rows if row["section"] == section} == methods
    assert all(row["bound"] < -15 for row in rows if row["section"] == "training")
