"""Published protocols: stacked models are single models, and bounds are bounds."""

from collections.abc import Callable
from copy import deepcopy
from itertools import product
from math import log
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Distribution, Independent, OneHotCategorical
from torch.nn.functional import leaky_relu, linear

from catlog import REBAR, RLOO, SlopeCateR
from catlog.estimators import NVIL, RELAX, RODEO, DoubleCV
from catlog_experiments import DVAE
from catlog_experiments.protocol import ProtocolTask, latent
from catlog_experiments.stacked import stack_estimator

MODELS, BATCH, D = 3, 4, 5


def bits(logits: Tensor) -> Distribution:
    return Independent(Bernoulli(logits=logits), 1)


def one_hots(logits: Tensor) -> Distribution:
    return Independent(OneHotCategorical(logits=logits), 1)


def task_of(**settings: Any) -> ProtocolTask:
    tiny = {"protocol": "bernoulli", "models": 2, "variables": 4, "batch": 50, "epochs": 1}
    task = DVAE(**(tiny | {"test_samples": 5, "device": "cpu"} | settings)).task()
    assert isinstance(task, ProtocolTask)
    return task


def test_models_of_a_stack_start_and_read_as_their_seeds_say() -> None:
    stack = task_of(models=3, seed=4)
    for s in range(3):
        single = task_of(models=1, seed=4 + s)
        for a, b in zip(stack.model.parameters(), single.model.parameters(), strict=True):
            assert torch.equal(a[s], b[0])
        assert torch.equal(stack.index(3)[s], single.index(3)[0])
    assert not torch.equal(stack.index(0), stack.index(stack.per_epoch))  # a new order


def function(model: int | slice) -> Any:
    """Return a smooth function with other parameters for each model."""
    generator = torch.Generator().manual_seed(5)
    weights = torch.randn(MODELS, D, D, dtype=torch.float64, generator=generator)[model]
    return lambda x: torch.einsum("...bi,...ij,...bj->...b", x, weights, x).sin()


def gradient(
    E: Any, f: Any, q: Callable[[Tensor], Distribution], logits: Tensor, **randomness: Tensor
) -> Tensor:
    leaf = logits.clone().requires_grad_()
    E(f, q(leaf), **randomness).sum().backward()
    assert leaf.grad is not None
    return leaf.grad


def state_of(E: nn.Module) -> dict[str, Tensor]:
    """Return what an estimator has learned, and the gradients of its parameters."""
    gradients = {f"{name}.grad": p.grad for name, p in E.named_parameters() if p.grad is not None}
    return E.state_dict() | gradients


def of_one(stacked: Tensor, single: Tensor, model: int) -> Tensor:
    """Return the part of one model, along the dimension that a stack of one lacks."""
    sizes = zip(stacked.shape, single.shape, strict=True)
    return stacked.narrow([a != b for a, b in sizes].index(True), model, 1)


LEARNERS = [DoubleCV(3), RODEO(3), REBAR(3), RELAX(3)]
SLOPES = [SlopeCateR(2, **s) for s in ({}, {"slope_entries": 0}, {"slope_entries": 3})]
SLOPES += [SlopeCateR(2, corrections=4)]


@pytest.mark.parametrize(
    ("E", "law"), [*product(LEARNERS, [bits]), *product(SLOPES, [bits, one_hots])]
)
def test_a_stack_is_many_single_models(E: Any, law: Callable[[Tensor], Distribution]) -> None:
    """The same estimates, gradients of parameters and averages, over several calls."""
    torch.manual_seed(1)
    stack, *singles = (
        stack_estimator(deepcopy(E), count, D).double() for count in (MODELS, *[1] * MODELS)
    )
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter.copy_(torch.rand_like(parameter) + 0.2)
        for s, single in enumerate(singles):
            for name, parameter in single.named_parameters():
                parameter.copy_(of_one(stack.get_parameter(name), parameter, s))

    def f(model: int | slice) -> Any:
        of_numbers = function(model)
        numbers = torch.tensor([0.0, 1.0, -2.0], dtype=torch.float64)  # of one-hot points
        return of_numbers if law is bits else lambda x: of_numbers(x @ numbers)

    for _ in range(3):
        logits = torch.randn(MODELS, BATCH, D, *[3] * (law is one_hots), dtype=torch.float64)
        shape = {REBAR: (3, MODELS, BATCH, D, 2), RELAX: (3, MODELS, BATCH, D, 2)}
        shape |= {SlopeCateR: (1, MODELS, BATCH)}
        noise = torch.rand(shape.get(type(E), ()), dtype=torch.float64)
        draws = {"x": law(logits).sample((E.samples,))}
        draws |= {"noise": noise} if noise.dim() else {}
        together = gradient(stack, f(slice(None)), law, logits, **draws)
        for s, single in enumerate(singles):
            part = {name: value[:, s : s + 1] for name, value in draws.items()}
            alone = gradient(single, f(slice(s, s + 1)), law, logits[s : s + 1], **part)
            assert torch.allclose(together[s], alone[0], rtol=1e-9, atol=1e-9)
            for name, value in state_of(single).items():
                assert torch.allclose(of_one(state_of(stack)[name], value, s), value, rtol=1e-8)


def test_states_are_not_shared_in_silence() -> None:
    with pytest.raises(ValueError, match="--models must be 1 with NVIL"):
        stack_estimator(NVIL(2), 2, D)
    assert stack_estimator(RLOO(3), 2, D) == RLOO(3)


def all_points(d: int) -> Tensor:
    return torch.tensor(list(product([0.0, 1.0], repeat=d)))


@pytest.mark.parametrize("protocol", ["bernoulli", "gaussian"])
def test_bound_is_that_of_the_model(protocol: str) -> None:
    """The sum over all b of q(b) p(x, b) / q(b) is p(x), which is computed from the decoder."""
    task = task_of(protocol=protocol)
    if protocol == "gaussian":
        assert task.model.spread is not None
        task.model.spread.data.normal_()
    x = task.observed(task.train[task.index(0)])
    logits = task.model.encoder(x)
    points = all_points(4)
    b = points[:, None, None].expand(16, 2, 50, 4)
    log_q = latent(task.config, logits).log_prob(b)
    evidence = (log_q - task.negated_bound(x, logits)(b)).logsumexp(0)
    for s in range(2):
        weights, biases = task.model.decoder.weights, task.model.decoder.biases
        out = points
        for i in range(3):
            out = linear(out, weights[i][s].mT, biases[i][s, 0])
            out = leaky_relu(out, 0.3) if i < 2 else out
        if protocol == "bernoulli":
            pixels: Any = Bernoulli(logits=out[:, None])
        else:
            deviation = nn.functional.softplus(task.model.spread[s, 0]).clamp(min=1e-3).sqrt()
            pixels = torch.distributions.Normal(out[:, None], deviation)
        log_p = pixels.log_prob(x[s]).sum(-1).logsumexp(0) - 4 * log(2)
        assert torch.allclose(evidence[s], log_p, rtol=1e-4)


def test_more_draws_raise_the_bound() -> None:
    """The gaps are nats, because the decoder's output depends strongly on the bits."""
    task = task_of()
    for weight in task.model.decoder.weights:
        weight.data *= 3
    many, few, one = task.bounds(task.test[:200], 100, 3, 1)
    assert all(a + 1 < b < c - 1 for a, b, c in zip(many, few, one, strict=True))
    for parameter in task.model.parameters():
        parameter.data.zero_()  # pixels are coins, whatever the bits and their number of draws
    coins = torch.tensor(task.bounds(task.test[:200], 100, 3))
    assert torch.allclose(coins, torch.tensor(784 * log(2)))


def test_pixels_are_drawn_again_at_every_use() -> None:
    task = task_of()
    images = task.train[task.index(0)]
    x, y = task.observed(images), task.observed(images)
    assert set(x.unique().tolist()) == {0.0, 1.0}
    assert not torch.equal(x, y)
    assert torch.equal(x[images == 1], images[images == 1])
    grey = task_of(protocol="gaussian")
    assert torch.equal(grey.observed(grey.train), grey.train)
    assert grey.train.aminmax() == (-1, 1)


def test_every_model_has_the_gradient_of_a_single_one() -> None:
    """With an exact estimator, on grey pixels: nothing is random."""
    settings = {"protocol": "gaussian", "estimator": "Exact", "batch": 8}
    stack = task_of(models=2, **settings)
    stack.loss(stack.index(0)).mean().backward()
    for s in range(2):
        single = task_of(models=1, seed=s, **settings)
        single.loss(single.index(0)).mean().backward()
        for a, b in zip(stack.model.parameters(), single.model.parameters(), strict=True):
            assert a.grad is not None
            assert b.grad is not None
            assert torch.allclose(a.grad[s], b.grad[0], rtol=1e-3, atol=1e-5)


def test_learning_rates_are_those_of_the_protocols() -> None:
    mnist = {"paper": 1e-4, "bernoulli": 1e-3, "gaussian": 1e-4, "categorical": 5e-4}
    assert mnist == {name: DVAE(protocol=name, data="mnist").rate for name in mnist}
    fashion = {name: DVAE(protocol=name, data="fashion-mnist").rate for name in mnist}
    assert fashion == {**mnist, "bernoulli": 3e-4}
    assert DVAE(protocol="bernoulli", learning_rate=2e-3).rate == 2e-3


def test_bounds_are_those_of_every_model_and_their_means() -> None:
    metrics = task_of(test_samples=2).measure(0)
    assert metrics["train"] == pytest.approx((metrics["train.0"] + metrics["train.1"]) / 2)
    assert "test_few.1" in metrics
