"""The examples run, and print what they promise."""

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib
import pytest
import torch

from support.scripts import ROOT

Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a script with arguments and returns what it prints."""
    matplotlib.use("Agg")

    def run(script: str, *arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
        with torch.random.fork_rng(), matplotlib.rc_context():
            runpy.run_path(str(ROOT / script), run_name="__main__")
        return capsys.readouterr().out

    return run


def table(text: str, *names: str) -> dict[str, list[float]]:
    """Return the numbers behind each of the names, where a line (the last such) starts with it."""
    numbers = {}
    for name in names:
        pattern = re.escape(name) + r"\s{2,}"
        line = [line for line in text.splitlines() if re.match(pattern, line)][-1]
        numbers[name] = [
            float(number)
            for number in re.findall(r"(?<![\w+])-?[\d.]+(?:e[+-]\d+)?(?![\w+])", line[len(name) :])
        ]
    return numbers


def test_quickstart_learns(run: Run) -> None:
    text = run("examples/quickstart.py", "--steps", 200)
    losses = [float(value) for value in re.findall(r"with z, step +\d+ .*: ([\d.]+)", text)]
    without_z = float(re.findall(r"without z .*: ([\d.]+)", text)[0])
    assert len(losses) == 3
    assert losses[0] > losses[1] > losses[2]
    assert losses[2] < without_z < losses[0]


def test_bias_variance(run: Run, tmp_path: Path) -> None:
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


def test_sequence_reward(run: Run, tmp_path: Path) -> None:
    text = run("examples/sequence_reward.py", "--steps", 50, "--seeds", 1, "--output", tmp_path)
    measured = table(text, "Reinforce", "RLOO", "SCateR", "CritiCateR")
    assert text.startswith("41 evaluations of f per step")  # 1 + 8 letters x 5 other ones
    assert len({before for before, *_ in measured.values()}) == 1  # the same initial weights
    after = {name: numbers[1] for name, numbers in measured.items()}
    for name in ("SCateR", "CritiCateR"):
        assert after[name] > measured[name][0] + 0.25
        assert after[name] > after["Reinforce"]
    assert after["CritiCateR"] > 0.8
    assert (tmp_path / "sequence_reward.png").read_bytes()[:4] == b"\x89PNG"


def test_machine_replacement(run: Run, tmp_path: Path) -> None:
    arguments = ("--steps", 30, "--repeats", 300, "--output", tmp_path)
    text = run("examples/machine_replacement.py", *arguments)
    agreement = re.search(r"catlog.Exact \(262144 points\) agree to (\S+)\.", text)
    assert agreement is not None
    assert float(agreement[1]) < 1e-8
    gradients, training = text.split("Expected return")
    estimators = table(
        gradients, "Reinforce", "RLOO", "LEG", "RAM", "SCateR", "SCateR, common", "CritiCateR"
    )
    for bias, error, _ in estimators.values():
        assert 0 < bias < 5 * error
    order = ("CritiCateR", "RLOO", "SCateR, common", "SCateR", "Reinforce")
    variances = [estimators[name][2] for name in order]
    assert variances == sorted(variances)
    optimum = float(re.findall(r"optimum (-[\d.]+)", training)[0])
    returns = table(training, "exact gradient", "CritiCateR", "Reinforce")
    for before, after in returns.values():
        assert before < after < optimum
    assert returns["Reinforce"][1] < returns["CritiCateR"][1]
    assert optimum - returns["CritiCateR"][1] < 0.1 * (optimum - returns["CritiCateR"][0])
    assert (tmp_path / "machine_replacement.png").read_bytes()[:4] == b"\x89PNG"
