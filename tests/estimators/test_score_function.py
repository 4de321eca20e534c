"""Baselines of score-function estimators: identities between them, and textbook forms."""

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor, nn

import catlog
from catlog import RLOO
from catlog.estimators import BBVI, NVIL, RODEO, DoubleCV, MovingAverageBaseline
from catlog.testing import CASES, FUNCTIONS, PARAMETER, Case, expected, outcomes
from support.enumerated import function_of, gradients, network, variances

BITS, ONE_HOT = CASES["bits"], CASES["one-hot"]


def same_gradients(A: catlog.Estimator, B: catlog.Estimator, case: Case) -> None:
    of_a, of_b = (gradients(E, case, function_of(case))[0] for E in (A, B))
    torch.testing.assert_close(of_a, of_b, rtol=0, atol=1e-12)


def test_rloo_is_a_special_case() -> None:
    fair = Case(
        "bits", torch.zeros(3, dtype=torch.float64), BITS.distribution, BITS.points, BITS.features
    )
    for case in (BITS, ONE_HOT):
        same_gradients(BBVI(2), RLOO(2), case)
        same_gradients(DoubleCV(3), RLOO(3), case)
    same_gradients(BBVI(3), RLOO(3), fair)
    same_gradients(RODEO(3), RLOO(3), BITS)


@pytest.mark.parametrize("case", [BITS, ONE_HOT], ids=["bits", "one-hot"])
def test_bbvi_is_the_textbook_s(case: Case) -> None:
    got, _ = gradients(BBVI(3), case, function_of(case))
    x, _ = outcomes(case, 3)
    score = x - (case.theta.sigmoid() if case is BITS else case.theta.softmax(-1))
    value = function_of(case)(x).view(*x.shape[:2], *[1] * (x.dim() - 2))
    wanted = torch.zeros_like(got)
    for n, m, k in ((0, 1, 2), (1, 0, 2), (2, 0, 1)):
        a = (value[m] * score[m] ** 2 + value[k] * score[k] ** 2) / (score[m] ** 2 + score[k] ** 2)
        wanted = wanted + (value[n] - a) * score[n] / 3
    if case is ONE_HOT:
        wanted = wanted - wanted.mean(-1, keepdim=True)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


def test_a_coefficient_of_the_same_draws_is_biased() -> None:
    """BBVI's docstring warns of this; the exact coefficient has the least variance."""
    x, weight = outcomes(BITS, 3)
    score = x - BITS.theta.sigmoid()
    value = function_of(BITS)(x).unsqueeze(-1)
    same = (value * score**2).sum(0) / (score**2).sum(0)
    exact = expected(BITS, FUNCTIONS["sine"], PARAMETER)[1]
    got = (weight.unsqueeze(-1) * ((value - same) * score).mean(0)).sum(0)
    assert (got - exact).norm() > 0.05 * exact.norm()

    x, weight = outcomes(BITS, 1)
    score, value = (x - BITS.theta.sigmoid())[0], function_of(BITS)(x)[0].unsqueeze(-1)
    mean_square = weight.unsqueeze(-1) * score**2
    best = (mean_square * value).sum(0) / mean_square.sum(0)

    def variance(coefficient: Tensor) -> Tensor:
        return variances((value - coefficient) * score, weight).sum()

    for step in (-0.1, 0.1):
        assert variance(best + step) > variance(best)


@pytest.mark.parametrize(
    "make",
    [lambda: BBVI(2), lambda: NVIL(2), lambda: NVIL(1, network=network(2))],
    ids=["BBVI", "NVIL", "network"],
)
def test_unbiased_for_a_markov_chain(make: Callable[[], catlog.Estimator]) -> None:
    E = make()
    needs_context = getattr(E, "network", None) is not None
    options = {"context": torch.tensor([0.3, -0.7])} if needs_context else {}
    theta = torch.linspace(-1, 1, 6, dtype=torch.float64).requires_grad_()
    q = catlog.distributions.MarkovChain(theta[:2], theta[2:].view(2, 2), length=3)

    def f(x: Tensor) -> Tensor:
        return (x.double() @ theta.new_tensor([1.0, -2.0, 0.7]) + 0.3).sin() * (1 + x[..., 0])

    points = torch.tensor(list(product(range(2), repeat=3)))
    probability = q.log_prob(points).exp()
    wanted = (probability * f(points)).sum()
    got = torch.zeros((), dtype=torch.float64)
    for choice in product(range(8), repeat=E.samples):
        x = points[list(choice)]
        got = got + probability[list(choice)].prod().detach() * E(f, q, x=x, **options)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)
    slopes = [torch.autograd.grad(v, theta, retain_graph=True)[0] for v in (got, wanted)]
    torch.testing.assert_close(*slopes)
    if needs_context:
        with pytest.raises(ValueError, match="context: NVIL's network needs"):
            E(f, q)


def test_vargrad_is_rloo_on_an_elbo() -> None:
    """VarGrad: half the sample variance of log q - log p, differentiated at fixed draws."""
    theta = BITS.theta.clone().requires_grad_()
    q, p = (
        BITS.distribution(theta),
        BITS.distribution(torch.tensor([0.4, -1.0, 0.2], dtype=torch.float64)),
    )
    x = q.sample((5,))
    (wanted,) = torch.autograd.grad((q.log_prob(x) - p.log_prob(x)).var(0) / 2, theta)
    (got,) = torch.autograd.grad(
        RLOO(5)(lambda x: q.log_prob(x).detach() - p.log_prob(x), q, x=x), theta
    )
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)
    (both,) = torch.autograd.grad(RLOO(5)(lambda x: q.log_prob(x) - p.log_prob(x), q, x=x), theta)
    (score,) = torch.autograd.grad(q.log_prob(x).mean(), theta)
    torch.testing.assert_close(both - got, score, rtol=0, atol=1e-12)  # its mean is zero


def test_nvil_uses_the_context() -> None:
    """A baseline that knows the level of every expectation leaves no noise."""
    level = torch.tensor([[-5.0], [0.0], [5.0]], dtype=torch.float64)
    identity = nn.Linear(1, 1).double()
    nn.init.ones_(identity.weight)
    nn.init.zeros_(identity.bias)
    theta = BITS.theta.expand(3, 3).clone().requires_grad_()
    value = NVIL(1, network=identity)(
        lambda x: x[..., 0] * 0 + level.squeeze(-1), BITS.distribution(theta), context=level
    )
    assert torch.autograd.grad(value.sum(), theta)[0].abs().max() < 1e-12
    infinite = BITS.distribution(torch.tensor([torch.inf, 0.0, 1.0], dtype=torch.float64))
    assert torch.isfinite(NVIL(1, network=network(3))(function_of(BITS), infinite))


def test_the_moving_average_weighs_earlier_calls_by_the_decay() -> None:
    baseline = MovingAverageBaseline(decay=0.8).double()
    for value in (4.0, 8.0):
        baseline(torch.tensor([value], dtype=torch.float64))
    wanted = (0.8 * 4.0 + 8.0) / 1.8
    assert baseline(torch.zeros(1)).item() == pytest.approx(wanted, rel=1e-12)
