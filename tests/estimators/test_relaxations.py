"""Relaxations and perturbed argmaxes.

Where Gumbel noise remains after the draw, its mean given the draw is known in closed form or by
quadrature, and a z-test compares the estimates with it.
"""

from collections.abc import Callable
from itertools import pairwise, product

import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution, OneHotCategorical

import catlog
from catlog import GumbelSoftmax, ReinMax
from catlog.core.view import view
from catlog.estimators import DARN, IMLE, DirectOptimisation, GumbelRao
from catlog.testing import CASES, FUNCTIONS, PARAMETER, Case, expected, z_limit
from catlog.testing.cases import normals, seeded
from support.enumerated import function_of
from support.gradients import assert_same
from support.laws import bits, one_hots
from support.smooth_functions import bias, multilinear, plain, quadratic

LIMIT = z_limit(64)  # at most 63 numbers are compared at once


# Relaxations


def gradients(
    E: catlog.Estimator,
    theta: Tensor,
    law: Callable[[Tensor], Distribution],
    f: Callable[[Tensor], Tensor],
    n: int,
) -> Tensor:
    """Return the gradients of n independent estimates."""
    wide = theta.expand(n, *theta.shape).clone().requires_grad_()
    return torch.autograd.grad(E(f, law(wide), generator=seeded()).sum(), wide)[0]


def z_score(got: Tensor, wanted: Tensor | float) -> Tensor:
    """Return the largest distance of the means of ``got`` from ``wanted``, in standard errors."""
    return ((got.mean(0) - wanted).abs() / (got.std(0) / len(got) ** 0.5).clamp(min=1e-300)).max()


@pytest.mark.parametrize("kind", ["bits", "one-hot"])
@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_gumbel_rao_is_the_conditional_mean_of_straight_through(
    kind: str, temperature: float
) -> None:
    """The same expectation, and the same variance with one noise sample; less with many."""
    case, n = CASES[kind], 40_000

    f = function_of(case)
    hard = gradients(
        GumbelSoftmax(hard=True, temperature=temperature), case.theta, case.distribution, f, n
    )
    one = gradients(
        GumbelRao(noise_samples=1, temperature=temperature), case.theta, case.distribution, f, n
    )
    many = gradients(
        GumbelRao(noise_samples=30, temperature=temperature), case.theta, case.distribution, f, n
    )
    for rao in (one, many):
        error = (hard.var(0) / n + rao.var(0) / n).sqrt()
        assert ((hard.mean(0) - rao.mean(0)).abs() / error).max() < LIMIT
    total = hard.var(0).sum()
    assert 0.85 < one.var(0).sum() / total < 1.15
    assert many.var(0).sum() / total < (0.5 if temperature == 0.3 else 0.85)


@pytest.mark.parametrize("x", [0.0, 1.0])
def test_gumbel_rao_of_one_bit_by_quadrature(x: float) -> None:
    """It is the mean of the relaxed bit's slope over the uniforms that draw x."""
    logit, tau, n = torch.tensor([0.8], dtype=torch.float64), 0.5, 40_000
    u = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    soft = ((logit + u.log() - (-u).log1p()) / tau).sigmoid()
    slope = soft * (1 - soft) / tau
    wanted = slope[(soft > 0.5) == bool(x)].mean()
    wide = logit.expand(n, 1).clone().requires_grad_()
    value = GumbelRao(noise_samples=2, temperature=tau)(
        lambda x: x[..., 0], bits(wide), x=torch.full((1, n, 1), x).double(), generator=seeded()
    )
    (got,) = torch.autograd.grad(value.sum(), wide)
    assert z_score(got, wanted) < LIMIT
    assert z_score(got, slope.mean()) > 3 * LIMIT


@pytest.mark.parametrize("kind", ["bits", "bits by probs", "one-hot"])
def test_reinmax_is_exact_for_quadratic_f(kind: str) -> None:
    case = plain(CASES[kind])
    assert bias(ReinMax(), case, quadratic) < 1e-12
    assert bias(ReinMax(2), case, quadratic) < 1e-12
    assert bias(ReinMax(temperature=1.5), case, quadratic) > 0.01
    assert bias(ReinMax(), case, lambda z, c: quadratic(z, c) ** 2) > 0.01
    assert bias(catlog.StraightThrough(), case, quadratic) > 0.01  # first order only


def test_darn_is_exact_for_quadratic_f() -> None:
    for name in ("bits", "bits by probs"):
        case = plain(CASES[name])
        assert bias(DARN(order=1), case, multilinear) < 1e-12
        assert bias(DARN(order=2), case, multilinear) < 1e-12
        assert bias(DARN(order=1), case, quadratic) > 0.01
        assert bias(DARN(order=2), case, quadratic) < 1e-12
        assert bias(DARN(order=2), case, lambda z, c: quadratic(z, c) ** 2) > 0.01


def test_darn_is_reinmax_for_bits() -> None:
    """Draw by draw; DARN refuses categories, which ReinMax takes."""
    case = CASES["bits"]
    theta = case.theta.expand(50, 3).clone().requires_grad_()
    darn, reinmax = (
        E(function_of(case), case.distribution(theta), generator=seeded())
        for E in (DARN(3), ReinMax(3))
    )
    assert_same(darn, reinmax, theta, rtol=1e-12, atol=1e-13)
    with pytest.raises(
        TypeError, match=r"DARN is for binary variables.*OneHotCategorical.*Use ReinMax"
    ):
        DARN()(lambda x: x.sum((-1, -2)), one_hots(torch.zeros(2, 3)))


@pytest.mark.parametrize("tau", [1.0, 1.7])
def test_reinmax_as_published(tau: float) -> None:
    """The two-softmax form of the paper, for every draw of one variable."""
    theta, weight = normals(4).requires_grad_(), normals(4, seed=1)
    for draw in torch.eye(4).double():
        value = ReinMax(temperature=tau)(
            lambda x: (x @ weight).sin(), OneHotCategorical(logits=theta), x=draw.unsqueeze(0)
        )
        (got,) = torch.autograd.grad(value, theta)
        p = theta.softmax(-1)
        middle = ((draw + (theta / tau).softmax(-1)) / 2).log().detach()
        middle = (middle - theta.detach() + theta).softmax(-1)
        slope = (draw @ weight).cos() * weight
        (wanted,) = torch.autograd.grad(((2 * middle - p / 2) * slope).sum(), theta)
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-13)


# Perturbed argmaxes


def perturbed_mean(case: Case, shift: Callable[[Tensor], Tensor], scale: float) -> Tensor:
    """Return the mean of (softmax(logits + shift(x)) - softmax(logits)) / scale, in theta."""
    theta = case.theta.clone().requires_grad_()
    log_p = view(case.distribution(theta)).log_probs
    moved = (log_p.detach() + shift(case.points)).softmax(-1) - log_p.detach().softmax(-1)
    weight = (case.probabilities(case.theta)[:, None, None] * moved).sum(0) / scale
    (gradient,) = torch.autograd.grad(
        (weight * log_p.masked_fill(log_p == -torch.inf, 0.0)).sum(), theta
    )
    return gradient


@pytest.mark.parametrize("kind", ["bits", "one-hot"])
@pytest.mark.parametrize("step", [0.5, 2.0])
def test_imle_has_its_closed_form_for_multilinear_f(kind: str, step: float) -> None:
    """The closed form tends to the exact gradient as the step goes to 0."""
    case = plain(CASES[kind])

    def slopes(x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(multilinear(case.features(x), PARAMETER).sum(), x)
        return torch.stack([torch.zeros_like(slope), slope], -1) if kind == "bits" else slope

    def mean(step: float) -> Tensor:
        return perturbed_mean(case, lambda x: -step * slopes(x), -step)

    got = gradients(
        IMLE(2, step=step),
        case.theta,
        case.distribution,
        lambda x: multilinear(case.features(x), PARAMETER),
        40_000,
    )
    exact = expected(case, multilinear, PARAMETER)[1]
    assert z_score(got, mean(step)) < LIMIT
    assert z_score(got, exact) > 2 * LIMIT
    errors = [(mean(step) - exact).norm() / exact.norm() for step in (0.1, 0.01, 0.001)]
    assert errors[0] < 0.1
    assert all(after < 0.15 * before for before, after in pairwise(errors))


@pytest.mark.parametrize("slopes", [(1.5, -0.7), (-1.0, 2.0), (0.4, 0.9)])
def test_imle_has_its_closed_form_for_one_bit(slopes: tuple[float, float]) -> None:
    """f' differs at 0 and 1: the bias remains as the step goes to 0."""
    logit, n = torch.tensor([0.6], dtype=torch.float64), 100_000
    at_zero, at_one = slopes

    def f(x: Tensor) -> Tensor:
        return (at_zero * x + (at_one - at_zero) * x.square() / 2).sum(-1)

    def above(threshold: float) -> Tensor:
        return (logit - threshold).sigmoid()

    def mean(step: float) -> Tensor:
        stays = above(max(0.0, step * at_one))
        comes = (above(step * at_zero) - above(0.0)).clamp(min=0)
        return (above(0.0) - stays - comes) / step

    p = logit.sigmoid()
    got = gradients(IMLE(step=1.3), logit, lambda t: bits(t), f, n)
    assert z_score(got, mean(1.3)) < LIMIT
    limit = p * (1 - p) * (max(at_one, 0.0) + min(at_zero, 0.0))
    torch.testing.assert_close(mean(1e-6), limit, rtol=1e-4, atol=1e-6)
    assert (limit - p * (1 - p) * (at_zero + at_one) / 2).abs() > 0.04


@pytest.mark.parametrize(
    "name", ["bits", "bits by probs", "one-hot", "masked", "mixed cardinalities"]
)
@pytest.mark.parametrize("epsilon", [1.0, -2.0])
def test_direct_optimisation_has_its_closed_form(name: str, epsilon: float) -> None:
    """It is biased, and less so as epsilon goes to 0 from either side."""
    case = CASES[name]
    law = view(case.distribution(case.theta))

    f = function_of(case, "network")

    def table(x: Tensor) -> Tensor:
        index = law.index(x)
        result = torch.zeros(*index.shape, law.k, dtype=torch.float64)
        for i, k in product(range(law.d), range(law.k)):
            moved = index.clone()
            moved[..., i] = min(k, law.cardinalities[i] - 1)
            result[..., i, k] = f(law.point(moved))
        return result

    def mean(epsilon: float) -> Tensor:
        return perturbed_mean(case, lambda x: epsilon * table(x), epsilon)

    got = gradients(
        DirectOptimisation(2, epsilon=epsilon), case.theta, case.distribution, f, 20_000
    )
    exact = expected(case, FUNCTIONS["network"], PARAMETER)[1]
    assert z_score(got, mean(epsilon)) < LIMIT
    assert z_score(got, exact) > 2 * LIMIT
    for sign in (1, -1):
        sizes = (0.1, 0.01, 0.001)
        errors = [(mean(sign * size) - exact).norm() / exact.norm() for size in sizes]
        assert all(after < 0.15 * before for before, after in pairwise(errors))


@pytest.mark.parametrize("tau", [1.0, 0.4])
def test_gumbel_rao_of_bits_is_that_of_a_softmax(tau: float) -> None:
    """Two categories need no softmax; a temperature that is learned takes the general path."""
    noise = torch.rand(3, 4, 2, 5, 2, dtype=torch.float64, generator=seeded())
    noise[0, 0, 0, 0] = 0.0
    theta = torch.randn(2, 5, dtype=torch.float64, generator=seeded()).requires_grad_()
    q = bits(theta)
    x = (torch.rand(4, 2, 5, generator=seeded(1)) < 0.5).double()
    gradients = []
    tensor = torch.tensor(tau, dtype=torch.float64)
    for temperature in (tau, tensor, tensor.clone().requires_grad_()):
        E = GumbelRao(4, noise_samples=3, temperature=temperature)
        value = E(lambda x: (x @ torch.arange(5.0).double()).sin(), q, x=x, noise=noise)
        gradients.append(torch.autograd.grad(value.sum(), theta)[0])
    for gradient in gradients[:2]:
        torch.testing.assert_close(gradient, gradients[2], rtol=0, atol=1e-12)


def test_noise_of_gumbel_rao_in_parts_is_that_of_one_call() -> None:
    theta = torch.randn(300, 200, dtype=torch.float64, generator=seeded()).requires_grad_()
    q = bits(theta)
    x = (torch.rand(5, 300, 200, generator=seeded(1)) < 0.5).double()
    noise = torch.rand(2, 5, 300, 200, 2, dtype=torch.float64, generator=seeded(2))
    whole, parts = (
        GumbelRao(5, noise_samples=2)(lambda x: x.square().mean(-1), q, x=x, **randomness)
        for randomness in ({"noise": noise}, {"generator": seeded(2)})
    )
    assert_same(parts, whole, theta, rtol=0, atol=0)
