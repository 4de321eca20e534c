"""Discrete and continuous variables together, judged by enumeration times Gauss-Hermite quadrature
in float64.

Every (outcome of the estimator's draws, quadrature node) is one batch element; weighted and
back-propagated once, the estimates add up to the estimator's expectation. The reference has more
nodes, so both rules have converged.
"""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal
from torch.testing import assert_close

import catlog
from catlog.testing.cases import normals, seeded
from support.gradients import assert_same, with_gradients
from support.laws import bits, integers

POINTS = torch.tensor(list(product(range(3), repeat=2)))  # two variables of three categories
Parameters = dict[str, Tensor]


def nodes(count: int) -> tuple[Tensor, Tensor]:
    """Return nodes and weights for a standard normal."""
    at, weight = np.polynomial.hermite_e.hermegauss(count)
    return torch.tensor(at), torch.tensor(weight / weight.sum())


def parameters() -> Parameters:
    shapes = {"logits": (2, 3), "mu": (3,), "sigma": (3,), "c": (4,)}
    return {
        name: normals(*shapes[name], seed=seed).requires_grad_() for seed, name in enumerate(shapes)
    }


def smooth(x: Tensor, z: Tensor, c: Tensor) -> Tensor:
    """A function without additive parts that few nodes do not integrate exactly."""
    a, b = x[..., 0].double(), x[..., 1].double()
    return (c[0] * z + a * b).sin() + (c[1] * z * a - b).tanh() + c[2] * z**2 * (a - c[3] * b)


class Problem(NamedTuple):
    """Parts of E[f(x, z)] as functions of the parameters.

    Attributes:
        z: z from standard normal noise.
        law: the distribution of x given z.
        f: the function of x and z.
    """

    z: Callable[[Parameters, Tensor], Tensor]
    law: Callable[[Parameters, Tensor], Distribution]
    f: Callable[[Parameters, Tensor, Tensor], Tensor]


def normal(t: Parameters, noise: Tensor) -> Tensor:
    return t["mu"][0] + t["sigma"][0] * noise


def fixed(t: Parameters, z: Tensor) -> Distribution:
    return integers(t["logits"].expand(*z.shape, 2, 3))


PROBLEMS = {
    "independent": Problem(normal, fixed, lambda t, x, z: smooth(x, z, t["c"])),
    # A mixture: the first variable of x picks the mean of z, the second its scale.
    "z given x": Problem(
        lambda t, noise: noise,
        fixed,
        lambda t, x, z: smooth(x, t["mu"][x[..., 0]] + t["sigma"][x[..., 1]] * z, t["c"]),
    ),
    "x given z": Problem(
        normal,
        lambda t, z: integers(t["logits"] * z[..., None, None].sin()),
        lambda t, x, z: smooth(x, z, t["c"]),
    ),
}


def reference(problem: Problem, count: int) -> list[Tensor]:
    """Return E[f(x, z)] and its gradient in every parameter."""
    t, (noise, weight) = parameters(), nodes(count)
    z, x = problem.z(t, noise), POINTS.unsqueeze(1).expand(-1, count, 2)
    probs = problem.law(t, z).log_prob(x).exp()
    value = (weight * probs * problem.f(t, x, z.expand(len(x), count))).sum()
    return with_gradients(value, list(t.values()))


def expectation(E: catlog.Estimator, problem: Problem, samples: int, count: int) -> list[Tensor]:
    """Return the expectation of the estimate and its gradients, over all outcomes and nodes.

    An outcome is, for every sample, a node of z and the points of x.
    """
    t, (noise, weight) = parameters(), nodes(count)
    rows = getattr(E, "samples", 0)
    axes = [torch.arange(count)] * samples + [torch.arange(len(POINTS))] * (rows * samples)
    number = torch.cartesian_prod(*axes).view(-1, len(axes)).T
    z = problem.z(t, noise[number[:samples]])
    chance, x = weight[number[:samples]].prod(0), None
    if rows:
        x = POINTS[number[samples:]].unflatten(0, (rows, samples))
        chance = chance * problem.law(t, z).log_prob(x).detach().exp().prod(0).prod(0)
    q = fixed(t, z[0]) if problem.law is fixed else partial(problem.law, t)
    p = Normal(torch.zeros_like(z[0]), 1)
    estimate = catlog.Pathwise(E, samples)(partial(problem.f, t), q, p, z=z, x=x)
    return with_gradients((chance * estimate).sum(), list(t.values()))


@pytest.mark.parametrize(
    ("E", "samples", "count", "of_reference"),
    [
        *((E, 1, 90, 120) for E in (catlog.IndeCateR(1), catlog.RLOO(2), catlog.Exact())),
        # Two draws of z, each with a separate x; both sides use the same few nodes.
        (catlog.IndeCateR(1), 2, 4, 4),
    ],
)
@pytest.mark.parametrize("name", PROBLEMS)
def test_unbiased_by_quadrature(
    name: str, E: catlog.Estimator, samples: int, count: int, of_reference: int
) -> None:
    wanted = reference(PROBLEMS[name], of_reference)
    assert all(gradient.abs().max() > 1e-3 for gradient in wanted)
    assert_close(expectation(E, PROBLEMS[name], samples, count), wanted, rtol=1e-10, atol=1e-10)


def test_neighbours_share_the_noise() -> None:
    """f's additive dependence on z leaves no trace in the gradient of the logits."""
    logits = torch.zeros(100, 2).double().requires_grad_()
    q, p = bits(logits), Normal(torch.zeros(100).double(), 1)
    E = catlog.Pathwise(catlog.IndeCateR(1), 3)
    E(lambda x, z: x.sum(-1) + 1000 * z, q, p).sum().backward()
    assert_close(logits.grad, torch.full((100, 2), 0.25).double(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("E", [catlog.Exact(), catlog.IndeCateR(2), catlog.RLOO(2)], ids=repr)
def test_outputs_are_calls_of_their_own(E: catlog.Estimator) -> None:
    """From the same draws, each output has the value and the gradients of a separate call."""
    logits = normals(4, 3).requires_grad_()
    mean = normals(4, 2, seed=1).requires_grad_()
    q, p = bits(logits), Independent(Normal(mean, 1.0), 1)
    z = p.rsample((5,))
    x = None if isinstance(E, catlog.Exact) else q.expand((5, 4)).sample((E.samples,))
    functions = (
        lambda x, z: (x.sum(-1) - z.sum(-1)).sin(),
        lambda x, z: (x * x.cumsum(-1)).sum(-1) * z.prod(-1),
    )
    operator = catlog.Pathwise(E, samples=5)
    together = operator(
        lambda x, z: torch.stack([f(x, z) for f in functions], -1), q, p, z=z, x=x, outputs=1
    )
    assert together.shape == (4, 2)
    for number, f in enumerate(functions):
        assert_same(together[:, number], operator(f, q, p, z=z, x=x), [logits, mean])


def test_generator_fixes_both_and_leaves_the_default_alone() -> None:
    q, p = bits(torch.zeros(4, 3)), Normal(torch.zeros(4), 1)
    E = catlog.Pathwise(catlog.RLOO(2), 2)

    def f(x: Tensor, z: Tensor) -> Tensor:
        assert (z[:, 0] != z[:, 1]).all()  # a z for every sample
        return x.sum(-1) * z

    def run(seed: int) -> Tensor:
        return E(f, q, p, generator=seeded(seed))

    state = torch.get_rng_state()
    assert torch.equal(run(0), run(0))
    assert not torch.equal(run(0), run(1))
    assert torch.equal(state, torch.get_rng_state())
