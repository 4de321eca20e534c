"""Every script of the gallery runs in quick mode, draws its figure, and what it prints is right."""

import re
import runpy
from pathlib import Path

import matplotlib
import pytest
import torch

SCRIPTS = Path(__file__).parents[2] / "examples" / "gallery"


@pytest.fixture
def text(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    """Return what the script with the test's name prints, run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CATLOG_QUICK", "1")
    matplotlib.use("Agg")
    name = request.node.name.removeprefix("test_")
    with torch.random.fork_rng(), matplotlib.rc_context():
        runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")
        matplotlib.pyplot.close("all")
    assert (tmp_path / "demo" / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
    return capsys.readouterr().out


def line_of(text: str, name: str) -> str:
    """Return the line that starts with a name, without it."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"{name} ")]
    return line.removeprefix(name)


def numbers(text: str, name: str) -> list[float]:
    """Return the numbers behind a name, where a line starts with it."""
    return [float(number) for number in re.findall(r"-?\d+\.\d+", line_of(text, name))]


def test_discrete_vae(text: str) -> None:
    for name in ("IndeCateR", "RLOO", "Gumbel-Softmax, 0.5", "Gumbel-Softmax, 1.0"):
        assert 150 < numbers(text, name)[-1] < 300  # 784 fair bits would cost 543


def test_poisson_autoencoder(text: str) -> None:
    for name in ("CountDifferences", "RLOO, truncated"):
        assert 150 < numbers(text, name)[-1] < 300  # 784 fair bits would cost 543
    assert re.search(r"at most \d\.\de-\d+ lost beyond 31", text)


def test_mnist_addition(text: str) -> None:
    for name in ("IndeCateR, seed", "RLOO, seed"):
        sums, digits = numbers(text, name)
        assert sums > 0.07  # a constant answer is right in at most 7.5 % of all sums
        assert digits > 0.15


def test_vq_autoencoder(text: str) -> None:
    for name in ("IndeCateR", "RLOO", "Straight-Through"):
        error, perplexity = numbers(text, name)
        assert error < 0.1  # black images have 0.23
        assert 1 < perplexity <= 16


def test_mixture_of_experts(text: str) -> None:
    names = ("picked expert only", "Straight-Through", "ReinMax", "RLOO", "IndeCateR, 2 tokens")
    lines = [line for line in text.splitlines() if "distance of the mean" in line]
    assert len(lines) == len(names)
    bias = {name: numbers(line, name) for name, line in zip(names, lines, strict=True)}
    distance, error, _ = bias["IndeCateR, 2 tokens"]
    assert distance < 4 * error  # unbiased; 100 estimates of some 260 parameters
    distance, error, _ = bias["Straight-Through"]
    assert distance > 4 * error
    assert bias["IndeCateR, 2 tokens"][2] < bias["RLOO"][2] < bias["picked expert only"][2]
    for name in names:
        loss, share, _ = numbers(text, f"{name}, bonus")
        assert 0 < loss < 4
        assert 0.25 < share <= 1


def test_feature_selection(text: str) -> None:
    for name in ("IndeCateR", "RLOO"):
        kept = r"keeps (\d+) of 13 real columns and (\d+) of 13 shuffled"
        counted = re.search(kept, line_of(text, name))
        assert counted is not None
        assert int(counted[1]) > int(counted[2])
        assert numbers(text, name)[0] > 0.8


def test_oil_wildcatter(text: str) -> None:
    profits = {
        name: numbers(text, name)
        for name in ("exact gradient", "SCateR", "CritiCateR", "RLOO", "Reinforce")
    }
    for name, (mean, best, worst) in profits.items():
        assert worst <= mean <= best == 22.5, name
        assert mean > 10, name  # a coin for every decision earns 5
    assert profits["exact gradient"][0] == max(mean for mean, _, _ in profits.values())


def test_mixture_posterior(text: str) -> None:
    lines = text.splitlines()
    variance = {
        line.split()[0]: [float(v) for v in re.findall(r"\d+\.\d+", line)]
        for line in lines
        if "variance" in line
    }
    assert variance["Exact"][0] < variance["RLOO"][0]
    assert variance["Exact"][1] < variance["IndeCateR"][1]


def test_transformer_policy(text: str) -> None:
    ends = re.findall(r"(?:at most|off by|norm) (\d\.\de[-+]\d+)", text)
    cached, recipe, naive = map(float, ends)
    assert cached < 1e-12  # float64: the cache is the same function
    assert recipe < 1e-5  # the bonus has the gradient of the entropy
    assert naive < 1e-5  # and the mean of -log q has none
    divergences = {}
    for name in ("RLOO, penalty 0.02", "CritiCateR, penalty 0.02", "RLOO, no penalty"):
        found = re.search(rf"{name} +vowels (\S+) -> (\S+), KL (\S+) nats", text)
        assert found is not None
        before, after, divergences[name] = map(float, found.groups())
        assert after > before
    assert 0 < divergences["RLOO, penalty 0.02"] < divergences["RLOO, no penalty"]


def test_maxcut(text: str) -> None:
    counted = re.search(r"best of all cuts has (\d+) of", text)
    assert counted is not None
    for name in ("RLOO, no bonus", "RLOO, bonus", "CritiCateR, bonus"):
        best = int(line_of(text, name).split()[-1])
        # A random cut has 60 of 120 edges.
        assert 60 < numbers(text, name)[0] <= best <= int(counted[1])


def test_every_script_is_tested() -> None:
    tests = Path(__file__).read_text(encoding="utf-8")
    for script in sorted(SCRIPTS.glob("*.py")):
        assert f"def test_{script.stem}(text: str)" in tests
        assert script.read_text(encoding="utf-8").startswith(('"""\n', 'r"""\n'))


def test_learning_to_explain(text: str) -> None:
    (random,) = numbers(text, "random pixels")
    for name in ("RLOO", "SIMPLE"):
        assert numbers(text, name)[0] > random + 0.05


def test_learning_to_rank(text: str) -> None:
    (least_squares,) = numbers(text, "least squares")
    for name in ("RLOO", "CritiCateR"):
        assert numbers(text, name)[0] > least_squares + 0.01
