"""`catlog.compare_layers`: estimators inside networks with several layers that draw."""

import time
from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Independent, OneHotCategorical

import catlog
from catlog import Exact, GumbelSoftmax, ReinMax, StraightThrough, compare_layers
from catlog.diagnostics.layers import Layers, Sampler
from catlog.testing import z_limit


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
    encoder = nn.Linear(2, 6, dtype=torch.float64)
    weight = torch.randn(6, dtype=torch.float64)

    def f(codes: Tensor) -> Tensor:
        return (codes.flatten(-2) @ weight).tanh().exp()

    estimators = [StraightThrough(), ReinMax()]
    layers = compare_layers(
        lambda sampler: f(sampler(encoder(IMAGES).unflatten(-1, (2, 3)))),
        estimators,
        list(encoder.parameters()),
        repeats=1000,
        rounds=1,
        progress=False,
    )
    q = Independent(OneHotCategorical(logits=encoder(IMAGES).unflatten(-1, (2, 3))), 1)
    whole = catlog.compare(f, q, [*estimators, Exact()], repeats=1000, rounds=1, progress=False)
    assert (layers.reference, whole.reference) == ("rloo", "exact")
    for name in ("StraightThrough(1)", "ReinMax(1)"):
        ours, wanted = layers[name], whole[name]
        assert ours.bias == pytest.approx(
            wanted.bias, abs=5 * (ours.bias_error + wanted.bias_error)
        )
        assert ours.variance == pytest.approx(wanted.variance, rel=0.3)
    assert layers["StraightThrough(1)"].bias > 5 * layers["StraightThrough(1)"].bias_error


def test_rows_and_what_is_left_out() -> None:
    seconds = iter(range(1000))
    temperatures = {f"tau {tau}": GumbelSoftmax(temperature=tau, hard=True) for tau in (0.3, 1.0)}
    result = compare_layers(
        loss,
        {**temperatures, "ReinMax": ReinMax(), "RLOO": catlog.RLOO(2), "two": ReinMax(2)},
        repeats=20,
        rounds=2,
        reference_runs=40,
        progress=False,
        clock=lambda: float(next(seconds)),
    )
    assert {row.name for row in result.rows} == {"tau 0.3", "tau 1.0", "ReinMax"}
    errors = [row.bias**2 + row.variance for row in result.rows]
    assert errors == sorted(errors)
    assert all(row.seconds == 1 and row.repeats == 20 for row in result.rows)
    assert "call E(f, q)" in result.skipped["RLOO"]
    assert "samples=1" in result.skipped["two"]
    assert "Bias against RLOO on all layers" in str(result)


def test_nothing_else_is_drawn() -> None:
    """The global generator is not used, and the same seed gives the same numbers."""
    state = torch.get_rng_state()
    first, again = (
        compare_layers(loss, [ReinMax()], repeats=3, rounds=1, reference_runs=40, progress=False)
        for _ in range(2)
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert first.rows[0].bias == again.rows[0].bias
    assert first.rows[0].variance == again.rows[0].variance


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda _: IMAGES.sum(-1), ValueError, "must call its argument, the sampler"),
        (lambda sampler: 3.0, TypeError, "loss must return a tensor of floats, one per row"),
        (
            lambda sampler: loss(sampler).mean().expand(3),
            ValueError,
            r"it returned \(3,\), and a layer draws variables \(4, 2\)\. Let the logits",
        ),
        (
            lambda sampler: sampler(IMAGES).sum(-1),
            ValueError,
            "parameters must be tensors with requires",
        ),
    ],
)
def test_wrong_losses_are_named(
    function: Callable[[Sampler], Tensor], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        compare_layers(function, [ReinMax()], progress=False)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="compare_layers: `repeats` must be at least 2, but 1"):
        compare_layers(loss, [ReinMax()], repeats=1)
    with pytest.raises(ValueError, match=r"no estimator could be used.*call E\(f, q\)"):
        compare_layers(loss, [catlog.RLOO(2)], progress=False)
