"""`compiled_step` tosses the coin of an estimator that corrects in some calls only.

Captured steps: tests/gpu/test_captured_steps.py, on a CPU as well.
"""

from itertools import chain, repeat

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import catlog
from catlog.compiled import CompiledStep
from support.laws import bits

X = torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0]])
START = torch.tensor([0.3])


def step_of(E: catlog.SlopeCateR, **options: object) -> tuple[nn.Parameter, CompiledStep]:
    theta = nn.Parameter(torch.tensor([0.5, -1.0, 0.2]))

    def loss(scale: Tensor) -> Tensor:
        q = bits(theta, validate_args=False)
        return E(lambda z: (scale * z.sum(-1)).exp(), q, x=X, noise=START if E.corrects else None)

    return theta, catlog.compiled_step(loss, torch.optim.SGD([theta], 0.1), **options)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")
def test_a_compiled_step_corrects_as_the_coin_says(monkeypatch: pytest.MonkeyPatch) -> None:
    compile = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda f, **_: compile(f, backend="aot_eager", fullgraph=True)
    )
    E = catlog.SlopeCateR(2, every=4)
    theta, step = step_of(E, compile=True, estimator=E)
    coins = [True, False, False, True, False]
    tosses = chain(coins, repeat(None))
    monkeypatch.setattr(E, "toss", lambda: next(tosses))
    eager = catlog.SlopeCateR(2, every=4)
    expected, plain = step_of(eager)
    for eager.corrects in coins:
        loss = step(torch.ones(()))
        assert_close(loss, plain(torch.ones(())))
        assert_close(theta, expected)
        assert E.corrects is None  # as before, so calls outside the step toss by themselves
    assert (step.mode, plain.mode) == ("compiled", "eager")
    assert next(tosses) is None  # one toss per step
    assert_close(dict(E.named_buffers()), dict(eager.named_buffers()))


def test_a_decision_replaces_the_coin(monkeypatch: pytest.MonkeyPatch) -> None:
    E = catlog.SlopeCateR(2, every=4)
    monkeypatch.setattr(E, "toss", lambda: pytest.fail("nobody asked for a coin"))
    _, step = step_of(E, estimator=E)
    for E.corrects in (True, False):
        assert step._decide() is E.corrects
    often = catlog.SlopeCateR(2)
    assert step_of(often, estimator=often)[1]._decide() is None
    assert step_of(often, estimator=catlog.RLOO(2))[1]._decide() is None


def test_eager_steps_leave_the_coin_to_the_estimator(monkeypatch: pytest.MonkeyPatch) -> None:
    E = catlog.SlopeCateR(2, every=4)
    _, step = step_of(E, estimator=E)
    tosses = []
    coin = catlog.Randomness.coin
    monkeypatch.setattr(E, "toss", lambda: pytest.fail("the step tosses no coin"))
    monkeypatch.setattr(catlog.Randomness, "coin", lambda draw: tosses.append(coin(draw)) or 0.9)
    step(torch.ones(()))
    assert len(tosses) == 1
