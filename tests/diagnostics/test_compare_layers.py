"""`catlog.compare_layers`: estimators inside networks with several layers that draw."""

import time
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Independent, OneHotCategorical

import catlog
from catlog import GumbelSoftmax, ReinMax, compare_layers
from catlog.diagnostics.layers import Layers, Sampler
from catlog.testing import z_limit

quick: Any = partial(compare_layers, progress=False)


class Network(nn.Module):
    """Two layers that draw: two variables of three categories, then two bits."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.entry = nn.Linear(2, 6, dtype=torch.float64)
        self.middle = nn.Linear(6, 2, dtype=torch.float64)
        self.exit = nn.Linear(2, 1, dtype=torch.float64)

    def forward(self, images: Tensor, sampler: Sampler) -> Tensor:
        codes = sampler(self.entry(images).unflatten(-1, (3, 2)), dim=-2)
        bits = sampler(3 * self.middle(codes.flatten(-2)), bits=True)
        return self.exit(bits).squeeze(-1).tanh().exp()


NETWORK = Network()
IMAGES = torch.randn(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def loss(sampler: Sampler) -> Tensor:
    return NETWORK(IMAGES, sampler)


def brute_force() -> Tensor:
    """Return the gradient of the expected loss, written out for this network."""
    total = torch.zeros((), dtype=torch.float64)
    log_codes = NETWORK.entry(IMAGES).unflatten(-1, (3, 2)).log_softmax(-2)
    for first, second in product(range(3), repeat=2):
        codes = torch.zeros(3, 2, dtype=torch.float64)
        codes[first, 0] = codes[second, 1] = 1.0
        p_codes = (log_codes[:, first, 0] + log_codes[:, second, 1]).exp()
        p_one = (3 * NETWORK.middle(codes.flatten())).sigmoid()
        for bits in product((0.0, 1.0), repeat=2):
            bit = torch.tensor(bits, dtype=torch.float64)
            p_bits = torch.where(bit == 1, p_one, 1 - p_one).prod()
            total = total + (p_codes * p_bits * NETWORK.exit(bit).tanh().exp()).sum()
    gradients = torch.autograd.grad(total, list(NETWORK.parameters()))
    return torch.cat([gradient.flatten() for gradient in gradients])


def test_reference_by_rloo_is_unbiased() -> None:
    """A z-test with one false alarm in a million; it detects a gradient that is 20 % too long."""
    network = Layers(loss, list(NETWORK.parameters()), time.perf_counter)
    mean, variances = network.by_rloo(4000, 0)
    exact, limit = brute_force(), z_limit(len(mean))
    error = variances.sqrt().clamp(min=1e-12)
    assert ((mean - exact).abs() / error).max() < limit
    assert ((1.2 * mean - exact).abs() / error).max() > limit


def test_of_one_layer_is_compare() -> None:
    """With the same reference; the biases agree within their noise."""
    torch.manual_seed(0)
    encoder, weight = nn.Linear(2, 6).double(), torch.randn(6, dtype=torch.float64)

    def f(codes: Tensor) -> Tensor:
        return (codes.flatten(-2) @ weight).tanh().exp()

    def logits() -> Tensor:
        return encoder(IMAGES).unflatten(-1, (2, 3))

    names, options = ["StraightThrough(1)", "ReinMax(1)"], {"repeats": 1000, "rounds": 1}
    layers = quick(lambda sampler: f(sampler(logits())), names, **options)
    q = Independent(OneHotCategorical(logits=logits()), 1)
    whole = catlog.compare(f, q, [*names, "Exact"], progress=False, **options)
    assert (layers.reference, whole.reference) == ("rloo", "exact")
    for ours, wanted in ((layers[name], whole[name]) for name in names):
        noise = ours.bias_error + wanted.bias_error
        assert ours.bias == pytest.approx(wanted.bias, abs=5 * noise)
        assert ours.variance == pytest.approx(wanted.variance, rel=0.3)
    assert layers[names[0]].bias > 5 * layers[names[0]].bias_error


def test_rows_and_what_is_left_out() -> None:
    seconds = iter(range(1000))
    hard = {f"tau {tau}": GumbelSoftmax(temperature=tau, hard=True) for tau in (0.3, 1.0)}
    result = quick(
        loss,
        {**hard, "ReinMax": ReinMax(), "RLOO": catlog.RLOO(2), "two": ReinMax(2)},
        **{"repeats": 20, "rounds": 2, "reference_runs": 40},
        clock=lambda: float(next(seconds)),
    )
    assert {row.name for row in result.rows} == {*hard, "ReinMax"}
    errors = [row.bias**2 + row.variance for row in result.rows]
    assert errors == sorted(errors)
    assert all(row.seconds == 1 and row.repeats == 20 for row in result.rows)
    assert "call E(f, q)" in result.skipped["RLOO"]
    assert "samples=1" in result.skipped["two"]
    assert "Bias against RLOO on all layers" in str(result)


def test_nothing_else_is_drawn() -> None:
    """The global generator is not used, and the same seed gives the same numbers."""
    state = torch.get_rng_state()
    options = {"repeats": 3, "rounds": 1, "reference_runs": 40}
    first, again = (quick(loss, [ReinMax()], **options).rows[0] for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert (first.bias, first.variance) == (again.bias, again.variance)
