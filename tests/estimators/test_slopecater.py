"""SlopeCateR: the sizes of slopes, and the coin of corrections.

The battery judges whether it is unbiased while it learns; what it learns: tests/frozen. Captured
steps: tests/gpu/test_captured_steps.py, on a CPU as well.
"""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

import catlog
from catlog import SlopeCateR
from catlog.compiled import CompiledStep
from support.laws import bits, one_hots


@pytest.mark.parametrize(("uniform", "corrects"), [(0.0, True), (0.2499, True), (0.25, False)])
def test_the_coin_has_probability_one_over_every(uniform: float, corrects: bool) -> None:
    rows = []

    def f(x: Tensor) -> Tensor:
        rows.append(len(x))
        return x.sum(-1)

    coin, start = torch.tensor(uniform), torch.rand(1)
    q = bits(torch.zeros(3))
    SlopeCateR(2, every=4)(f, q, noise=(coin, start) if corrects else coin)
    assert rows == [2 + 2 * corrects]


def test_sizes_of_slopes_are_learned() -> None:
    """All slopes of w . x are known; a bit counts as a variable of two categories."""
    w = torch.tensor([1.0, -2.0, 0.0, 3.0, 0.5])
    logits = torch.zeros(7, 5, requires_grad=True)  # all variables have the same probabilities
    hot = one_hots(torch.stack([logits, logits], -1))
    for q, f in ((bits(logits), lambda x: x @ w), (hot, lambda x: x[..., 1] @ w)):
        E = SlopeCateR(4)
        E(f, q).sum().backward()
        torch.testing.assert_close(E.sizes(5), w.abs() / 2**0.5)


X = torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0]])
START = torch.tensor([0.3])


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")
def test_compiled_and_mapped_calls_always_correct() -> None:
    often, seldom = SlopeCateR(2).eval(), SlopeCateR(2, every=1000).eval()

    def value(E: SlopeCateR, logits: Tensor) -> Tensor:
        return E(lambda x: x.sum(-1).exp(), bits(logits), x=X, noise=START)

    logits = torch.randn(3, requires_grad=True)
    (wanted,) = torch.autograd.grad(value(often, logits), logits)
    compiled = torch.compile(value, backend="eager", fullgraph=True)
    (got,) = torch.autograd.grad(compiled(seldom, logits), logits)
    torch.testing.assert_close(got, wanted)
    mapped = torch.func.grad(partial(value, seldom))(logits.detach())
    torch.testing.assert_close(mapped, wanted)


def step_of(E: SlopeCateR, **options: object) -> tuple[nn.Parameter, CompiledStep]:
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
    E, eager = SlopeCateR(2, every=4), SlopeCateR(2, every=4)
    theta, step = step_of(E, compile=True, estimator=E)
    expected, plain = step_of(eager)
    coins = [True, False, False, True, False]
    tosses = iter(coins)
    monkeypatch.setattr(E, "toss", lambda: next(tosses))
    for eager.corrects in coins:
        torch.testing.assert_close(step(torch.ones(())), plain(torch.ones(())))
        torch.testing.assert_close(theta, expected)
        assert E.corrects is None  # as before, so calls outside the step toss by themselves
    assert (step.mode, plain.mode) == ("compiled", "eager")
    assert next(tosses, None) is None  # one toss per step
    torch.testing.assert_close(dict(E.named_buffers()), dict(eager.named_buffers()))


def test_a_decision_replaces_the_coin(monkeypatch: pytest.MonkeyPatch) -> None:
    E, often = SlopeCateR(2, every=4), SlopeCateR(2)
    monkeypatch.setattr(E, "toss", lambda: pytest.fail("nobody asked for a coin"))
    _, step = step_of(E, estimator=E)
    for E.corrects in (True, False):
        assert step._decide() is E.corrects
    for estimator in (often, catlog.RLOO(2)):
        assert step_of(often, estimator=estimator)[1]._decide() is None


def test_eager_steps_leave_the_coin_to_the_estimator(monkeypatch: pytest.MonkeyPatch) -> None:
    E = SlopeCateR(2, every=4)
    _, step = step_of(E, estimator=E)
    tosses, coin = [], catlog.Randomness.coin
    monkeypatch.setattr(E, "toss", lambda: pytest.fail("the step tosses no coin"))
    monkeypatch.setattr(catlog.Randomness, "coin", lambda draw: tosses.append(coin(draw)) or 0.9)
    step(torch.ones(()))
    assert len(tosses) == 1
