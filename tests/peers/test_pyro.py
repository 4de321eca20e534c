"""Pyro 1.9.2: TraceEnum_ELBO is our Exact, Trace_ELBO on the same draws our Reinforce.

Where model and guide have the same distribution, the ELBO of a model with the factor f is E[f].
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Independent
from torch.nn.functional import one_hot

import catlog
from catlog.distributions import Node
from catlog.testing.cases import normals
from support.gradients import assert_same

pyro = pytest.importorskip("pyro", reason="pyro-ppl is not installed: run `make test-peers`")

# Value and gradient are sums of at most 27 terms in float64.
TOLERANCE = {"rtol": 0, "atol": 1e-12}

BATCH = 4
SIZES = {
    "bits": (2, 2, 2),
    "index": (3, 3),
    "mixed": (3, 2, 4),
    "chain": (3, 3, 3),
    "network": (2, 3, 2),
}


def parameters(kind: str) -> list[Tensor]:
    shapes = {
        "bits": [(BATCH, 3)],
        "index": [(BATCH, 2, 3)],
        "mixed": [(BATCH, 3, 4)],
        "chain": [(BATCH, 3), (BATCH, 3, 3)],
        "network": [(BATCH, 2), (BATCH, 2, 3), (BATCH, 2, 3, 2)],
    }
    return [normals(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes[kind])]


def ours(kind: str, theta: list[Tensor]) -> torch.distributions.Distribution:
    if kind == "bits":
        return Independent(Bernoulli(logits=theta[0]), 1)
    if kind == "index":
        return Independent(Categorical(logits=theta[0]), 1)
    if kind == "mixed":
        return catlog.distributions.Categoricals(theta[0], SIZES[kind])
    if kind == "chain":
        return catlog.distributions.MarkovChain(*theta, length=3)
    nodes = {"a": Node([], theta[0]), "b": Node(["a"], theta[1]), "c": Node(["a", "b"], theta[2])}
    return catlog.distributions.BayesianNetwork(nodes, batch_shape=(BATCH,))


def sites(kind: str, theta: list[Tensor]) -> Callable[[], list[Tensor]]:
    """Return the distribution as sample statements of Pyro, for use under a plate for the batch."""
    rows = torch.arange(BATCH)

    def variable(i: int, earlier: list[Tensor]) -> object:
        if kind == "bits":
            return pyro.distributions.Bernoulli(logits=theta[0][:, i])
        if kind in ("index", "mixed"):
            return pyro.distributions.Categorical(logits=theta[0][:, i, : SIZES[kind][i]])
        if kind == "chain":
            return pyro.distributions.Categorical(
                logits=theta[1][rows, earlier[-1]] if i else theta[0]
            )
        return pyro.distributions.Categorical(logits=theta[i][(rows, *earlier)])

    def program() -> list[Tensor]:
        x: list[Tensor] = []
        for i in range(len(SIZES[kind])):
            x.append(pyro.sample(f"x{i}", variable(i, x), infer={"enumerate": "parallel"}))
        return x

    return program


def function(kind: str) -> Callable[[Tensor], Tensor]:
    """Return a function that is not multilinear and differs between rows of the batch."""
    size = max(SIZES[kind])
    a, b = (normals(BATCH, len(SIZES[kind]) * size, seed=seed) for seed in (10, 11))

    def f(x: Tensor) -> Tensor:
        z = one_hot(x.long(), size).double().flatten(-2)
        return ((z * a).sum(-1) + (z * b).sum(-1).exp()).sin()

    return f


def elbo(
    kind: str, theta: list[Tensor], f: Callable[[Tensor], Tensor], prior: list[Tensor], loss: object
) -> Tensor:
    def joined(x: list[Tensor]) -> Tensor:
        return torch.stack(torch.broadcast_tensors(*x), -1)

    def model() -> None:
        with pyro.plate("batch", BATCH):
            x = sites(kind, prior)()
            pyro.factor("f", f(joined(x)))

    def guide() -> None:
        with pyro.plate("batch", BATCH):
            sites(kind, theta)()

    return -loss.differentiable_loss(model, guide)


def enumerated() -> object:
    return pyro.infer.TraceEnum_ELBO(max_plate_nesting=1, strict_enumeration_warning=False)


@pytest.mark.parametrize("kind", SIZES)
def test_enumeration_is_exact(kind: str) -> None:
    """Value and gradient of E[f], for batches of independent and structured distributions."""
    theta, f = parameters(kind), function(kind)
    value = catlog.Exact()(f, ours(kind, theta)).sum()
    theirs = elbo(kind, theta, f, theta, enumerated())
    assert_same(value, theirs, theta, **TOLERANCE)
    assert all(gradient.abs().max() > 0.01 for gradient in torch.autograd.grad(theirs, theta))


@pytest.mark.parametrize("kind", SIZES)
def test_elbo_with_a_prior(kind: str) -> None:
    """E[f + log p - log q], whose integrand depends on the parameters of q."""
    theta, f = parameters(kind), function(kind)
    prior = [parameter.detach().flip(0) for parameter in theta]
    q, p = ours(kind, theta), ours(kind, prior)
    value = catlog.Exact()(lambda x: f(x) + p.log_prob(x) - q.log_prob(x), q).sum()
    assert_same(value, elbo(kind, theta, f, prior, enumerated()), theta, **TOLERANCE)


@pytest.mark.parametrize("kind", SIZES)
def test_trace_elbo_is_reinforce(kind: str) -> None:
    """The score-function gradient of Trace_ELBO on three draws, and ours on the same draws."""
    theta, f, points = parameters(kind), function(kind), []

    def remembering(x: Tensor) -> Tensor:
        points.append(x)
        return f(x)

    pyro.set_rng_seed(0)
    # The model's score has mean zero, but not on three draws.
    fixed = [parameter.detach() for parameter in theta]
    theirs = elbo(kind, theta, remembering, fixed, pyro.infer.Trace_ELBO(num_particles=3))
    x = torch.stack(points).to(torch.float64 if kind == "bits" else torch.int64)
    value = catlog.Reinforce(samples=3)(f, ours(kind, theta), x=x)
    wanted = torch.autograd.grad(theirs, theta)
    for got, gradient in zip(torch.autograd.grad(value.sum(), theta), wanted, strict=True):
        torch.testing.assert_close(got, gradient, **TOLERANCE)
        assert gradient.abs().max() > 0.01
