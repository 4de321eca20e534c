"""The benchmark of coin sequences runs in its quick mode, with the policy of the gallery."""

from pathlib import Path

from catlog.experiments import records
from scripts import run


def test_coin_sequences(tmp_path: Path) -> None:
    path = tmp_path / "coins.csv"
    options = ("benchmarks.coin_sequences", "--quick", "--seeds", "5", "--output", path)
    text = run(*options)
    rows = records.read(path)
    assert [row["estimator"] for row in rows] == ["RLOO", "CritiCateR", "SCateR"]
    for row in rows:
        assert -1.3 < row["reward"] < row["best"] == 0.8958
        assert 0 < row["exact"] < 1
    assert "After 2000 tokens" in text
    assert "seed 5" not in run(*options)  # nothing is repeated
