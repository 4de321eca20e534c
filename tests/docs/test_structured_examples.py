"""The structured examples run at small size, and what they print is right."""

import re
from pathlib import Path

import pytest

from scripts import run


def rows(text: str, *names: str) -> dict[str, list[float]]:
    """The numbers behind each of the names, where a line starts with it (the last such line)."""
    numbers = {}
    for name in names:
        line = [line for line in text.splitlines() if re.match(re.escape(name) + r"\s{2,}", line)][
            -1
        ]
        numbers[name] = [
            float(number) for number in line[len(name) :].replace(" - ", " nan ").split()
        ]
    return numbers


@pytest.fixture(autouse=True)
def warnings_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "error")


def test_sequence_reward(tmp_path: Path) -> None:
    text = run("examples/sequence_reward.py", "--steps", 50, "--seeds", 1, "--output", tmp_path)
    measured = rows(text, "Reinforce", "RLOO", "SCateR", "CritiCateR")
    assert text.startswith("41 evaluations of f per step")  # 1 + 8 letters x 5 other ones
    assert len({before for before, *_ in measured.values()}) == 1  # the same initial weights
    after = {name: numbers[1] for name, numbers in measured.items()}
    for name in ("SCateR", "CritiCateR"):
        assert after[name] > measured[name][0] + 0.25
        assert after[name] > after["Reinforce"]
    assert after["CritiCateR"] > 0.8
    assert (tmp_path / "sequence_reward.png").read_bytes()[:4] == b"\x89PNG"


def test_machine_replacement(tmp_path: Path) -> None:
    text = run(
        "examples/machine_replacement.py", "--steps", 30, "--repeats", 300, "--output", tmp_path
    )
    agreement = re.search(r"catlog.Exact \(262144 points\) agree to (\S+)\.", text)
    assert agreement is not None
    assert float(agreement[1]) < 1e-8
    gradients, training = text.split("Expected return")
    estimators = rows(
        gradients, "Reinforce", "RLOO", "LEG", "RAM", "SCateR", "SCateR, common", "CritiCateR"
    )
    for bias, error, _ in estimators.values():
        assert 0 < bias < 5 * error
    variance = {name: numbers[2] for name, numbers in estimators.items()}
    assert (
        variance["CritiCateR"]
        < variance["RLOO"]
        < variance["SCateR, common"]
        < variance["SCateR"]
        < variance["Reinforce"]
    )
    optimum = float(re.findall(r"optimum (-[\d.]+)", training)[0])
    returns = rows(training, "exact gradient", "CritiCateR", "Reinforce")
    for before, after in returns.values():
        assert before < after < optimum
    assert returns["Reinforce"][1] < returns["CritiCateR"][1]
    assert optimum - returns["CritiCateR"][1] < 0.1 * (optimum - returns["CritiCateR"][0])
    assert (tmp_path / "machine_replacement.png").read_bytes()[:4] == b"\x89PNG"
