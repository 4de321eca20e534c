"""advise, compare and check change only their own copies."""

import random
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Independent

import catlog
from catlog.core.left_alone import modules_of
from catlog.diagnostics.moments import Moments

Ask = Callable[..., object]
ASK: dict[str, Ask] = {
    "advise": partial(catlog.advise, budget=16, seconds=0.1, steps=1),
    "compare": partial(
        catlog.compare, estimators=[catlog.RLOO(2)], repeats=4, rounds=1, progress=False
    ),
    "check": catlog.check,
}
MEASURE = {name: ASK[name] for name in ("advise", "compare")}
NETWORK = nn.Linear(3, 1)


def bits(*shape: int) -> Independent:
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    return Independent(Bernoulli(logits=logits, validate_args=False), 1)


@pytest.mark.filterwarnings("ignore::catlog.NoisyFunctionWarning")
@pytest.mark.parametrize("ask", ASK.values(), ids=ASK)
def test_buffers_modes_gradients_and_random_numbers_stay(ask: Ask) -> None:
    network = nn.Sequential(
        nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 1)
    )
    network[2].eval()

    def f(x: Tensor) -> Tensor:
        noise = random.random() + np.random.random() + torch.rand(())  # noqa: NPY002
        return network(x.flatten(0, -2)).view(x.shape[:-1]) + 1e-3 * noise

    def state() -> tuple[object, ...]:
        of_numpy = str(np.random.get_state())  # noqa: NPY002
        return random.getstate(), of_numpy, torch.get_rng_state().tolist()

    before, numbers, q = deepcopy(network.state_dict()), state(), bits(4, 5)
    ask(f, q)
    assert all(torch.equal(new, before[name]) for name, new in network.state_dict().items())
    assert state() == numbers
    assert [module.training for module in network] == [True, True, False, True, True]
    leaves = [*network.parameters(), q.base_dist.logits]
    assert all(leaf.grad is None for leaf in leaves)


def test_a_graph_that_holds_a_buffer_survives() -> None:
    """q was computed with running statistics that advise restores."""
    encoder = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).eval()
    q = Independent(Bernoulli(logits=encoder(torch.ones(4, 2))), 1)
    ASK["compare"](lambda x: encoder[1](x.flatten(0, -2)).view(x.shape).sum(-1), q)
    catlog.RLOO(2)(lambda x: x.sum(-1), q).sum().backward()


class Model:
    """Refers to one network by an attribute, and to another by a global name."""

    def __init__(self, network: nn.Module) -> None:
        self.parts = {"decoder": network}

    def reward(self, x: Tensor) -> Tensor:
        return self.parts["decoder"](x).squeeze(-1)

    def __call__(self, x: Tensor) -> Tensor:
        def inner(points: Tensor) -> Tensor:
            return NETWORK(points).squeeze(-1)

        return inner(x)


def test_modules_are_found_wherever_a_function_refers_to_them() -> None:
    network = nn.Linear(3, 1)
    loop = SimpleNamespace(network=network)
    loop.itself = loop
    for source in (
        network,
        lambda x: network(x),
        partial(lambda model, x: model(x), network),
        lambda x, model=network: model(x),
        torch.compile(lambda x: network(x), backend="eager"),
        loop,
    ):
        assert modules_of(source) == [network]
    assert network in modules_of(Model(network).reward)
    assert set(modules_of(Model(network))) == {network, NETWORK}
    assert modules_of(torch.sin, None, 3) == []


@pytest.mark.parametrize("ask", MEASURE.values(), ids=MEASURE)
def test_gradients_are_measured_inside_no_grad(ask: Ask) -> None:
    """Without them every estimate would be zero, and the variance, too."""
    with torch.no_grad():
        result: Any = ask(lambda x: x.sum(-1).sin(), bits(4, 5))
        assert not torch.is_grad_enabled()
    measured = result.trials if isinstance(result, catlog.Advice) else result.rows
    assert measured[0].variance > 0
    with torch.inference_mode(), pytest.raises(RuntimeError, match=r"inference_mode forbids"):
        ask(lambda x: x.sum(-1).sin(), bits(4, 5))


def test_reasons_begin_with_what_went_wrong() -> None:
    """Not with candidates that were never tried."""
    message = r"no candidate could be used\. RLOO\(2\)(, [\w(),= ']*)? \(its gradient is NaN or inf"
    with pytest.raises(ValueError, match=message):
        ASK["advise"](lambda x: torch.full(x.shape[:-1], torch.nan), bits(4, 5))


def test_more_points_than_python_prints() -> None:
    """2**20000 has 6021 digits; Python refuses to write more than 4300."""
    options: Any = {"estimators": [catlog.RLOO(2), catlog.Exact()]}
    result: Any = ASK["compare"](lambda x: x.mean(-1), bits(20000), **options)
    assert "q has about 10^6020 points, more than `limit`" in result.skipped["Exact()"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_noise_is_not_taken_for_rounding(dtype: torch.dtype) -> None:
    """A tenth of the mean is noise in every type; one unit of precision is rounding."""
    for gap, variance in ((0.125, 0.125**2 / 2), (torch.finfo(dtype).eps, 0.0)):
        moments = Moments()
        moments.add(torch.tensor([[1.0], [1.0 + gap]], dtype=dtype))
        assert moments.variance == pytest.approx(variance)
