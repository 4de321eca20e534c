"""Estimators of reinmax 0.1.0 (the authors' package), pydrobert-pytorch 0.3.0 and storchastic 0.3.7
are ours on the same draws and noise.

Rows of the parameters are separate expectations, so that one call makes many estimates.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Distribution, OneHotCategorical

import catlog
from catlog.testing import CASES, FUNCTIONS
from catlog.testing.cases import normals

DIST = {"bits": "bern", "one-hot": "onehot"}  # of pydrobert
KINDS: dict[str, type[Distribution]] = {
    "bits": Bernoulli, "integers": Categorical, "one-hot": OneHotCategorical,
}  # fmt: skip


class Call(NamedTuple):
    """Our call, and the gradients of the other library.

    Attributes:
        E: our estimator.
        kind: the case, whose distribution has the parameters ``theta``.
        theta: ``[*rows, *parameters]``.
        f: the function of points, without its parameter.
        given: draws and noise.
        gradient: of the sum of values in theta, by the other library.
        value: that sum; None: not compared.
        learned: parameters with their gradients.
    """

    E: catlog.Estimator
    kind: str
    theta: Tensor
    f: Callable[[Tensor], Tensor]
    given: dict[str, Tensor]
    gradient: Tensor
    value: Tensor | None = None
    learned: Iterable[tuple[Tensor, Tensor]] = ()


def ones() -> Tensor:
    """Return a parameter of f."""
    return torch.ones(6, dtype=torch.float64, requires_grad=True)


def function(kind: str, name: str, c: Tensor) -> Callable[[Tensor], Tensor]:
    features = CASES[kind].features
    return lambda x: FUNCTIONS[name](features(x if kind == "integers" else x.double()), c)


# reinmax


def reinmax(name: str, temperature: float, patch: pytest.MonkeyPatch) -> Call:
    theta, c = CASES["one-hot"].theta.clone().requires_grad_(), ones()
    x, _ = pytest.importorskip("reinmax").reinmax(theta.expand(5, 2, 3).contiguous(), temperature)
    f = function("one-hot", name, c)
    value = f(x).mean()
    gradient, in_c = torch.autograd.grad(value, [theta, c])
    E = catlog.ReinMax(samples=5, temperature=temperature)
    return Call(E, "one-hot", theta, f, {"x": x.detach()}, gradient, value, [(c, in_c)])


# pydrobert: one-hot, because for bits it uses one logistic noise, and ours two Gumbels.


def pydrobert() -> Any:
    return pytest.importorskip("pydrobert.torch.estimators")


def reinforce(kind: str, patch: pytest.MonkeyPatch) -> Call:
    theta, f = CASES[kind].theta, function(kind, "network", ones())
    x = CASES[kind].distribution(theta).sample((5,))
    rows = theta.expand(5, *theta.shape).clone().requires_grad_()
    gradient = pydrobert().reinforce(f(x).unsqueeze(-1), x, rows, DIST[kind]).mean(0)
    return Call(catlog.Reinforce(5), kind, theta, f, {"x": x}, gradient)


def control_variate(
    rows: int, make: Callable[..., Any], f: Callable[[Tensor], Tensor], patch: pytest.MonkeyPatch
) -> tuple[dict[str, Tensor], Tensor]:
    """Return draws and noise, and the peer's gradient with z equal to z~.

    The peer draws z and, given x, a second z~. Ours uses one noise for both.
    """
    theta, peer = CASES["one-hot"].theta, pydrobert()
    x = CASES["one-hot"].distribution(theta).sample((rows,))
    noise = torch.rand(x.shape, dtype=x.dtype)
    patch.setattr(torch, "rand_like", lambda like: noise.expand_as(like).clone())
    z = peer._to_z_tilde(theta.expand_as(x), x, "onehot")
    assert torch.equal(peer.to_b(z, "onehot"), x)
    theirs = peer.relax(f(x).unsqueeze(-1), x, theta.expand_as(x), z, make, "onehot").mean(0)
    return {"x": x, "noise": noise}, theirs


class Network(nn.Module):
    """A critic of relaxed points [n, 2, 3], with one number for the whole event."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)).double()

    def forward(self, points: Tensor) -> Tensor:
        return self.layers(points.flatten(-2))


def relax(rows: int, patch: pytest.MonkeyPatch) -> Call:
    """The gradient of its squared norm in the network, too."""
    network, f = Network(), function("one-hot", "network", ones())
    make = lambda z: network((z / 0.7).softmax(-1))  # noqa: E731
    given, theirs = control_variate(rows, make, f, patch)
    parameters = [*network.parameters()]
    learned = torch.autograd.grad(theirs.square().sum(), parameters, allow_unused=True)
    E = catlog.estimators.RELAX(samples=rows, network=network, temperature=0.7)
    pairs = zip(parameters, learned, strict=True)
    return Call(E, "one-hot", CASES["one-hot"].theta, f, given, theirs.detach(), None, pairs)


def rebar(rows: int, patch: pytest.MonkeyPatch) -> Call:
    """The gradients of the coefficient and of the log of the temperature, too."""
    f = function("one-hot", "network", ones())
    control = pydrobert().REBARControlVariate(
        lambda z: f(z).unsqueeze(-1), "onehot", start_temp=0.4, start_eta=0.8
    )
    control.double().reset_parameters()  # in float64
    given, theirs = control_variate(rows, control, f, patch)
    eta, log_temp = torch.autograd.grad(theirs.square().sum(), [control.eta, control.log_temp])
    E = catlog.REBAR(samples=rows, eta=0.8, temperature=0.4).double()
    E.eta.data.fill_(0.8)
    E.log_temperature.data.copy_(control.log_temp.data[0])
    learned = [(E.eta, eta[0]), (E.log_temperature, log_temp[0])]
    return Call(E, "one-hot", CASES["one-hot"].theta, f, given, theirs.detach(), None, learned)


# storchastic, which holds 1 / samples in float32: exact for 2 and 4 samples


def storchastic(
    kind: str,
    method: str,
    E: catlog.Estimator,
    name: str,
    patch: pytest.MonkeyPatch,
    **options: Any,
) -> Call:
    """The same draws, and the gradient in the parameter of f."""
    storch = pytest.importorskip("storch")
    storch.reset()
    rows, c = CASES[kind].theta, ones()
    rows = rows + 0.5 * normals(4, *rows.shape, seed=9)  # its plate: separate expectations
    theta, f = rows.clone().requires_grad_(), function(kind, name, c)
    q = KINDS[kind](logits=storch.denote_independent(theta, 0, "rows"))
    x = getattr(storch.method, method)("x", **options)(q)
    storch.add_cost(storch.deterministic(f)(x), "f")
    value = storch.backward(update_estimator_params=False).detach() * len(rows)
    given = {} if method == "Expect" else {"x": x._tensor.detach()}
    learned = [(c, c.grad * len(rows))]
    return Call(E, kind, rows, f, given, theta.grad * len(rows), value, learned)


def calls() -> Iterator[tuple[str, Callable[[pytest.MonkeyPatch], Call]]]:
    for name in FUNCTIONS:
        for temperature in (1.0, 1.3):
            yield f"ReinMax({temperature}), {name}", partial(reinmax, name, temperature)
        for kind in KINDS:
            yield (
                f"Exact, {kind}, {name}",
                partial(storchastic, kind, "Expect", catlog.Exact(), name),
            )
    for kind in KINDS:
        for E, options in (
            (catlog.Reinforce(4), {"n_samples": 4}),
            (catlog.RLOO(2), {"n_samples": 2, "baseline_factory": "batch_average"}),
            (catlog.RLOO(4), {"n_samples": 4, "baseline_factory": "batch_average"}),
        ):
            yield (
                f"{E!r}, {kind}",
                partial(storchastic, kind, "ScoreFunction", E, "network", **options),
            )
    for kind in DIST:
        yield f"Reinforce of pydrobert, {kind}", partial(reinforce, kind)
    for rows in (1, 4):
        yield f"RELAX({rows})", partial(relax, rows)
        yield f"REBAR({rows})", partial(rebar, rows)


CALLS = dict(calls())


@pytest.mark.parametrize("name", CALLS)
def test_values_and_gradients_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    call = CALLS[name](monkeypatch)
    theta = call.theta.detach().clone().requires_grad_()
    value = call.E(call.f, CASES[call.kind].distribution(theta), **call.given).sum()
    learned = list(call.learned)
    for parameter, _ in learned:
        parameter.grad = None
    value.backward()
    torch.testing.assert_close(theta.grad, call.gradient, rtol=0, atol=1e-12)
    assert theta.grad.abs().max() > 1e-3
    if call.value is not None:
        torch.testing.assert_close(value, call.value, rtol=0, atol=1e-12)
    for parameter, gradient in learned:
        torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=1e-12)
        assert gradient.abs().max() > 1e-4
