"""The examples run, and print what they promise."""

import re
from pathlib import Path

from scripts import run


def table(text: str, *names: str) -> dict[str, list[float]]:
    """The numbers behind each of the names, where a line starts with it."""
    numbers = {}
    for name in names:
        line = next(
            line for line in text.splitlines() if re.match(re.escape(name) + r"\s{2,}", line)
        )
        numbers[name] = [
            float(number)
            for number in re.findall(r"(?<![\w+])[\d.]+(?:e[+-]\d+)?(?![\w+])", line[len(name) :])
        ]
    return numbers


def test_quickstart_learns() -> None:
    text = run("examples/quickstart.py", "--steps", 200)
    losses = [float(value) for value in re.findall(r"with z, step +\d+ .*: ([\d.]+)", text)]
    without_z = float(re.findall(r"without z .*: ([\d.]+)", text)[0])
    assert len(losses) == 3
    assert losses[0] > losses[1] > losses[2]
    assert losses[2] < without_z < losses[0]


def test_bias_variance(tmp_path: Path) -> None:
    text = run("examples/bias_variance.py", "--repeats", 2000, "--output", tmp_path)
    for block in re.split(r"\n(?=weak|strong)", text)[1:]:
        unbiased = table(block, "Reinforce", "RLOO", "IndeCateR", "IndeCateR, Latin draws")
        biased = table(block, "StraightThrough", "GumbelSoftmax, soft", "GumbelSoftmax, hard")
        for bias, error, variance in unbiased.values():
            assert bias < 4 * error
            assert variance > 0
        for bias, error, _ in biased.values():
            assert bias > 10 * error
        assert unbiased["RLOO"][2] < unbiased["Reinforce"][2]
        assert unbiased["IndeCateR, Latin draws"][2] < unbiased["IndeCateR"][2]
    assert len(re.findall("couplings  ", text)) == 2
    assert (tmp_path / "bias_variance.png").read_bytes()[:4] == b"\x89PNG"
