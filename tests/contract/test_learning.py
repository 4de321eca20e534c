"""Estimators that learn between calls: when they do, checkpointed, and after wrong values.

Compiled by Inductor: tests/compiled/test_inductor.py.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import catlog
from catlog.estimators import MovingAverageBaseline
from catlog.testing.cases import seeded
from support.compiling import checked_graphs
from support.laws import bits
from support.learners import LEARNERS, LOGITS, bias, f, gradients, law, learner

each_learner = pytest.mark.parametrize("name", LEARNERS)


def state(E: catlog.Estimator) -> list[Tensor]:
    return [buffer.clone() for buffer in learner(E).buffers()]


def call(E: catlog.Estimator, f: Callable[[Tensor], Tensor] = f, **options: Any) -> Tensor:
    """Return the gradient of a call with seed 0."""
    logits = LOGITS.clone().requires_grad_()
    value = E(f, law(logits), generator=seeded(), **options)
    return torch.autograd.grad(value, logits)[0]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.usefixtures("two_kernels")
@each_learner
def test_compiled_calls_learn_as_eager_ones(name: str) -> None:
    torch._dynamo.reset()
    results = []
    for options in ({}, {"backend": checked_graphs}):
        E = LEARNERS[name]()
        loss = lambda logits, E=E: E(f, law(logits))  # noqa: E731
        loss = torch.compile(loss, fullgraph=True, **options) if options else loss
        torch.manual_seed(0)
        results.append([gradients(loss, 4, 5), *state(E)])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
    assert all((result != 0).any() for result in results[0])  # something was learned


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@each_learner
def test_when_it_learns(name: str, mode: Any) -> None:
    """eval(), inference mode and counting freeze it; buffers never become inference tensors.

    SlopeCateR learns in the backward pass, so no_grad freezes it, too; a moving average ignores
    eval().
    """
    E = LEARNERS[name]()
    call(E)
    for training in (False, True):
        learner(E).train(training)
        before = state(E)
        for batch in (0, 4):
            assert E.evaluations(law(torch.zeros(batch, 4))) > 0
        assert all(map(torch.equal, before, state(E)))
        with mode():
            E(lambda x: f(x).cos(), law(LOGITS))
        changed = not all(map(torch.equal, before, state(E)))
        if "Average" not in name:
            learns = mode is torch.no_grad and name != "SlopeCateR"
            assert changed == (training and learns)
        assert not any(buffer.is_inference() for buffer in learner(E).buffers())
    call(E)


@pytest.mark.parametrize("reentrant", [False, True])
@each_learner
def test_a_checkpoint_is_refused_while_it_learns(name: str, reentrant: bool) -> None:
    E, logits = LEARNERS[name](), LOGITS.clone().requires_grad_()
    message = r"learns from every call.*around the network inside f.*eval\(\)"
    with pytest.raises(RuntimeError, match=message):
        checkpoint(lambda logits: E(f, law(logits)), logits, use_reentrant=reentrant).backward()


@each_learner
def test_a_checkpoint_is_right_once_it_is_frozen(name: str) -> None:
    E = LEARNERS[name]()
    call(E)
    learner(E).eval()
    before, slopes = state(E), []
    for function in (E, lambda *arguments: checkpoint(E, *arguments, use_reentrant=False)):
        torch.manual_seed(0)
        logits = LOGITS.clone().requires_grad_()
        slopes.append(torch.autograd.grad(function(f, law(logits)), logits)[0])
    assert torch.equal(*slopes)
    assert all(map(torch.equal, before, state(E)))


WRONG: dict[str, Callable[[Tensor], Tensor]] = {
    "NaN": lambda x: f(x) * torch.nan,
    "infinity": lambda x: f(x) / (x.sum(-1) - x.sum(-1)),
    "infinite slope": lambda x: x.sum(-1).sqrt(),  # at zero
    "1e25": lambda x: 1e25 * f(x),
}


@pytest.mark.parametrize("wrong", WRONG)
@each_learner
def test_a_wrong_value_does_not_harm_later_calls(name: str, wrong: str) -> None:
    """Without checks of values, buffers stay finite and later estimates unbiased."""
    E = LEARNERS[name]()
    x = torch.zeros(E.samples, 4)
    x[1:] = torch.eye(4)[: len(x) - 1]
    for _ in range(2):
        logits = LOGITS.float().requires_grad_()
        E(WRONG[wrong], law(logits), x=x if name != "MAPO" else None).backward()
        assert all(buffer.double().isfinite().all() for buffer in state(E))
    error, deviation, _ = bias(gradients(lambda logits: E(f, law(logits)), 30, 500))
    assert (error.abs() <= 6 * deviation).all()


@pytest.mark.parametrize("wrong", [*WRONG][:3])
def test_a_wrong_slope_or_value_is_named(wrong: str) -> None:
    E = catlog.SlopeCateR(samples=2)
    before = state(E)
    with pytest.raises(ValueError, match=r"f.* finite numbers, but"):
        E(WRONG[wrong], bits(LOGITS.float().requires_grad_()), x=torch.zeros(2, 4)).backward()
    assert all(map(torch.equal, before, state(E)))


def test_the_moving_average_weighs_earlier_calls_by_the_decay() -> None:
    baseline = MovingAverageBaseline(decay=0.8).double()
    for value in (4.0, 8.0):
        baseline(torch.tensor([value], dtype=torch.float64))
    wanted = (0.8 * 4.0 + 8.0) / 1.8
    baseline(torch.zeros(0, dtype=torch.float64))  # an empty batch changes nothing
    assert baseline(torch.zeros(1)).item() == pytest.approx(wanted, rel=1e-12)


def test_a_point_of_nan_is_not_remembered() -> None:
    """MAPO remembers the best points, and NaN is not one of them."""
    E = catlog.estimators.MAPO(size=1, samples=2, max_variables=3)
    values = torch.tensor([torch.nan, 1.0, 2.0])
    E(lambda x: values[: len(x)], law(torch.zeros(3)), x=torch.eye(3)[:2])
    assert E.memory.tolist() == [[0, 1, 0]]
