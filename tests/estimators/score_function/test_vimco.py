"""Estimators with coupled draws, judged without sampling error; and the multi-sample bound.

Their noise is continuous, but the draws are constant, and the estimates constant or linear, on finitely many cells of it: the
pieces of a segment (a uniform) or of a triangle (a Dirichlet vector of three). So the integral over a cell is its size times
the estimate at its centre, and E[estimate] is a finite sum.
"""

from collections.abc import Callable
from itertools import pairwise, permutations, product
from math import prod

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Independent, OneHotCategorical
from torch.nn.functional import one_hot

import catlog
from catlog import ARM, ARMS, ARSM, CARMS, VIMCO, DisARM, DisARMTree
from catlog.distributions.factors import factors
from catlog.estimators.coupled_draws.carms import _sticks, _weights
from catlog.estimators.coupled_draws.coupling import pair_probability
from catlog.testing.enumeration import Case, cases, expected, functions, outcomes

FUNCTIONS = functions()
PARAMETER = torch.tensor([0.7, -0.4, 1.1, 0.3, -0.9, 0.5], dtype=torch.float64)
MIX = torch.randn(8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
CASES = {case.name: case for case in cases()}
CASES["one integer of five"] = Case(
    "one integer of five",
    torch.tensor([0.3, -1.2, 0.8, 0.1, -0.4], dtype=torch.float64),
    lambda t: Categorical(logits=t),
    torch.arange(5),
    lambda x: one_hot(x, 6).double(),
)
CASES["integers of four"] = Case(
    "integers of four",
    torch.tensor([[0.3, -1.2, 0.8, 0.1], [1.5, -0.5, 0.0, 0.6]], dtype=torch.float64),
    lambda t: Independent(Categorical(logits=t), 1),
    torch.tensor(list(product(range(4), repeat=2))),
    lambda x: one_hot(x, 4).flatten(-2).double() @ MIX,
)
def f_of_bits(x: Tensor) -> Tensor:
    return (x.double() * torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)).sum(-1).sin()


LOG_WEIGHTS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    **{name: lambda z, c, log_q, f=f: f(z, c) for name, f in FUNCTIONS.items()},
    "with log q": lambda z, c, log_q: FUNCTIONS["sine"](z, c) - log_q,
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("n", [2, 3])
def test_vimco_is_unbiased_for_the_bound(n: int, case: Case) -> None:
    """By enumeration of all draws: value and gradients of E[log mean w], also where w depends on q's parameters."""
    x, weight = outcomes(case, n)
    for log_weight in LOG_WEIGHTS.values():
        theta, c = case.theta.clone().requires_grad_(), PARAMETER.clone().requires_grad_()
        q = case.law(theta.expand(len(weight), *theta.shape))

        def log_w(x: Tensor, q=q, c=c, log_weight=log_weight) -> Tensor:  # type: ignore[no-untyped-def]
            return log_weight(case.features(x), c, q.log_prob(x))

        bound = log_w(x).exp().mean(0).log()
        exact = (q.log_prob(x).sum(0).exp() * bound).sum()
        got = (weight * VIMCO(n)(log_w, q, x=x)).sum()
        results = [
            [each.detach(), *torch.autograd.grad(each, [theta, c], retain_graph=True)]
            for each in (got, exact)
        ]
        torch.testing.assert_close(*results, rtol=0, atol=1e-12)
        mean = (weight * log_w(x).mean(0)).sum()
        assert exact > mean + 1e-3 or log_weight is LOG_WEIGHTS["with log q"]


def test_vimco_of_a_chain() -> None:
    theta = torch.tensor(
        [[0.3, -0.5], [0.9, 0.1], [-0.7, 0.4]], dtype=torch.float64, requires_grad=True
    )
    q = catlog.MarkovChain(theta[0], theta[1:], length=3)
    points = torch.tensor(list(product(range(2), repeat=3)))
    got = exact = torch.zeros((), dtype=torch.float64)
    for a, b in product(points, points):
        x = torch.stack([a, b])
        probability = q.log_prob(x).sum().exp()
        exact = exact + probability * (f_of_bits(x) - q.log_prob(x)).exp().mean().log()
        got = got + probability.detach() * VIMCO(2)(lambda x: f_of_bits(x) - q.log_prob(x), q, x=x)
    torch.testing.assert_close(got, exact, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        *(torch.autograd.grad(each, theta)[0] for each in (got, exact)), rtol=0, atol=1e-12
    )


def test_a_planted_bug_in_vimco_is_caught() -> None:
    """A baseline that saw its own draw."""
    case, f = CASES["bits"], FUNCTIONS["sine"]
    theta = case.theta.clone().requires_grad_()
    x, weight = outcomes(case, 2)
    q = case.law(theta.expand(len(weight), *theta.shape))
    fx = f(case.features(x), PARAMETER)
    bound = fx.logsumexp(0)
    exact, *_ = torch.autograd.grad(
        (q.log_prob(x).sum(0).exp() * bound).sum(), theta, retain_graph=True
    )
    wrong, *_ = torch.autograd.grad(
        (weight * ((bound - fx.mean(0)) * q.log_prob(x)).sum(0)).sum(), theta
    )
    assert (wrong - exact).norm() > 0.01 * exact.norm()
