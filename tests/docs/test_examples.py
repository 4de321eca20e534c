"""The examples and the gallery run, draw their figures, and print what they promise."""

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib
import pytest
import torch
from matplotlib import pyplot

from support.scripts import ROOT

Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a script in an empty folder and returns what it prints."""
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)

    def run(script: str, *arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
        with torch.random.fork_rng(), matplotlib.rc_context():
            runpy.run_path(str(ROOT / script), run_name="__main__")
            pyplot.close("all")
        return capsys.readouterr().out

    return run


def is_picture(path: Path) -> bool:
    return path.read_bytes()[:4] == b"\x89PNG"


def table(text: str, *names: str) -> dict[str, list[float]]:
    """Return the numbers behind each of the names, where a line (the last such) starts with it."""
    numbers = {}
    for name in names:
        starts = re.compile(rf"{re.escape(name)}[\s:]")
        line = [line for line in text.splitlines() if starts.match(line)][-1]
        found = re.findall(r"(?<![\w+])-?\d+\.?\d*(?:e[+-]\d+)?(?![\w+])", line[len(name) :])
        numbers[name] = [float(number) for number in found]
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
    assert is_picture(tmp_path / "bias_variance.png")


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
    assert is_picture(tmp_path / "sequence_reward.png")


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
    assert is_picture(tmp_path / "machine_replacement.png")


# What scripts of the gallery print in quick mode: beginnings of lines, which number behind each of
# them, and between what it lies: numbers, or the number behind another beginning.
# fmt: off
GALLERY: dict[str, list[tuple[str, int, float | str, float | str]]] = {
    "discrete_vae": [  # 784 fair bits would cost 543
        ("IndeCateR; RLOO; Gumbel-Softmax, 0.5; Gumbel-Softmax, 1.0", -1, 150, 300)],
    "poisson_autoencoder": [("CountDifferences; RLOO, truncated", -1, 150, 300)],
    "mnist_addition": [  # a constant answer is right in at most 7.5 % of all sums
        ("IndeCateR, seed 0; RLOO, seed 0", 0, 0.07, 1),
        ("IndeCateR, seed 0; RLOO, seed 0", 1, 0.15, 1)],
    "vq_autoencoder": [("IndeCateR; RLOO; Straight-Through", 0, 0, 0.1)],  # black images have 0.23
    "feature_selection": [("IndeCateR; RLOO", 4, 0.8, 1)],
    "oil_wildcatter": [  # a coin for every decision earns 5
        ("SCateR; CritiCateR; RLOO; Reinforce", 1, 10, "exact gradient")],
    "maxcut": [("RLOO, no bonus; RLOO, bonus; CritiCateR, bonus", 0, 60, 120)],  # a random cut: 60
    "mixture_of_experts": [("IndeCateR, 2 tokens; RLOO; picked expert only", 0, 0, 4)],
    "mixture_posterior": [
        ("RLOO       variance", 0, "Exact      variance", 2),
        ("IndeCateR  variance", 1, "Exact      variance", 100)],
    "learning_to_explain": [("RLOO; SIMPLE", 2, "random pixels", 1)],
    "learning_to_rank": [("RLOO; CritiCateR", 0, "least squares", 1)],
    "transformer_policy": [  # the cache is the same function; the bonus has the entropy's gradient
        ("cached steps and teacher forcing differ by at most", 0, 0, 1e-12),
        ("detached, through E: off by", 0, 0, 1e-5),
        ("RLOO, no penalty          vowels", 2, "RLOO, penalty 0.02        vowels", 20)],
}
# fmt: on


@pytest.mark.parametrize("script", GALLERY)
def test_a_script_of_the_gallery(
    script: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CATLOG_QUICK", "1")
    text = run(f"examples/gallery/{script}.py")
    assert is_picture(tmp_path / "demo" / f"{script}.png")

    def number(limit: float | str, place: int) -> float:
        return table(text, limit)[limit][place] if isinstance(limit, str) else limit

    for names, place, least, most in GALLERY[script]:
        for name in names.split("; "):
            assert number(least, place) < number(name, place) < number(most, place), name


def test_every_script_of_the_gallery_is_tested() -> None:
    assert {path.stem for path in (ROOT / "examples" / "gallery").glob("*.py")} == GALLERY.keys()
