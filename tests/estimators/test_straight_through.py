"""The straight-through estimators of 2022 to 2026, against their formulas, written out again.

Jacobians are built as matrices here, as the authors' code builds them, for every draw of one
variable. Biases are by enumeration, or by z-tests where Gumbel noise remains after the draw.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Independent, OneHotCategorical

import catlog
from catlog import ReinMax, StraightThrough
from catlog.estimators import (
    DecoupledStraightThrough,
    GappedStraightThrough,
    GumbelRao,
    MinimumVarianceStraightThrough,
    ReDGE,
    ReinMaxCV,
    ReinMaxRao,
)
from catlog.testing import CASES, z_limit
from catlog.testing.battery import z_scores
from catlog.testing.cases import normals, seeded
from support.smooth_functions import bias, multilinear, plain, quadratic

K = 4
THETA = normals(K)
WEIGHT = normals(K, seed=1)
LIMIT = z_limit(64)  # at most 64 numbers are compared at once


def gradient(E: catlog.Estimator, **injected: Tensor) -> Tensor:
    """Return E's gradient in the logits of one variable, for a curved f."""
    theta = THETA.clone().requires_grad_()
    q = OneHotCategorical(logits=theta)
    (result,) = torch.autograd.grad(E(lambda x: (x @ WEIGHT).sin(), q, **injected), theta)
    return result


def slope(draw: Tensor) -> Tensor:
    """Return the derivative of that f at a draw."""
    return (draw @ WEIGHT).cos() * WEIGHT


def jacobian(p: Tensor) -> Tensor:
    return torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)


def draws() -> Tensor:
    return torch.eye(K).double()


def conditional_scores(log_p: Tensor, draw: Tensor, u: Tensor) -> Tensor:
    """Return log p plus Gumbels whose sum is largest at the draw, from uniforms."""
    e = -u.log()
    first = (e * draw).sum(-1, keepdim=True)  # the first arrival, at the draw
    return -torch.where(draw.bool(), first, e / log_p.exp() + first).log()


# Gapped straight-through


@pytest.mark.parametrize("gap", [0.0, 1.0, None])
@pytest.mark.parametrize("tau", [0.5, 1.0])
def test_gapped_as_published(gap: float | None, tau: float) -> None:
    p = THETA.softmax(-1)
    for index, draw in enumerate(draws()):
        width = -(1 - p[index] * (1 - 1e-5)).log() / (p[index] * (1 - 1e-5)) if gap is None else gap
        moved = THETA.clone()
        for other in range(K):
            if other != index:
                moved[other] -= max(0.0, float(THETA[other] - THETA.max() + width))
        moved[index] = THETA.max()
        assert moved.argmax() == index or gap == 0.0
        assert bool((moved[index] - moved[torch.arange(K) != index] >= width - 1e-12).all())
        wanted = slope(draw) @ jacobian((moved / tau).softmax(-1)) / tau
        got = gradient(GappedStraightThrough(temperature=tau, gap=gap), x=draw.unsqueeze(0))
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-13)


# Bits, whose derivatives are in closed form


IN_CLOSED_FORM = [
    *[
        GappedStraightThrough(5, temperature=tau, gap=gap)
        for tau in (0.5, 1.0)
        for gap in (0.0, 1.0, 5.0, None)
    ],
    GappedStraightThrough(5, temperature=torch.tensor(0.7, dtype=torch.float64)),
    *[MinimumVarianceStraightThrough(5, bias_weight=weight) for weight in (0.0, 1.0, 100.0, 1e6)],
    StraightThrough(5),
    ReinMax(5),
]


def wave(z: Tensor) -> Tensor:
    return (z * torch.arange(1.0, 1 + z.shape[-1], dtype=z.dtype)).sum(-1).sin()


@pytest.mark.parametrize("E", IN_CLOSED_FORM, ids=str)
@pytest.mark.parametrize("form", ["logits", "probs"])
def test_bits_equal_one_hot_vectors_of_two_categories(E: catlog.Estimator, form: str) -> None:
    """Probable, improbable, certain and impossible bits have the derivatives of the tables."""
    edges = torch.tensor([6.0, -6.0, torch.inf, -torch.inf], dtype=torch.float64)
    leaf = torch.cat([2 * normals(24), edges]).view(4, 7).requires_grad_()
    p = leaf.sigmoid()
    x = (torch.rand(5, 4, 7, generator=seeded()) < p).double()
    if form == "logits":
        is_certain = leaf.detach() == torch.inf
        zero = torch.zeros_like(leaf).masked_fill(is_certain, -torch.inf)
        one = leaf.masked_fill(is_certain, 0.0)
        bits = Bernoulli(logits=leaf)
        vectors = OneHotCategorical(logits=torch.stack([zero, one], -1))
    else:
        bits, vectors = Bernoulli(probs=p), OneHotCategorical(probs=torch.stack([1 - p, p], -1))
    values = (
        E(wave, Independent(bits, 1), x=x),
        E(lambda z: wave(z[..., 1]), Independent(vectors, 1), x=torch.stack([1 - x, x], -1)),
    )
    torch.testing.assert_close(*values, rtol=0, atol=1e-12)
    gradients = [
        torch.autograd.grad(value.sum(), leaf, retain_graph=True)[0]  # both share p
        for value in values
    ]
    assert bool(gradients[0].isfinite().all())
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)


def test_a_learned_temperature_has_a_gradient_also_for_bits() -> None:
    x = torch.tensor([[1.0, 0.0, 1.0]], dtype=torch.float64)
    logits = normals(3)
    gradients = []
    for q, points in (
        (Bernoulli(logits=logits), x),
        (
            OneHotCategorical(logits=torch.stack([torch.zeros(3), logits], -1)),
            torch.stack([1 - x, x], -1),
        ),
    ):
        tau = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
        E = GappedStraightThrough(1, temperature=tau)
        value = E(lambda z: wave(z if z.dim() == 2 else z[..., 1]), Independent(q, 1), x=points)
        gradients.append(torch.autograd.grad(value, tau)[0])
    assert gradients[0] != 0
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)


# Decoupled straight-through


def decoupled(forward: float, backward: float) -> DecoupledStraightThrough:
    return DecoupledStraightThrough(forward_temperature=forward, backward_temperature=backward)


def test_decoupled_at_equal_temperatures_of_one_is_gumbel_softmax() -> None:
    """Draw by draw, with the same noise, it is Gumbel-Rao with one Gumbel vector."""
    u = torch.rand(1, 1, K, dtype=torch.float64, generator=seeded())
    for draw in draws():
        got = gradient(DecoupledStraightThrough(), x=draw.unsqueeze(0), noise=u)
        wanted = gradient(GumbelRao(noise_samples=1), x=draw.unsqueeze(0), noise=u.unsqueeze(0))
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("forward", "backward"), [(0.5, 1.5), (2.0, 0.7)])
def test_decoupled_as_published(forward: float, backward: float) -> None:
    u = torch.rand(K, dtype=torch.float64, generator=seeded())
    log_forward = (THETA / forward).log_softmax(-1)
    for draw in draws():
        gumbel = conditional_scores(log_forward, draw, u) - log_forward
        assert (THETA / forward + gumbel).argmax() == draw.argmax()
        wanted = slope(draw) @ jacobian((THETA / backward + gumbel).softmax(-1)) / backward
        E = decoupled(forward, backward)
        got = gradient(E, x=draw.unsqueeze(0), noise=u.view(1, 1, K))
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


def test_decoupled_draws_at_the_forward_temperature() -> None:
    n, E = 40_000, DecoupledStraightThrough(forward_temperature=0.5)
    mean = catlog.sample(THETA.expand(n, K), E, generator=seeded()).mean(0)
    for tau, differs in ((0.5, False), (1.0, True)):
        p = (THETA / tau).softmax(-1)
        score = ((mean - p).abs() / (p * (1 - p) / n).sqrt()).max()
        assert score > 3 * LIMIT if differs else score < LIMIT


def test_decoupled_of_one_bit_by_quadrature() -> None:
    logit, n = torch.tensor([0.8], dtype=torch.float64), 40_000
    forward, backward = 0.6, 1.7
    u = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    logistic = u.log() - (-u).log1p()
    bit = (logit / forward + logistic > 0).double()
    soft = (logit / backward + logistic).sigmoid()
    wanted = (2 * (bit + 0.3) * soft * (1 - soft) / backward).mean()
    wide = logit.expand(n, 1).clone().requires_grad_()
    value = decoupled(forward, backward)(
        lambda x: (x[..., 0] + 0.3).square(),
        Independent(Bernoulli(logits=wide), 1),
        generator=seeded(),
    )
    (got,) = torch.autograd.grad(value.sum(), wide)
    assert (got.mean() - wanted).abs() < LIMIT * got.std() / n**0.5


# ReinMax-Rao and ReinMax-CV


def midpoint_jacobian(draw: Tensor, u: Tensor, tau: float) -> Tensor:
    """Return Gumbel-Rao's Jacobian at (x + p) / 2, a mean over the rows of u."""
    middle = (draw + THETA.softmax(-1)) / 2
    scores = conditional_scores(middle.log(), draw, u)
    return jacobian((scores / tau).softmax(-1)).mean(0) / tau


@pytest.mark.parametrize("tau", [0.5, 1.0])
def test_reinmax_rao_as_published(tau: float) -> None:
    u = torch.rand(5, K, dtype=torch.float64, generator=seeded())
    p = THETA.softmax(-1)
    for draw in draws():
        wanted = slope(draw) @ (2 * midpoint_jacobian(draw, u, tau) - jacobian(p) / 2)
        E = ReinMaxRao(noise_samples=5, temperature=tau)
        got = gradient(E, x=draw.unsqueeze(0), noise=u.view(5, 1, 1, K))
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("tau", [0.5, 1.0])
def test_reinmax_cv_as_published(tau: float) -> None:
    u = torch.rand(6, K, dtype=torch.float64, generator=seeded())
    p = THETA.softmax(-1)
    for draw in draws():
        middle = (draw + p) / 2
        gumbel = conditional_scores(p.log(), draw, u[0]) - p.log()
        drawn = jacobian(((middle.log() + gumbel) / tau).softmax(-1)) / tau
        reinmax = 2 * jacobian(middle) - jacobian(p) / 2
        whole = reinmax + 0.7 * (midpoint_jacobian(draw, u[1:], tau) - drawn)
        E = ReinMaxCV(noise_samples=5, temperature=tau, control_weight=0.7)
        got = gradient(E, x=draw.unsqueeze(0), noise=u.view(6, 1, 1, K))
        torch.testing.assert_close(got, slope(draw) @ whole, rtol=0, atol=1e-12)
        plain = gradient(replace(E, control_weight=0.0), x=draw.unsqueeze(0))
        wanted = gradient(ReinMax(), x=draw.unsqueeze(0))
        torch.testing.assert_close(plain, wanted, rtol=0, atol=1e-13)


@pytest.mark.parametrize("E", [ReinMaxRao(), ReinMaxCV(control_weight=1.0)], ids=repr)
def test_reinmax_with_gumbels_is_not_exact_for_quadratic_f(E: catlog.Estimator) -> None:
    """As its docstring says; the same test finds no bias in ReinMax."""
    case = plain(CASES["one-hot"])
    assert z_scores(E, case, quadratic).max() > 2 * LIMIT
    assert z_scores(ReinMax(), case, quadratic).max() < LIMIT


# Minimum-variance straight-through


def matrices(E: catlog.Estimator) -> Tensor:
    """Return E's S(x) [draw, category, logit] for one variable."""
    rows = []
    for draw in draws():
        theta = THETA.clone().requires_grad_()
        y = catlog.sample(theta, E, x=draw)
        rows.append(
            torch.stack([torch.autograd.grad(y[i], theta, retain_graph=True)[0] for i in range(K)])
        )
    return torch.stack(rows)


def minimiser(weight: float) -> Tensor:
    """Return S(x) by the quadratic programme itself, with multipliers for the constraint."""
    p, j = THETA.softmax(-1), jacobian(THETA.softmax(-1))
    size = K * K
    columns = []
    for logit in range(K):  # the columns of S are independent problems in S(x)_i
        hessian, linear = torch.zeros(size, size).double(), torch.zeros(size).double()
        constraint = torch.zeros(K, size).double()
        for x in range(K):
            for i in range(K):
                hessian[x * K + i, x * K + i] += 2 * p[x]
                constraint[i, x * K + i] = p[x]
                row = torch.zeros(size).double()
                row[x * K + i] += p[x]
                row[i * K + x] += p[i]
                target = j[i, logit] if i == x else 0.0
                hessian += weight / 2 * 2 * torch.outer(row, row)
                linear += weight / 2 * 2 * row * target
        top = torch.cat([hessian, constraint.T], 1)
        bottom = torch.cat([constraint, torch.zeros(K, K).double()], 1)
        right = torch.cat([linear, j[:, logit]])
        columns.append(torch.linalg.solve(torch.cat([top, bottom]), right)[:size].view(K, K))
    return torch.stack(columns, -1)


@pytest.mark.parametrize("weight", [0.0, 1.0, 30.0])
def test_minimum_variance_solves_its_programme(weight: float) -> None:
    got = matrices(MinimumVarianceStraightThrough(bias_weight=weight))
    torch.testing.assert_close(got, minimiser(weight), rtol=0, atol=1e-12)
    mean = (THETA.softmax(-1)[:, None, None] * got).sum(0)
    torch.testing.assert_close(mean, jacobian(THETA.softmax(-1)), rtol=0, atol=1e-13)
    if weight == 0:
        torch.testing.assert_close(got, matrices(StraightThrough()), rtol=0, atol=1e-13)


@pytest.mark.parametrize("kind", ["bits", "one-hot"])
def test_minimum_variance_becomes_exact_for_quadratic_f(kind: str) -> None:
    """At any weight it is exact for multilinear f."""
    case, biases = plain(CASES[kind]), {}
    for weight in (0.0, 1.0, 1e2, 1e4, 1e6, 1e12, 1e16, 1e300):
        E = MinimumVarianceStraightThrough(bias_weight=weight)
        assert bias(E, case, multilinear) < 1e-9
        biases[weight] = bias(E, case, quadratic)
    assert biases[0.0] > 0.01
    assert biases[1e4] < 0.1 * biases[1e2]
    assert biases[1e6] < min(0.1 * biases[1e4], 1e-4)
    assert max(biases[1e12], biases[1e16], biases[1e300]) < 1e-9


@pytest.mark.parametrize("scale", [0.0, 1.0, 5.0, 30.0])
@pytest.mark.parametrize("kind", ["bits", "one-hot"])
@pytest.mark.parametrize("weight", [0.0, 1.0, 1e4, 1e8, 1e12, 1e30, 1e300])
def test_minimum_variance_in_float32_is_that_of_float64(
    weight: float, kind: str, scale: float
) -> None:
    """Also for peaked distributions and for weights that float32 cannot hold."""
    logits = (scale * (normals(20, 4) if kind == "bits" else normals(20, 2, 4))).float()
    distribution, event = (Bernoulli, 1) if kind == "bits" else (OneHotCategorical, 2)
    E = MinimumVarianceStraightThrough(20, bias_weight=weight)
    torch.manual_seed(0)
    x = distribution(logits=logits).sample((20,))

    def gradient_in(dtype: torch.dtype) -> Tensor:
        theta = logits.to(dtype).requires_grad_()
        q = Independent(distribution(logits=theta), 1)
        value = E(lambda x: x.flatten(-event).cumsum(-1).sin().sum(-1), q, x=x.to(dtype))
        return torch.autograd.grad(value.sum(), theta)[0].double()

    exact = gradient_in(torch.float64)
    error = (gradient_in(torch.float32) - exact).abs().max() / exact.abs().max()
    assert error < 2e-5  # 170 roundings


def test_minimum_variance_has_less_variance_than_reinmax() -> None:
    """Of the derivatives that are exact for quadratic f; ReinMax's are among them."""
    p = THETA.softmax(-1)
    least, other = (
        float((p[:, None, None] * matrices(E).square()).sum())
        for E in (MinimumVarianceStraightThrough(bias_weight=1e8), ReinMax())
    )
    assert least < 0.99 * other


# ReDGE


def test_redge_with_one_step_is_straight_through() -> None:
    u = torch.rand(2, 1, 1, K, dtype=torch.float64, generator=seeded())
    theta = THETA.clone().requires_grad_()
    y = catlog.sample(theta, ReDGE(steps=1), noise=u)
    got = torch.autograd.grad((y @ WEIGHT).sin(), theta)[0]
    wanted = gradient(StraightThrough(), x=y.detach().unsqueeze(0))
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("steps", "last_time"), [(2, 0.7), (4, 0.5), (7, 0.2)])
def test_redge_as_published(steps: int, last_time: float) -> None:
    """The path of the authors' code: denoise, then the DDIM step between two signal levels."""
    u = torch.rand(2, 1, 1, K, dtype=torch.float64, generator=seeded())
    theta = THETA.clone().requires_grad_()
    times = torch.linspace(last_time, 1.0, steps, dtype=torch.float64)
    alphas = torch.cat([torch.ones(1, dtype=torch.float64), 1 - times])
    sigmas = 1 - alphas
    z = torch.distributions.Normal(0.0, 1.0).icdf(u[0, 0, 0])
    for t in range(steps, 0, -1):
        soft = (theta + alphas[t] * z / sigmas[t] ** 2).softmax(-1)
        if t > 1:
            z = alphas[t - 1] * soft + sigmas[t - 1] * (z - alphas[t] * soft) / sigmas[t]
    index = (soft.log() - (-u[1, 0, 0].log()).log()).argmax()
    leaf = THETA.clone().requires_grad_()
    y = catlog.sample(leaf, ReDGE(steps=steps, last_time=last_time), noise=u)
    assert y.argmax() == index
    got = torch.autograd.grad((y @ WEIGHT).sin(), leaf)[0]
    wanted = torch.autograd.grad((soft * slope(y.detach())).sum(), theta)[0]
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


def test_redge_draws_almost_from_q() -> None:
    n, p = 100_000, THETA.softmax(-1)

    def error(E: catlog.Estimator) -> float:
        mean = catlog.sample(THETA.expand(n, K), E, generator=seeded()).mean(0)
        return float((mean - p).abs().max())

    noise = float(LIMIT * (p * (1 - p) / n).sqrt().max())
    assert error(ReDGE(steps=1)) < noise
    assert error(ReDGE()) < 0.05
    assert error(ReDGE(steps=30)) < error(ReDGE(steps=2, last_time=0.1))


# All of them
