"""VIMCO is unbiased for the importance-weighted bound."""

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Independent

import catlog
from catlog.estimators import VIMCO
from catlog.testing import CASES, FUNCTIONS, PARAMETER, Case, outcomes
from support.gradients import assert_same
from support.more_cases import MORE_CATEGORIES

ALL_CASES = CASES | MORE_CATEGORIES


def f_of_bits(x: Tensor) -> Tensor:
    return (x.double() * torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)).sum(-1).sin()


LOG_WEIGHTS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    **{name: lambda z, c, log_q, f=f: f(z, c) for name, f in FUNCTIONS.items()},
    "with log q": lambda z, c, log_q: FUNCTIONS["sine"](z, c) - log_q,
}


@pytest.mark.parametrize("case", ALL_CASES.values(), ids=ALL_CASES.keys())
@pytest.mark.parametrize("n", [2, 3])
def test_unbiased_for_the_bound(n: int, case: Case) -> None:
    """By enumeration: value and gradients of E[log mean w], also where w depends on q."""
    x, weight = outcomes(case, n)
    for log_weight in LOG_WEIGHTS.values():
        theta, c = case.theta.clone().requires_grad_(), PARAMETER.clone().requires_grad_()
        q = case.distribution(theta.expand(len(weight), *theta.shape))

        def log_w(x: Tensor, q=q, c=c, log_weight=log_weight) -> Tensor:
            return log_weight(case.features(x), c, q.log_prob(x))

        bound = log_w(x).exp().mean(0).log()
        exact = (q.log_prob(x).sum(0).exp() * bound).sum()
        got = (weight * VIMCO(n)(log_w, q, x=x)).sum()
        assert_same(got, exact, [theta, c], rtol=0, atol=1e-12)
        mean = (weight * log_w(x).mean(0)).sum()
        assert exact > mean + 1e-3 or log_weight is LOG_WEIGHTS["with log q"]


def test_unbiased_for_a_markov_chain() -> None:
    theta = torch.tensor(
        [[0.3, -0.5], [0.9, 0.1], [-0.7, 0.4]], dtype=torch.float64, requires_grad=True
    )
    q = catlog.distributions.MarkovChain(theta[0], theta[1:], length=3)
    points = torch.tensor(list(product(range(2), repeat=3)))
    got = exact = torch.zeros((), dtype=torch.float64)
    for a, b in product(points, points):
        x = torch.stack([a, b])
        probability = q.log_prob(x).sum().exp()
        exact = exact + probability * (f_of_bits(x) - q.log_prob(x)).exp().mean().log()
        got = got + probability.detach() * VIMCO(2)(lambda x: f_of_bits(x) - q.log_prob(x), q, x=x)
    assert_same(got, exact, theta, rtol=0, atol=1e-12)


def test_a_baseline_that_depends_on_the_draw_is_caught() -> None:
    case, f = CASES["bits"], FUNCTIONS["sine"]
    theta = case.theta.clone().requires_grad_()
    x, weight = outcomes(case, 2)
    q = case.distribution(theta.expand(len(weight), *theta.shape))
    fx = f(case.features(x), PARAMETER)
    bound = fx.logsumexp(0)
    exact, *_ = torch.autograd.grad(
        (q.log_prob(x).sum(0).exp() * bound).sum(), theta, retain_graph=True
    )
    wrong, *_ = torch.autograd.grad(
        (weight * ((bound - fx.mean(0)) * q.log_prob(x)).sum(0)).sum(), theta
    )
    assert (wrong - exact).norm() > 0.01 * exact.norm()


def test_wrong_arguments_are_named() -> None:
    q = Independent(Bernoulli(logits=torch.zeros(3)), 1)
    with pytest.raises(
        ValueError, match=r"VIMCO: `samples` must be at least 2, but 1 was given.*use Reinforce"
    ):
        VIMCO(samples=1)
    with pytest.raises(ValueError, match=r"VIMCO: `x.shape\[0\]` must be at least 2"):
        VIMCO()(f_of_bits, q, x=torch.zeros(1, 3))
