"""Without gradients every estimator gives the same value, and training continues afterwards."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Distribution

import catlog
from catlog import Reinforce, SlopeCateR
from catlog.distributions import MarkovChain
from catlog.estimators import MAPO, MemoryCateR, MovingAverageBaseline
from catlog.testing.cases import seeded
from catlog.testing.settings import estimators, supports
from support.laws import bits, one_hots

LAWS: dict[str, Callable[[Tensor], Distribution]] = {
    "bits": lambda logits: bits(logits[..., 0]),
    "one-hot": one_hots,
    "structured": lambda logits: MarkovChain(logits[..., 0, :], logits, length=2),
}
mode = pytest.mark.parametrize(
    "mode", [torch.no_grad, torch.inference_mode], ids=lambda mode: mode.__name__
)
OTHERS = [(torch.inference_mode, "outside"), (torch.no_grad, "inside"), (torch.no_grad, "outside")]
LEARNING = [
    MemoryCateR(4, size=6),
    MAPO(2),
    SlopeCateR(2),
    Reinforce(2, baseline=MovingAverageBaseline(0.5)),
]


def logits() -> Tensor:
    return torch.randn(2, 3, 3, dtype=torch.float64, generator=seeded()).requires_grad_()


def network(x: Tensor) -> nn.Module:
    """Return a network for points [n, batch, *event]."""
    model = nn.Sequential(
        nn.Flatten(2), nn.Linear(x[0, 0].numel(), 4), nn.Tanh(), nn.Linear(4, 1), nn.Flatten(-2)
    ).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, generator=seeded())
    return model


def losses(E: Any, kind: str, mode: Any, made: str) -> list[Tensor]:
    """Return the value under ``mode``, then gradients with a new q and with the same q."""
    E, source, parameters = deepcopy(E), seeded(), logits()
    outside = LAWS[kind](parameters)
    model = network(outside.sample((1,)))
    with mode():
        q = outside if made == "outside" else LAWS[kind](parameters)
        value = E(lambda x: model(x.double()), q, generator=source).clone()
    E(lambda x: model(x.double()), LAWS[kind](parameters), generator=source).sum().backward()
    E(lambda x: model(x.double()), outside, generator=source).sum().backward()
    return [value.detach(), parameters.grad, *(weight.grad for weight in model.parameters())]


@pytest.mark.parametrize("E", estimators())
def test_same_value_and_training_continues(E: catlog.Estimator) -> None:
    for kind in LAWS:
        if not supports(E, kind):
            continue
        expected = losses(E, kind, torch.enable_grad, "outside")
        for mode, made in [(torch.inference_mode, "inside"), *OTHERS * (kind == "bits")]:
            results = losses(E, kind, mode, made)
            frozen = isinstance(E, SlopeCateR) or (
                isinstance(E, MemoryCateR | MAPO) and mode is torch.inference_mode
            )
            count = 1 if frozen else None  # where nothing was learned, the next step differs
            torch.testing.assert_close(results[:count], expected[:count], rtol=1e-12, atol=1e-13)


@mode
@pytest.mark.parametrize("E", LEARNING, ids=lambda E: type(E).__name__)
def test_learned_buffers_stay_usable(E: Any, mode: Any) -> None:
    """They are frozen by eval() and under inference_mode, and never become inference tensors.

    SlopeCateR learns in the backward pass, so no_grad freezes it, too.
    """
    E = deepcopy(E)
    module = E if isinstance(E, nn.Module) else E.baseline
    q = LAWS["bits"](logits())
    E(lambda x: x.sum(-1).sin(), q, generator=seeded()).sum().backward(retain_graph=True)
    for training in (False, True):
        module.train(training)
        before = {name: value.clone() for name, value in module.state_dict().items()}
        with mode():
            E(lambda x: x.sum(-1).cos(), q, generator=seeded())
        after = module.state_dict()
        changed = any(not torch.equal(after[name], before[name]) for name in before)
        if not isinstance(E, Reinforce):  # a moving average ignores eval()
            learns = mode is torch.no_grad and not isinstance(E, SlopeCateR)
            assert changed == (training and learns)
        assert not any(buffer.is_inference() for buffer in module.buffers())
    E(lambda x: x.sum(-1).sin(), LAWS["bits"](logits()), generator=seeded()).sum().backward()


@pytest.mark.parametrize("E", estimators(differentiates_f=True))
def test_f_with_an_inference_tensor(E: Any) -> None:
    """torch cannot save it for a backward pass."""
    with torch.inference_mode():
        weight = torch.arange(3.0, dtype=torch.float64)
        q = LAWS["bits"](logits())
        assert bool(deepcopy(E)(lambda x: (x * weight).square().sum(-1), q).isfinite().all())
