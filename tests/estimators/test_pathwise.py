"""Discrete and continuous variables together, judged by enumeration times Gauss-Hermite quadrature
in float64.

Every (outcome of the estimator's draws, quadrature node) is one batch element; weighted and
back-propagated once, the estimates add up to the estimator's expectation. The reference has more
nodes, so both rules have converged.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, Normal, Poisson
from torch.testing import assert_close

import catlog
from catlog.testing.cases import normals, seeded
from support.laws import bits, integers

POINTS = torch.tensor(list(product(range(3), repeat=2)))  # two variables of three categories
Parameters = dict[str, Tensor]
Moments = tuple[Tensor, dict[str, Tensor]]  # a value, and its gradient in every parameter


def nodes(count: int) -> tuple[Tensor, Tensor]:
    """Return nodes and weights for a standard normal."""
    at, weight = np.polynomial.hermite_e.hermegauss(count)
    return torch.tensor(at), torch.tensor(weight / weight.sum())


def parameters() -> Parameters:
    shapes = {"logits": (2, 3), "mu": (3,), "sigma": (3,), "c": (4,)}
    return {
        name: normals(*shapes[name], seed=seed).requires_grad_() for seed, name in enumerate(shapes)
    }


def with_gradients(value: Tensor, t: Parameters) -> Moments:
    value.backward()
    return value.detach(), {name: p.grad for name, p in t.items() if p.grad is not None}


def smooth(x: Tensor, z: Tensor, c: Tensor) -> Tensor:
    """A function without additive parts that few nodes do not integrate exactly."""
    a, b = x[..., 0].double(), x[..., 1].double()
    return (c[0] * z + a * b).sin() + (c[1] * z * a - b).tanh() + c[2] * z**2 * (a - c[3] * b)


class Independently:
    """x and z independent; z normal."""

    def z(self, t: Parameters, noise: Tensor) -> Tensor:
        return t["mu"][0] + t["sigma"][0] * noise

    def law(self, t: Parameters, batch: int) -> Distribution | Callable[[Tensor], Distribution]:
        return integers(t["logits"].expand(batch, 2, 3))

    def log_prob(self, t: Parameters, z: Tensor) -> Tensor:
        """``[points, *z.shape]``"""
        log_p = t["logits"].log_softmax(-1)
        return (log_p[0, POINTS[:, 0]] + log_p[1, POINTS[:, 1]])[:, None].expand(-1, len(z))

    def f(self, t: Parameters) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda x, z: smooth(x, z, t["c"])


class ZGivenX(Independently):
    """A mixture: the first variable of x picks the mean of z, the second its scale."""

    def z(self, t: Parameters, noise: Tensor) -> Tensor:
        return noise

    def f(self, t: Parameters) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda x, noise: smooth(
            x, t["mu"][x[..., 0]] + t["sigma"][x[..., 1]] * noise, t["c"]
        )


class XGivenZ(Independently):
    """z first, then x with logits that depend on z."""

    def law(self, t: Parameters, batch: int) -> Callable[[Tensor], Distribution]:
        return lambda z: integers(t["logits"] * z[..., None, None].sin())

    def log_prob(self, t: Parameters, z: Tensor) -> Tensor:
        log_p = (t["logits"] * z[:, None, None].sin()).log_softmax(-1)
        return (log_p[:, 0, POINTS[:, 0]] + log_p[:, 1, POINTS[:, 1]]).T


CASES = [Independently(), ZGivenX(), XGivenZ()]


def reference(case: Independently, count: int) -> Moments:
    """Return E[f(x, z)] and its gradient in every parameter."""
    t = parameters()
    noise, weight = nodes(count)
    z = case.z(t, noise)
    fx = case.f(t)(POINTS[:, None].expand(-1, count, 2), z.expand(len(POINTS), count))
    return with_gradients((weight * case.log_prob(t, z).exp() * fx).sum(), t)


def expectation(E: catlog.Estimator, case: Independently, samples: int, count: int) -> Moments:
    """Return the expectation of the estimate and its gradients, over all outcomes and nodes."""
    t = parameters()
    noise, weight = nodes(count)
    rows = getattr(E, "samples", 0)
    # A combination is one sample of z and its rows of x; the choice is [outcomes, samples].
    combinations = torch.tensor(list(product(range(count), *[range(len(POINTS))] * rows)))
    choice = torch.tensor(list(product(range(len(combinations)), repeat=samples)))
    picked = combinations[choice].movedim(1, 0)  # [samples, outcomes, 1 + rows]
    z = case.z(t, noise[picked[..., 0]])
    probability = weight[picked[..., 0]].prod(0)
    # [points, samples, outcomes]
    p_x = case.log_prob(t, z.flatten()).exp().detach().unflatten(1, z.shape)
    x = None
    if rows:
        x = POINTS[picked[..., 1:]].movedim(2, 0)
        for row in range(rows):
            probability = probability * p_x.gather(0, picked[..., 1 + row].unsqueeze(0))[0].prod(0)
    q, p = case.law(t, z.shape[1]), Normal(torch.zeros(z.shape[1]).double(), 1)
    estimate = catlog.Pathwise(E, samples)(case.f(t), q, p, z=z, x=x)
    return with_gradients((probability * estimate).sum(), t)


def agree(left: Moments, right: Moments) -> None:
    assert_close(left, right, rtol=1e-10, atol=1e-10)
    assert left[1].keys() == {"logits", "mu", "sigma", "c"}
    assert all(gradient.abs().max() > 1e-3 for gradient in left[1].values())


@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case).__name__)
@pytest.mark.parametrize("E", [catlog.IndeCateR(1), catlog.RLOO(2), catlog.Exact()], ids=repr)
def test_unbiased_by_quadrature(E: catlog.Estimator, case: Independently) -> None:
    agree(expectation(E, case, 1, 90), reference(case, 120))


@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case).__name__)
def test_several_samples_are_paired_and_averaged(case: Independently) -> None:
    """Two draws of z, each with a separate x; both sides use the same few nodes."""
    agree(expectation(catlog.IndeCateR(1), case, 2, 4), reference(case, 4))


def test_neighbours_share_the_noise() -> None:
    """f's additive dependence on z leaves no trace in the gradient of the logits."""
    logits = torch.zeros(100, 2).double().requires_grad_()
    q, p = bits(logits), Normal(torch.zeros(100).double(), 1)
    E = catlog.Pathwise(catlog.IndeCateR(1), 3)
    E(lambda x, z: x.sum(-1) + 1000 * z, q, p).sum().backward()
    assert_close(logits.grad, torch.full((100, 2), 0.25).double(), rtol=0, atol=1e-9)


def test_a_structured_distribution_and_a_vector() -> None:
    """A Markov chain and z in two dimensions; f is linear in z, so its gradient in mu is E[x]."""
    start, change = torch.randn(5, 2, generator=seeded(1)), torch.zeros(2, 2)
    q = catlog.distributions.MarkovChain(start, change.expand(5, 2, 2), length=2)
    mu = torch.zeros(5, 2, requires_grad=True)
    value = catlog.Pathwise(catlog.Exact(), 2)(
        lambda x, z: (x * z).sum(-1), q, Independent(Normal(mu, 1.0), 1)
    )
    assert value.shape == (5,)
    value.sum().backward()
    assert_close(mu.grad, torch.stack([start.softmax(-1)[:, 1], torch.full((5,), 0.5)], -1))


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
        alone = operator(f, q, p, z=z, x=x)
        assert_close(together[:, number], alone)
        gradients = [
            torch.autograd.grad(value.sum(), [logits, mean], retain_graph=True)
            for value in (alone, together[:, number])
        ]
        assert_close(*gradients)


def test_generator_fixes_both_and_leaves_the_default_alone() -> None:
    q, p = bits(torch.zeros(4, 3)), Normal(torch.zeros(4), 1)
    E = catlog.Pathwise(catlog.RLOO(2), 2)

    def run(seed: int) -> Tensor:
        return E(lambda x, z: x.sum(-1) * z, q, p, generator=seeded(seed))

    state = torch.get_rng_state()
    assert torch.equal(run(0), run(0))
    assert not torch.equal(run(0), run(1))
    assert torch.equal(state, torch.get_rng_state())


def total(x: Tensor, z: Tensor) -> Tensor:
    return x.sum(-1)


Q, P, ONES = bits(torch.zeros(4, 3)), Normal(torch.zeros(4), 1.0), torch.ones(4)
WRONG: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    (r"Independent\(p, 1\)", (total, Q, Normal(torch.zeros(4, 2), 1.0)), {}),
    (r"p\.expand\(\(4,\)\)", (total, Q, Normal(0.0, 1.0)), {}),
    ("Poisson has no rsample", (total, Q, Poisson(ONES)), {}),
    (r"q\(z\) must have batch shape \(1, 4\)", (total, lambda z: bits(z[..., None, None]), P), {}),
    (r"z must have shape \(1, 4\)", (total, Q, P), {"z": torch.zeros(4)}),
    (r"z must be a tensor of shape \(1, 4\) .*but list", (total, Q, P), {"z": [0.0]}),
    ("f must be a function of points, but NoneType was given", (None, Q, P), {}),
    ("generator must be .* or None, but int was given", (total, Q, P), {"generator": 3}),
]
for wrong in (None, 0.5, ONES):
    kind = type(wrong).__name__
    returned = rf"q\(z\) must be a distribution of x, but {kind} was returned"
    WRONG += [
        (f"distribution of x or a function .*but {kind} was given", (total, wrong, P), {}),
        (returned, (total, lambda z, wrong=wrong: wrong, P), {}),
        (rf"p must be a torch\.dist.* of z, but {kind} was given", (total, Q, wrong), {}),
    ]


@pytest.mark.parametrize(("message", "arguments", "options"), WRONG)
def test_wrong_calls_are_named(
    message: str, arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        catlog.Pathwise(catlog.IndeCateR(1))(*arguments, **options)


def test_wrong_settings_are_named() -> None:
    for wrong in (3, catlog.RLOO):
        with pytest.raises(TypeError, match="`estimator` must be an estimator such as"):
            catlog.Pathwise(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`samples` must be at least 1"):
        catlog.Pathwise(catlog.IndeCateR(1), 0)
    for samples in (None, "2", 1.5, [2], True, torch.tensor(2)):
        with pytest.raises(TypeError, match="Pathwise: `samples` must be an int"):
            catlog.Pathwise(catlog.Exact(), samples)  # type: ignore[arg-type]


@pytest.mark.parametrize("E", [catlog.Exact(), catlog.IndeCateR(2), catlog.RLOO(3)], ids=str)
def test_reading_the_entropy_keeps_zero_probabilities(E: catlog.Estimator) -> None:
    """Once the clamped logits are known, torch's expand calls them the parameter."""
    for law, probs in (
        (Categorical, torch.tensor([[0.0, 0.4, 0.6], [1.0, 0.0, 0.0]])),
        (Bernoulli, torch.tensor([0.0, 1.0])),
    ):
        probs = probs.double().requires_grad_()
        q = law(probs=probs)
        q.entropy()
        possible = (torch.stack([1 - probs, probs], -1) if law is Bernoulli else probs) > 0

        def f(x: Tensor, z: Tensor, possible: Tensor = possible) -> Tensor:
            assert possible[torch.arange(2), x.long()].all()
            return (x.sum(-1) + 1) * z

        value = catlog.Pathwise(E, 2)(f, Independent(q, 1), Normal(torch.zeros(()).double(), 1))
        (gradient,) = torch.autograd.grad(value, probs)
        assert gradient[probs == 0].abs().max() < 1e-12
