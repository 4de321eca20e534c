"""Estimators inside the transforms of torch.func give the same gradients as ``backward``.

All of them in ``grad``, and in ``vmap`` where their draws are injected: test_circumstances.py.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.func import grad, jvp, vmap
from torch.testing import assert_close

import catlog
from catlog.distributions import Autoregressive, MarkovChain
from catlog.estimators import MAPO, RAM, SumAndSample, UnorderedSet
from catlog.testing.battery import draw_randomness
from catlog.testing.cases import normals
from support.laws import bits

COUPLING, LOGITS = normals(3, 3), normals(4, 3, seed=1)


def f(x: Tensor) -> Tensor:
    return ((x @ COUPLING) * x).sum(-1).sin()


def loss(E: catlog.Estimator, logits: Tensor, **options: Tensor | None) -> Tensor:
    return E(f, bits(logits, validate_args=False), **options)


def by_backward(E: catlog.Estimator, logits: Tensor, **options: Tensor | None) -> Tensor:
    leaf = logits.clone().requires_grad_()
    return torch.autograd.grad(loss(E, leaf, **options).sum(), leaf)[0]


@pytest.mark.parametrize("randomness", ["same", "different"])
@pytest.mark.parametrize("E", [MAPO(size=7), SumAndSample(top=7), UnorderedSet(8)], ids=repr)
def test_vmap_with_draws_from_outside_a_set(E: catlog.Estimator, randomness: str) -> None:
    """Where all points but one are summed, the estimate is exact whatever is drawn."""
    if isinstance(E, MAPO):
        E.memory[:, :3] = torch.cartesian_prod(*[torch.arange(2)] * 3)[1:]
        before = E.memory.clone()
    gradient = vmap(grad(lambda logits: loss(E, logits)), randomness=randomness)(LOGITS)
    assert_close(gradient, by_backward(catlog.Exact(), LOGITS), rtol=1e-10, atol=1e-10)
    if isinstance(E, MAPO):
        grad(lambda logits: loss(E, logits).sum())(LOGITS)
        assert torch.equal(E.memory, before)


SWEEPS = [
    catlog.SCateR(2, chunk_size=3),
    catlog.SCateR(2, suffix="common"),
    catlog.SCateR(2, variables=2),
    catlog.SCateR(2, categories=1),
    RAM(2),
]


def chain(parameters: Tensor) -> Distribution:
    """Return a Markov chain of 4 categories."""
    initial, transition = parameters.split([1, 4], -2)
    return MarkovChain(initial.squeeze(-2), transition, length=3, validate_args=False)


def network(parameters: Tensor) -> Distribution:
    """Return a network whose logits depend on the sum of the earlier variables."""

    def logits(x: Tensor, i: int) -> Tensor:
        total = x[..., :i].sum(-1, keepdim=True).double()
        return parameters[..., i, :] + (1 + total) * parameters[..., 3, :]

    return Autoregressive(logits, [4, 4, 4], parameters.shape[:-2], dtype=torch.float64)


@pytest.mark.parametrize("law", [chain, network])
@pytest.mark.parametrize("E", SWEEPS, ids=repr)
def test_vmap_of_grad_of_sweeps(E: catlog.Estimator, law: Callable[[Tensor], Distribution]) -> None:
    """Mapped over parameters and noise, or over noise alone, a sweep has the gradients of one call
    for all batch elements."""
    parameters = normals(6, 5, 4)
    injected = tuple(draw_randomness(E, law(parameters))["noise"])
    dims = tuple(1 + noise.is_floating_point() for noise in injected)

    def expectation(parameters: Tensor, noise: tuple[Tensor, ...]) -> Tensor:
        return E(lambda x: f(x.double()), law(parameters), noise=noise)

    for given, wanted, dim in (
        (parameters, parameters, 0),
        (parameters[0], parameters[:1].expand(6, 5, 4), None),
    ):
        leaf = wanted.clone().requires_grad_()
        (expected,) = torch.autograd.grad(expectation(leaf, injected).sum(), leaf)
        mapped = vmap(grad(expectation), in_dims=(dim, dims))(given, injected)
        assert_close(mapped, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch uses it itself
@pytest.mark.parametrize("E", [catlog.IndeCateR(2), catlog.RLOO(2), catlog.Exact()], ids=repr)
def test_forward_mode(E: catlog.Estimator) -> None:
    """A directional derivative is the gradient's product with the direction."""
    x = None if isinstance(E, catlog.Exact) else bits(LOGITS).sample((2,))
    tangents = (LOGITS,), (torch.ones_like(LOGITS),)
    _, slope = jvp(lambda logits: loss(E, logits, x=x).sum(), *tangents)
    assert_close(slope, by_backward(E, LOGITS, x=x).sum(), rtol=1e-12, atol=1e-12)
