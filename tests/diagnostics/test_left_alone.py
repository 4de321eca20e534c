"""advise and compare change nothing but their own copies, and name what is wrong with f and q."""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from types import SimpleNamespace

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
}
NETWORK = nn.Linear(3, 1)


def bits(*shape: int) -> Independent:
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    return Independent(Bernoulli(logits=logits, validate_args=False), 1)


@pytest.mark.filterwarnings("ignore::catlog.NoisyFunctionWarning")
@pytest.mark.parametrize("ask", ASK.values(), ids=ASK)
def test_running_statistics_and_random_numbers_stay(ask: Ask) -> None:
    network = nn.Sequential(
        nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 1)
    )
    before, state = deepcopy(network.state_dict()), torch.get_rng_state()
    q = bits(4, 5)
    ask(lambda x: network(x.flatten(0, -2)).view(x.shape[:-1]), q)
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in network.parameters())
    assert network.training


def test_a_graph_that_holds_a_buffer_survives() -> None:
    """q was computed with running statistics that advise restores."""
    encoder = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).eval()
    q = Independent(Bernoulli(logits=encoder(torch.ones(4, 2))), 1)
    ASK["compare"](lambda x: encoder[1](x.flatten(0, -2)).view(x.shape).sum(-1), q)
    catlog.RLOO(2)(lambda x: x.sum(-1), q).sum().backward()


def test_modules_are_found_wherever_a_function_refers_to_them() -> None:
    network = nn.Linear(3, 1)

    class Model:
        def __init__(self) -> None:
            self.parts = {"decoder": network}

        def reward(self, x: Tensor) -> Tensor:
            return self.parts["decoder"](x).squeeze(-1)

        def __call__(self, x: Tensor) -> Tensor:
            return NETWORK(x).squeeze(-1)

    def nested(x: Tensor) -> Tensor:
        def inner(points: Tensor) -> Tensor:
            return NETWORK(points).squeeze(-1)

        return inner(x)

    assert modules_of(network) == [network]
    assert modules_of(lambda x: network(x)) == [network]
    assert modules_of(partial(lambda model, x: model(x), network)) == [network]
    assert network in modules_of(Model().reward)
    assert set(modules_of(Model())) == {network, NETWORK}
    assert modules_of(nested) == [NETWORK]
    assert modules_of(lambda x, model=network: model(x)) == [network]
    assert modules_of(torch.compile(lambda x: network(x), backend="eager")) == [network]
    loop = SimpleNamespace(network=network)
    loop.itself = loop
    assert modules_of(loop) == [network]
    assert modules_of(torch.sin, None, 3) == []


@pytest.mark.parametrize("ask", ASK.values(), ids=ASK)
def test_gradients_are_measured_inside_no_grad(ask: Ask) -> None:
    """Without them every estimate would be zero, and the variance, too."""
    with torch.no_grad():
        result = ask(lambda x: x.sum(-1).sin(), bits(4, 5))
        assert not torch.is_grad_enabled()
    if isinstance(result, catlog.Advice):
        assert "saw no gradient" not in str(result)
        assert result.trials[0].variance > 0
    else:
        assert isinstance(result, catlog.Comparison)
        assert result.rows[0].variance > 0
    with torch.inference_mode(), pytest.raises(RuntimeError, match=r"inference_mode forbids"):
        ask(lambda x: x.sum(-1).sin(), bits(4, 5))


@pytest.mark.parametrize("ask", ASK.values(), ids=ASK)
def test_an_empty_batch_is_named(ask: Ask) -> None:
    with pytest.raises(ValueError, match=r"its batch \(0,\) is empty"):
        ask(lambda x: x.sum(-1), bits(0, 3))


@pytest.mark.parametrize("ask", ASK.values(), ids=ASK)
def test_what_is_wrong_with_f_is_said_once(ask: Ask) -> None:
    q = bits(4, 5)
    with pytest.raises(TypeError, match=r"^f must return a tensor of shape .* it returned list"):
        ask(lambda x: [1.0], q)
    with pytest.raises(TypeError, match=r"^f must return floats or bools"):
        ask(lambda x: x.sum(-1).long(), q)
    with pytest.raises(ValueError, match=r"^f must return one value per point.*Independent\(q, 1"):
        ask(lambda x: x.sum(-1), q.base_dist)


def test_reasons_begin_with_what_went_wrong() -> None:
    """Not with candidates that were never tried."""
    message = r"^advise: no candidate could be used\. RLOO\(2\), RLOO\(4\).* \(its gradient is NaN"
    with pytest.raises(ValueError, match=message):
        ASK["advise"](lambda x: torch.full(x.shape[:-1], torch.nan), bits(4, 5))


def test_more_points_than_python_prints() -> None:
    """2**20000 has 6021 digits; Python refuses to write more than 4300."""
    q = bits(20000)
    with pytest.raises(ValueError, match=r"Exact: q has about 10\^6020 points, more than `limit`"):
        catlog.Exact()(lambda x: x.sum(-1), q)
    result = ASK["compare"](lambda x: x.mean(-1), q, estimators=[catlog.RLOO(2), catlog.Exact()])
    assert "q has about 10^6020 points" in result.skipped["Exact()"]
    with pytest.raises(NotImplementedError, match=r"has about 10\^6020 points"):
        catlog.distributions.MarkovChain(
            torch.zeros(2), torch.zeros(2, 2), length=20000
        ).enumerate_support()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_noise_is_not_taken_for_rounding(dtype: torch.dtype) -> None:
    """A tenth of the mean is noise in every type; one unit of precision is rounding."""
    noisy, rounded = Moments(), Moments()
    noisy.add(torch.tensor([[1.0], [1.125]], dtype=dtype))
    assert noisy.variance == pytest.approx(0.125**2 / 2)
    rounded.add(torch.tensor([[1.0], [1.0 + torch.finfo(dtype).eps]], dtype=dtype))
    assert rounded.variance == 0


@pytest.mark.parametrize("ask", ASK.values(), ids=ASK)
def test_wrong_arguments_are_named(ask: Ask) -> None:
    q, f = bits(4, 3), lambda x: x.sum(-1)
    with pytest.raises(TypeError, match=r"q must be a distribution, or .* Tensor was given"):
        ask(f, torch.zeros(4, 3))
    with pytest.raises(TypeError, match=r"^f must be a function of points, but Independent"):
        ask(q, f)
    with pytest.raises(TypeError, match="candidates must be names or estimators"):
        catlog.advise(f, q, candidates=[catlog.RLOO])  # type: ignore[list-item]
