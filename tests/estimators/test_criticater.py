"""CritiCateR's cross-fitted regressions, against plain solutions, with small penalties, in float32.

There are three ways to compute them: an unknown per draw, with an inverse for every fold or for all
of them, and an unknown per category.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import one_hot
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from catlog import CritiCateR
from catlog.distributions import MarkovChain
from catlog.testing import CASES, FUNCTIONS, PARAMETER, expected, outcomes
from catlog.testing.cases import normals, seeded
from support.laws import integers

# Variables, categories, draws, folds, and whether the variables are a chain.
SIZES = {
    "few draws": (6, 3, 8, 4, False),
    "many draws": (2, 2, 40, 8, False),
    "more variables": (20, 3, 40, 3, False),
    "a chain, few draws": (4, 3, 7, 3, True),
    "a chain, many draws": (3, 2, 40, 8, True),
    "a long chain": (20, 3, 31, 3, True),
    "a chain of many categories": (9, 8, 35, 3, True),
}


def law(theta: Tensor, is_chain: bool) -> Distribution:
    """Return independent variables, or a chain of which row i is reached from state i mod k."""
    d, k = theta.shape[-2:]
    return MarkovChain(theta[0], theta[1 : k + 1], length=d) if is_chain else integers(theta)


def log_conditionals(theta: Tensor, x: Tensor, is_chain: bool) -> Tensor:
    """Return log-probabilities [n, d, k] of every variable given the earlier ones."""
    k = theta.shape[-1]
    rows = theta.expand(len(x), *theta.shape)
    if is_chain:
        rows = torch.cat([rows[:, :1], theta[1 : k + 1][x[:, :-1]]], 1)
    return rows.log_softmax(-1)


def plain_gradient(theta: Tensor, x: Tensor, fx: Tensor, E: CritiCateR, is_chain: bool) -> Tensor:
    """Return the gradient as the docstring writes it, by one regression per fold and block."""
    n, d, k = len(x), *theta.shape[-2:]
    log_p = log_conditionals(theta, x, is_chain)
    drawn, probs = one_hot(x, k).double(), log_p.detach().exp()
    fold = torch.arange(n) % E.folds
    total = torch.zeros(())
    for number in range(E.folds):
        train, own = fold != number, fold == number
        target = fx - fx[train].mean()
        for last in reversed(range(d)) if is_chain else [d - 1]:
            z = drawn[:, : last + 1].flatten(1)
            y = target - target[train].mean()
            inverse = torch.linalg.inv(
                z[train].mT @ z[train] + E.ridge * torch.eye(z.shape[1]).double()
            )
            coefficient = inverse @ z[train].mT @ y[train]
            predicted = z @ coefficient
            leverage = (z[train] @ inverse * z[train]).sum(-1)
            left_out = (predicted[train] - leverage * y[train]) / (1 - leverage)
            spread = (left_out.square() + 1e-3 * y[train].square()).sum()
            shrink = ((left_out * y[train]).sum() / spread).clamp(0, 1)
            block = slice(last, last + 1) if is_chain else slice(0, d)
            table = shrink * coefficient.view(-1, k)[block]
            residual = (y - shrink * predicted)[own].detach()
            summed_out = (log_p[own, block].exp() * table).sum((-1, -2))
            scored = residual * (log_p[own, block] * drawn[own, block]).sum((-1, -2))
            total = total + (summed_out + scored).sum() / n
            target = target - ((drawn - probs)[:, block] * table).sum((-1, -2))
    return torch.autograd.grad(total, theta)[0]


def wave(x: Tensor) -> Tensor:
    x = x.double()
    return x.sum(-1).sin() + x[..., 0] * x[..., -1] + 0.3 * x.square().sum(-1)


@pytest.mark.parametrize("ridge", [0.7, 0.02])
@pytest.mark.parametrize("size", SIZES)
def test_plain_regressions_agree(size: str, ridge: float) -> None:
    d, k, n, folds, is_chain = SIZES[size]
    theta = normals(d, k).requires_grad_()
    q, E = law(theta, is_chain), CritiCateR(n, folds=folds, ridge=ridge)
    x = q.sample((n,))
    (got,) = torch.autograd.grad(E(wave, q, x=x), theta)
    wanted = plain_gradient(theta, x, wave(x), E, is_chain)
    assert_close(got, wanted, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(
    ("d", "k", "n"), [(3, 2, 16), (10, 3, 16), (3, 2, 200), (50, 10, 32), (1, 2, 16)]
)
def test_small_penalties_give_finite_gradients(d: int, k: int, n: int) -> None:
    """Also where all draws are the same point."""
    for real, ridge in ((torch.float32, 1e-5), (torch.float32, 1e-20), (torch.float64, 1e-20)):
        logits = normals(3, d, k).to(real)
        logits = torch.stack([0 * logits, logits, 30 * logits]).requires_grad_()
        f = lambda x, real=real: 100 * x.to(real).sum(-1).sin() + 1000  # noqa: E731
        value = CritiCateR(n, ridge=ridge)(f, integers(logits), generator=seeded())
        (gradient,) = torch.autograd.grad(value.sum(), logits)
        assert bool(gradient.isfinite().all())
        assert bool((gradient.abs() < 1000).all())


@pytest.mark.parametrize("ridge", [1e-6, 1e-20])
@pytest.mark.parametrize("name", ["bits", "integers"])
def test_small_penalties_in_float32_are_unbiased(name: str, ridge: float) -> None:
    case = CASES[name]
    case = replace(case, theta=case.theta.float().double())
    x, weight = outcomes(case, 3)
    theta = case.theta.float().requires_grad_()
    q = case.distribution(theta.expand(x.shape[1], *theta.shape))
    E = CritiCateR(3, folds=3, ridge=ridge)
    value = E(lambda points: case.function("sine")(points.to(x.dtype)).float(), q, x=x)
    (gradient,) = torch.autograd.grad((weight.float() * value).sum(), theta)
    exact = expected(case, FUNCTIONS["sine"], PARAMETER)[1]
    assert_close(gradient.double(), exact, rtol=0, atol=1e-5)


def test_only_capturable_factorisations_are_called() -> None:
    """Only two of torch's factorisations can be captured in a CUDA graph (torch 2.11)."""
    called = set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            called.add(function.overloadpacket.__name__)
            return function(*args, **(kwargs or {}))

    with Watch():
        for d, k, n, folds, is_chain in SIZES.values():
            q = law(normals(d, k).requires_grad_(), is_chain)
            CritiCateR(n, folds=folds)(wave, q).backward()
    words = ("linalg", "chol", "solve", "inv")
    algebra = {name for name in called if any(word in name for word in words)}
    assert algebra == {"linalg_cholesky_ex", "linalg_solve_triangular"}
