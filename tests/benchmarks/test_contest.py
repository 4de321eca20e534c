"""benchmarks/contest.py runs, and resumes."""

from pathlib import Path

from catlog.experiments import records
from scripts import run


def test_the_contest_runs_and_resumes(tmp_path: Path) -> None:
    for _ in range(2):
        printed = run("benchmarks/contest.py", "--quick", "--output", tmp_path / "out.csv")
        rows = records.read(tmp_path / "out.csv")
        assert f"{len(rows)} rows" in printed
    assert {"MemoryCateR", "SlopeCateR", "RLOO", "IndeCateR"} <= {
        row["method"].split("(")[0] for row in rows
    }
    assert sum(row["part"] == "ways" for row in rows) == 2
    assert all(
        36 <= row["evaluations"] <= 44
        for row in rows
        if not row["method"].startswith("UnorderedSet")
    )
