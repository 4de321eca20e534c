"""The sweep over published protocols, at a tiny size: tables, limits, and merging."""

from pathlib import Path

import pytest

from benchmarks import protocol
from catlog_experiments import records


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr("sys.argv", ["protocol", *map(str, arguments)])
    protocol.main()


def test_every_part_is_run_and_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output, root = tmp_path / "a table.csv", tmp_path / "some runs"
    arguments = ["--tiny", "--parts", "headline", "categories", "--models", 2, "--device", "cpu"]
    arguments += ["--jobs", 1, "--root", root, "--output", output]
    call(monkeypatch, "sweep", *arguments, "--limit", 0)
    assert not output.exists() or not records.read(output)
    assert "not started before the deadline" in capsys.readouterr().out
    categories = ["--estimators", "ReinMax(1)", "--protocols", "categorical"]
    call(monkeypatch, "sweep", *arguments, *categories)
    call(monkeypatch, "sweep", *arguments, "--protocols", "gaussian", "--data", "mnist")
    rows = records.read(output)
    ends = [row for row in rows if row["iteration"] == 4]
    assert {(row["protocol"], row["estimator"]) for row in ends} == {
        ("categorical", "ReinMax"),
        ("gaussian", "SlopeCateR"),
    }
    sizes = {(row["categories"], row["variables"]) for row in ends}
    assert sizes == {*protocol.SIZES, (2, 5)}
    assert all(row["train"] == pytest.approx((row["train.0"] + row["train.1"]) / 2) for row in rows)


def test_estimators_that_are_missing_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call(monkeypatch, "list", "--parts", "headline", "--estimators", "RLOO(4)", "NoSuchOne(2)")
    printed = capsys.readouterr().out
    assert "left out: NoSuchOne" in printed
    assert printed.count("RLOO 4") == 4


def test_the_most_needed_runs_come_first_and_claims_are_not_protocols(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call(monkeypatch, "list")
    lines = [line for line in capsys.readouterr().out.splitlines() if "models" in line]
    assert all("SlopeCateR 2 corrections=1" in line for line in lines[:4])
    assert not any(line.startswith("paper") for line in lines)


def test_claims_have_two_seeds_and_enough_epochs() -> None:
    claims = protocol.claims()
    assert {run.seed for runs in claims.values() for run in runs} == {0, 1}
    for part in ("claim-omniglot", "claim-overfitting"):
        assert all(run.epochs >= 500 for run in claims[part])
    assert all(run.gradient_repeats > 1 for runs in claims.values() for run in runs)
    names = {run.estimator for run in claims["claim-omniglot"]}
    assert names == {"IndeCateR", "RLOO-F", "RLOO-S", "GS-F", "GS-S"}
    assert all(
        run.protocol == "paper" and run.models == 1 for runs in claims.values() for run in runs
    )


def test_tables_are_merged_by_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "RESULTS", tmp_path / "results")
    row = {"experiment": "dvae", "estimator": "RLOO", "samples": 4, "seed": 0, "data": "mnist"}
    first = [{**row, "protocol": "bernoulli", "iteration": i, "train": 100.0 - i} for i in (0, 1)]
    more = [{**row, "protocol": "paper", "iteration": 0, "train": 9.0}]
    records.write([*first, *more], tmp_path / "one.csv")
    records.write([{**first[1], "train": 50.0}], tmp_path / "two.csv")
    protocol.merge([tmp_path / "one.csv", tmp_path / "two.csv"])
    merged = records.read(tmp_path / "results" / "protocol" / "bits.csv")
    assert [line["train"] for line in merged] == [100.0, 50.0]
    (paper,) = records.read(tmp_path / "results" / "paper" / "dvae.csv")
    assert paper["train"] == 9.0


def test_a_run_replaces_shorter_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "RESULTS", tmp_path / "results")
    lengths = {"short": 8, "long": 24, "other": 2}
    for name, epochs in lengths.items():
        row = {"estimator": "GS-F" if name == "other" else "IndeCateR", "seed": 0}
        written = [{**row, "epochs": epochs, "iteration": i} for i in range(epochs + 1)]
        if name == "long":  # as a newer version writes it
            written = [{**row, "protocol": "paper", "models": 1, "every": 3} for row in written]
        records.write(written, tmp_path / f"{name}.csv")
    for order in (("short", "long", "other"), ("other", "long", "short")):
        protocol.merge([tmp_path / f"{name}.csv" for name in order])
        merged = records.read(tmp_path / "results" / "paper" / "dvae.csv")
        ends = {(row["estimator"], row["epochs"]) for row in merged}
        assert ends == {("IndeCateR", 24), ("GS-F", 2)}
        assert len(merged) == 25 + 3


def test_processes_take_turns_where_there_is_no_mps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    with protocol.shared_gpu(wanted=True):
        pass
    assert "take turns" in capsys.readouterr().out
