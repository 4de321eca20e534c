"""Every script of the gallery runs in quick mode, draws its figure, and what it prints is right."""

import contextlib
import re
import runpy
import sys
import warnings
from pathlib import Path
from typing import Any

import matplotlib
import pytest
import torch

SCRIPTS = Path(__file__).parents[2] / "examples" / "gallery"
PACKAGES = {
    "lightning_module": "lightning",
    "multidiscrete_policy": "gymnasium",
}


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
    with warnings.catch_warnings(), torch.random.fork_rng(), matplotlib.rc_context():
        if name == "lightning_module":
            warnings.simplefilter("ignore")  # of Lightning's own imports
        if name in PACKAGES:
            pytest.importorskip(PACKAGES[name])
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


def test_adding_numbers(text: str) -> None:
    assert "250 sums of two numbers of 8 digits" in text
    for name in ("IndeCateR, per digit", "RLOO, per digit", "RLOO, whole sum"):
        sums, digits = numbers(text, name)
        assert 0 <= sums <= digits < 0.6  # one epoch is too short to leave the plateau


def test_hard_attention(text: str) -> None:
    assert all(numbers(text, name)[0] > 0.15 for name in ("IndeCateR", "RLOO", "random glimpses"))


def test_vq_autoencoder(text: str) -> None:
    for name in ("IndeCateR", "RLOO", "Straight-Through"):
        error, perplexity = numbers(text, name)
        assert error < 0.1  # black images have 0.23
        assert 1 < perplexity <= 16


def test_factored_bandit(text: str) -> None:
    variance = {
        name: numbers(text, name)[0]
        for name in ("Reinforce", "Reinforce, exact baseline", "RLOO", "IndeCateR")
    }
    assert 3 * variance["Reinforce, exact baseline"] < variance["Reinforce"]
    assert variance["IndeCateR"] < variance["Reinforce, exact baseline"]
    assert all(numbers(text, name)[1] > 0 for name in variance)  # nobody beats the best action


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


def test_sudoku(text: str) -> None:
    assert all(0.25 < numbers(text, name)[0] <= 1 for name in ("CritiCateR", "RLOO", "IndeCateR"))


def test_sudoku_rules() -> None:
    """The solution breaks nothing; one changed cell breaks a row, a column and a box."""
    source = (SCRIPTS / "sudoku.py").read_text(encoding="utf-8")
    rules: dict[str, object] = {}
    exec(source[source.index("ROWS = ") : source.index("def f(")], rules)
    broken, solution = rules["broken"], [0, 1, 2, 3, 2, 3, 0, 1, 1, 0, 3, 2, 3, 2, 1, 0]
    assert callable(broken)
    assert broken(solution) == 0
    assert broken([1, *solution[1:]]) == 3
    assert broken([0] * 16) == 36


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


def test_per_example_gradients(text: str) -> None:
    draws = {
        name: numbers(text, name)[0]
        for name in ("RLOO, 17 evaluations", "RLOO, 68", "IndeCateR, 17", "IndeCateR, 68, Latin")
    }
    assert draws["RLOO, 68"] < draws["RLOO, 17 evaluations"]
    assert draws["IndeCateR, 68, Latin"] < draws["IndeCateR, 17"] < draws["RLOO, 17 evaluations"]


def test_lightning_module(text: str) -> None:
    for name in ("SlopeCateR", "IndeCateR", "DisARM", "RLOO", "Straight-Through"):
        accuracy, loss = numbers(text, name)  # the loss went through the estimator in validation
        assert accuracy > 0.2
        assert 0 < loss < 2.31  # a guess costs log 10


def test_multidiscrete_policy(text: str) -> None:
    lines = text.splitlines()
    for name in ("IndeCateR", "RLOO"):
        (line,) = [line for line in lines if line.startswith(name) and "return" in line]
        first, last = re.findall(r"-\d+\.\d", line)
        assert "13 evaluations" in line
        assert first == last  # one episode
        assert -1000 < float(first) < -100  # of 100 steps
    variance = {
        name: numbers(line, name)[0]
        for name in ("RLOO", "CritiCateR", "IndeCateR")
        for line in lines
        if line.startswith(f"{name} ") and "variance" in line
    }
    assert variance["IndeCateR"] < variance["RLOO"]


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


def test_transformer_policy_notices_a_wrong_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step whose second layer reads the keys and values of the first is refused."""
    # Compiling turns validation off for the whole process, and with it this check.
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
    source = (SCRIPTS / "transformer_policy.py").read_text(encoding="utf-8")
    model = source[: source.index("def excerpts")]
    assert "cache[:, i]" in model
    for code, is_right in ((model, True), (model.replace("cache[:, i]", "cache[:, 0]"), False)):
        names: dict[str, Any] = {"__name__": "a_transformer"}
        exec(code, names)
        torch.manual_seed(0)
        q = names["completions"](names["GPT"](), torch.randint(27, (3, 4)))
        x = q.sample((2,))
        with contextlib.nullcontext() if is_right else pytest.raises(ValueError, match="step and"):
            q.log_prob(x)


def test_coin_sequences(text: str) -> None:
    (best,) = re.findall(r"best possible mean reward (\S+),", text)
    assert float(best) == 0.896  # 25 coins for the amounts from 1 to 12, at 0.05 each
    assert "depends on its padding" in text
    for name in ("RLOO", "CritiCateR", "SCateR"):
        found = re.search(rf"^{name} +(\d+) tokens, variance x tokens (\S+)$", text, re.MULTILINE)
        assert found is not None
        assert 100 < int(found[1]) < 400
        assert 0 < float(found[2]) < 1000
        found = re.search(rf"^{name} +reward (\S+), exact", text, re.MULTILINE)
        assert found is not None
        assert -1.3 < float(found[1]) < float(best)
    assert len(re.findall(r"^ +\d+ = ", text, re.MULTILINE)) == 12


def test_maxcut(text: str) -> None:
    counted = re.search(r"best of all cuts has (\d+) of", text)
    assert counted is not None
    for name in ("RLOO, no bonus", "RLOO, bonus", "CritiCateR, bonus"):
        best = int(line_of(text, name).split()[-1])
        # A random cut has 60 of 120 edges.
        assert 60 < numbers(text, name)[0] <= best <= int(counted[1])


def test_product_modulo_7(text: str) -> None:
    bias = {
        name: numbers(text, name)[:2]
        for name in ("RLOO(40)", "RLOO(20), repeats=2", "IndeCateR(2)", "IndeCateR(1), repeats=2")
    }
    for plain, repeated in zip(list(bias)[::2], list(bias)[1::2], strict=True):
        error = max(bias[plain][1], bias[repeated][1])
        assert bias[plain][0] < 0
        assert abs(bias[repeated][0]) < abs(bias[plain][0]) + 5 * error
    for name in ("Exact", "IndeCateR", "RLOO"):
        assert numbers(text, name)[0] > 0.2


def test_notebook_workers(text: str) -> None:
    before, after = numbers(text, "expected score")
    assert 0.7 < before < after < 1
    everything, selected = numbers(text, "all columns")
    assert everything < selected


@pytest.mark.parametrize(
    ("package", "script"),
    [("lightning", "lightning_module"), ("gymnasium", "multidiscrete_policy")],
)
def test_missing_packages_are_named(
    package: str, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit, match=f"pip install {package}"):
        runpy.run_path(str(SCRIPTS / f"{script}.py"), run_name="__main__")


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
