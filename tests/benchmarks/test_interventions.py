"""The benchmark of SCateR's sweep runs in its quick mode, and counts conditionals."""

import re
from pathlib import Path

from catlog.experiments import records
from scripts import run


def test_interventions(tmp_path: Path) -> None:
    printed = run("benchmarks.interventions", "--quick", "--output", tmp_path / "rows.csv")
    rows = {(row["what"], row["law"], row["d"]): row for row in records.read(tmp_path / "rows.csv")}
    for kind in ("with a state", "without"):
        for d in (4, 8, 16):
            sweep = rows["sweep", kind, d]
            # One conditional for the base draw, and one for every move of an earlier variable.
            assert sweep["conditional_rows"] == sum(1 + 7 * i for i in range(d))
            assert sweep["points"] == 1 + 7 * d
        assert rows["loop", kind, 8]["fastest"] > 2 * rows["sweep", kind, 8]["fastest"]
    pattern = r"(sweep|estimate), (.*): time grows as d\^([\d.]+), conditional rows as d\^([\d.]+)"
    growth = re.findall(pattern, printed)
    assert [line[:2] for line in growth] == [
        ("sweep", "with a state"),
        ("estimate", "with a state"),
        ("sweep", "without"),
    ]
    assert all(1.9 < float(exponent) < 2.3 for *_, exponent in growth)
    assert all(0.3 < float(exponent) < 3.5 for *_, exponent, _ in growth)
    assert len(re.findall("times faster than the loop, same points", printed)) == 2
