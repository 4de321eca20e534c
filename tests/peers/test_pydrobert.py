"""pydrobert-pytorch 0.3.0: REINFORCE, RELAX and REBAR on the same draws and noise.

One-hot: for bits the peer uses one logistic noise, and ours two Gumbels.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Distribution, Independent, OneHotCategorical

import catlog
from catlog.testing import CASES, FUNCTIONS

peer = pytest.importorskip(
    "pydrobert.torch.estimators", reason="pydrobert-pytorch is not installed: run `make test-peers`"
)

PARAMETER = torch.ones(6, dtype=torch.float64)
DIST = {"bits": "bern", "one-hot": "onehot"}


def law(kind: str, logits: Tensor) -> Distribution:
    return Independent(
        Bernoulli(logits=logits) if kind == "bits" else OneHotCategorical(logits=logits), 1
    )


def draws(kind: str, rows: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    x = law(kind, CASES[kind].theta).sample((rows,))
    return x, lambda x: FUNCTIONS["network"](CASES[kind].features(x), PARAMETER)


def noisy(monkeypatch: pytest.MonkeyPatch, uniforms: Tensor) -> None:
    """Make the peer use these uniforms."""
    monkeypatch.setattr(torch, "rand_like", lambda like: uniforms.expand_as(like).clone())


@pytest.mark.parametrize("kind", DIST)
def test_reinforce(kind: str) -> None:
    torch.manual_seed(0)
    x, f = draws(kind, 5)
    logits = CASES[kind].theta.clone().requires_grad_()
    catlog.Reinforce(samples=5)(f, law(kind, logits), x=x).backward()
    rows = CASES[kind].theta.expand(5, *logits.shape).clone().requires_grad_()
    theirs = peer.reinforce(f(x).unsqueeze(-1), x, rows, DIST[kind]).mean(0)
    torch.testing.assert_close(logits.grad, theirs, rtol=0, atol=1e-12)


class Network(nn.Module):
    """A critic of relaxed points [n, 2, 3], with one number for the whole event."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)).double()

    def forward(self, points: Tensor) -> Tensor:
        return self.layers(points.flatten(-2))


def with_one_noise(
    monkeypatch: pytest.MonkeyPatch, x: Tensor, control: Callable[[Tensor], Tensor], fx: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the uniforms, and the peer's gradient per draw with z equal to z~.

    The peer draws z and, given x, a second z~. Ours uses one noise for both.
    """
    rows = CASES["one-hot"].theta.expand_as(x)
    noise = torch.rand(x.shape, dtype=x.dtype)
    noisy(monkeypatch, noise)
    z = peer._to_z_tilde(rows, x, "onehot")
    assert torch.equal(peer.to_b(z, "onehot"), x)
    return noise, peer.relax(fx.unsqueeze(-1), x, rows, z, control, "onehot")


@pytest.mark.parametrize("rows", [1, 4])
def test_relax(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One-hot: the gradient, and the gradient of its squared norm in the network."""
    torch.manual_seed(0)
    network, (x, f) = Network(), draws("one-hot", rows)
    noise, theirs = with_one_noise(monkeypatch, x, lambda z: network((z / 0.7).softmax(-1)), f(x))
    learned = torch.autograd.grad(
        theirs.mean(0).square().sum(), list(network.parameters()), allow_unused=True
    )
    logits = CASES["one-hot"].theta.clone().requires_grad_()
    E = catlog.estimators.RELAX(samples=rows, network=network, temperature=0.7)
    E(f, law("one-hot", logits), x=x, noise=noise).backward()
    torch.testing.assert_close(logits.grad, theirs.mean(0).detach(), rtol=0, atol=1e-12)
    for parameter, gradient in zip(network.parameters(), learned, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=1e-12)
    assert network.layers[0].weight.grad.abs().max() > 1e-3


@pytest.mark.parametrize("rows", [1, 4])
def test_rebar(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One-hot: the gradient, and those of the coefficient and of the log of the temperature."""
    torch.manual_seed(0)
    x, f = draws("one-hot", rows)
    control = peer.REBARControlVariate(
        lambda z: f(z).unsqueeze(-1), "onehot", start_temp=0.4, start_eta=0.8
    ).double()
    control.reset_parameters()  # in float64
    noise, theirs = with_one_noise(monkeypatch, x, control, f(x))
    eta, log_temp = torch.autograd.grad(
        theirs.mean(0).square().sum(), [control.eta, control.log_temp]
    )
    logits = CASES["one-hot"].theta.clone().requires_grad_()
    E = catlog.REBAR(samples=rows, eta=0.8, temperature=0.4).double()
    E.eta.data.fill_(0.8)
    E.log_temperature.data.copy_(control.log_temp.data[0])
    E(f, law("one-hot", logits), x=x, noise=noise).backward()
    torch.testing.assert_close(logits.grad, theirs.mean(0).detach(), rtol=0, atol=1e-12)
    torch.testing.assert_close(E.eta.grad, eta[0], rtol=1e-10, atol=0)
    torch.testing.assert_close(E.log_temperature.grad, log_temp[0], rtol=1e-10, atol=0)
