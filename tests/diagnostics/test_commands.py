"""`catlog compare` and `catlog advise` on the command line."""

from pathlib import Path

import pytest

from catlog_experiments.cli import main

MINE = """
import torch
from torch.distributions import Bernoulli, Independent

def problem():
    theta = torch.zeros(4, requires_grad=True)
    return (lambda x: x.prod(-1)), (lambda t: Independent(Bernoulli(logits=t), 1)), [theta]

def plain():
    f, law, (theta,) = problem()
    return f, law(theta)

def nothing():
    return 1

def broken():
    return torch.zeros(2).colour
"""


def test_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    Path("my_problem_of_bits.py").write_text(MINE, encoding="utf-8")
    few = "--repeats 10 --rounds 1"
    chosen = "--estimators RLOO,IndeCateR(sampling=latin),CARMS(4) --budget 10"
    mine = "compare --problem my_problem_of_bits"
    assert main(f"{mine}:problem {chosen} {few} --csv out.csv --plot out.png".split()) == 0
    output = capsys.readouterr().out
    assert all(
        name in output for name in ("RLOO(10)", "IndeCateR(2, sampling='latin')", "CARMS(10)")
    )
    assert output.endswith("Numbers: out.csv\nFigure: out.png\n")
    assert max(map(len, output.splitlines())) <= 80
    assert Path("out.csv").exists()
    assert Path("out.png").exists()
    assert main(f"{mine}:plain --estimators RLOO --samples 3 {few}".split()) == 0
    assert "RLOO(3)" in capsys.readouterr().out
    assert main(["advise", "--problem", "my_problem_of_bits:problem"]) == 0
    assert "Take " in capsys.readouterr().out
    for command, message in (
        (f"{mine}:nothing", "must return (f, q), (f, make_q, parameters) or a Problem"),
        (f"{mine}:missing", "has no function 'missing'"),
        ("compare --problem no_such_module:f", "there is no module 'no_such_module'"),
        ("compare --problem :f", "':f' is not known"),
        (f"{mine}:problem --estimators Nonsense", "'Nonsense' is not known"),
    ):
        assert main(command.split()) == 2
        assert message in " ".join(capsys.readouterr().err.split())
    with pytest.raises(RuntimeError, match="my_problem_of_bits:broken raised") as caught:
        main(f"{mine}:broken".split())
    assert isinstance(caught.value.__cause__, AttributeError)


def test_command_on_the_suite(capsys: pytest.CaptureFixture[str]) -> None:
    options = "--estimators RLOO,IndeCateR --budget 100 --repeats 10 --rounds 1"
    assert main(f"compare --problem ising {options}".split()) == 0
    assert "Bias against the reference given" in capsys.readouterr().out
    assert main(["compare", "--problem", "nonsense"]) == 2
