"""ReinMax is that of reinmax 0.1.0, the authors' package, and RELAX and REBAR with all that they
learn are those of pydrobert-pytorch 0.3.0, on the same draws and noise.

Estimators that learn nothing and are unbiased are judged by enumeration.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import catlog
from catlog.testing import CASES, FUNCTIONS, PARAMETER

CASE = CASES["one-hot"]  # for bits, pydrobert uses one logistic noise, and ours two Gumbels
F = CASE.function("network")


@pytest.mark.parametrize("temperature", [1.0, 1.3])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_reinmax_is_that_of_its_authors(name: str, temperature: float) -> None:
    package = pytest.importorskip("reinmax")
    theta, c = CASE.theta.clone().requires_grad_(), PARAMETER.clone().requires_grad_()

    def f(x: Tensor) -> Tensor:
        return FUNCTIONS[name](CASE.features(x.double()), c)

    torch.manual_seed(0)
    x, _ = package.reinmax(theta.expand(5, 2, 3).contiguous(), temperature)
    theirs = f(x).mean()
    ours = catlog.ReinMax(5, temperature=temperature)(f, CASE.distribution(theta), x=x.detach())
    results = [[v.detach(), *torch.autograd.grad(v, [theta, c])] for v in (ours, theirs)]
    assert_close(*results, rtol=0, atol=1e-12)
    assert all(number.abs().max() > 1e-3 for number in results[0])


class Network(nn.Module):
    """A critic of relaxed points [n, 2, 3], with one number for the whole event."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)).double()

    def forward(self, points: Tensor) -> Tensor:
        return self.layers(points.flatten(-2))


def relax(rows: int, peer: Any) -> tuple[Any, Callable[..., Tensor], Sequence[tuple[Any, Any]]]:
    """Return our estimator, the peer's control variate, and their parameters."""
    network = Network()
    E = catlog.estimators.RELAX(samples=rows, network=network, temperature=0.7)
    pairs = [(parameter, parameter) for parameter in network.parameters()]
    return E, lambda z: network((z / 0.7).softmax(-1)), pairs


def rebar(rows: int, peer: Any) -> tuple[Any, Callable[..., Tensor], Sequence[tuple[Any, Any]]]:
    """As ``relax``; what is learned are the coefficient and the log of the temperature."""
    control = peer.REBARControlVariate(
        lambda z: F(z).unsqueeze(-1), "onehot", start_temp=0.4, start_eta=0.8
    )
    control.double().reset_parameters()  # in float64
    E = catlog.REBAR(samples=rows, eta=0.8, temperature=0.4).double()
    E.eta.data.fill_(0.8)
    E.log_temperature.data.copy_(control.log_temp.data[0])
    return E, control, [(E.eta, control.eta), (E.log_temperature, control.log_temp)]


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("make", [relax, rebar])
def test_control_variates_are_those_of_pydrobert(
    make: Callable[..., Any], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With z equal to z~: the peer draws z and, given x, a second z~; ours uses one noise."""
    peer: Any = pytest.importorskip("pydrobert.torch.estimators")
    torch.manual_seed(0)
    E, control, pairs = make(rows, peer)
    x = CASE.distribution(CASE.theta).sample((rows,))
    noise = torch.rand(x.shape, dtype=x.dtype)
    monkeypatch.setattr(torch, "rand_like", lambda like: noise.expand_as(like).clone())
    logits = CASE.theta.expand_as(x)
    z = peer._to_z_tilde(logits, x, "onehot")
    assert torch.equal(peer.to_b(z, "onehot"), x)
    theirs = peer.relax(F(x).unsqueeze(-1), x, logits, z, control, "onehot").mean(0)
    learned = torch.autograd.grad(
        theirs.square().sum(), [other for _, other in pairs], allow_unused=True
    )
    theta = CASE.theta.clone().requires_grad_()
    E(F, CASE.distribution(theta), x=x, noise=noise).backward()
    assert_close(theta.grad, theirs.detach(), rtol=0, atol=1e-12)
    for (parameter, _), gradient in zip(pairs, learned, strict=True):
        assert_close(parameter.grad, gradient.view_as(parameter), rtol=0, atol=1e-12)
        assert gradient.abs().max() > 1e-4
