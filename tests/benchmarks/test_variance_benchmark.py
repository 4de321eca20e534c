"""The benchmark of variances on an autoencoder runs, and ranks estimators as expected."""

import re
from pathlib import Path

from scripts import run


def table(text: str, *names: str) -> dict[str, list[float]]:
    """The numbers behind each of the names, where a line starts with it."""
    found = {}
    for name in names:
        line = next(
            line for line in text.splitlines() if re.match(re.escape(name) + r"\s{2,}", line)
        )
        found[name] = [
            float(number)
            for number in re.findall(r"(?<![\w+])[\d.]+(?:e[+-]\d+)?(?![\w+])", line[len(name) :])
        ]
    return found


def test_variance_benchmark(tmp_path: Path) -> None:
    text = run("benchmarks/variance.py", "--quick", "--output", tmp_path)
    names = (
        "RLOO n=420",
        "IndeCateR n=2",
        "IndeCateR n=2, Latin",
        "IndeCateR n=20, m=20, Taylor, Latin",
    )
    variance = {name: numbers[-5] for name, numbers in table(text, *names).items()}
    assert (
        variance["IndeCateR n=20, m=20, Taylor, Latin"]
        < variance["IndeCateR n=2, Latin"]
        < variance["IndeCateR n=2"]
    )
    assert variance["IndeCateR n=20, m=20, Taylor, Latin"] < variance["RLOO n=420"]
    assert (tmp_path / "variance_dvae.csv").read_text(encoding="utf-8").startswith("epochs,method,")
    assert (tmp_path / "variance.png").read_bytes()[:4] == b"\x89PNG"
