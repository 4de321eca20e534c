"""CritiCateR's cross-fitted regressions: all ways to compute them, small penalties, float32.

There are three ways: an unknown per draw, with an inverse for every fold or for all of them, and an
unknown per category. The numbers of the first and the last are judged by tests/frozen.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from catlog import CritiCateR
from catlog.distributions import MarkovChain
from catlog.estimators import criticater, ridge
from catlog.testing import CASES, FUNCTIONS, PARAMETER, expected, outcomes
from catlog.testing.cases import normals
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


def wave(x: Tensor) -> Tensor:
    x = x.double()
    return x.sum(-1).sin() + x[..., 0] * x[..., -1] + 0.3 * x.square().sum(-1)


@pytest.mark.parametrize("penalty", [0.7, 0.02])
@pytest.mark.parametrize("size", SIZES)
def test_all_ways_agree(size: str, penalty: float, monkeypatch: pytest.MonkeyPatch) -> None:
    d, k, n, folds, is_chain = SIZES[size]
    theta = normals(d, k).requires_grad_()
    E, gradients = CritiCateR(n, folds=folds, ridge=penalty), []
    x = law(theta, is_chain).sample((n,))
    for way, few in ((ridge.ByDraws, n), (ridge.ByDraws, 0), (ridge.ByCategories, 0)):
        monkeypatch.setattr(criticater, "regression", way)
        monkeypatch.setattr(ridge, "FEW", few)
        gradients += torch.autograd.grad(E(wave, law(theta, is_chain), x=x), theta)
    assert_close(gradients[1:], gradients[:1] * 2, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("penalty", [1e-6, 1e-20])
@pytest.mark.parametrize("name", ["bits", "integers"])
def test_small_penalties_in_float32_are_unbiased(name: str, penalty: float) -> None:
    case = CASES[name]
    case = replace(case, theta=case.theta.float().double())
    x, weight = outcomes(case, 3)
    theta = case.theta.float().requires_grad_()
    q = case.distribution(theta.expand(x.shape[1], *theta.shape))
    E = CritiCateR(3, folds=3, ridge=penalty)
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
