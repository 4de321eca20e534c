"""CritiCateR's regressions: all routes agree, and agree with a plain solution."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from catlog import CritiCateR
from catlog.estimators.ridge import ByCategories, ByDraws, OneFit, regression
from catlog.testing import CASES, FUNCTIONS, PARAMETER, expected, outcomes
from catlog.testing.cases import normals, seeded
from support.laws import integers

BLOCKS = ((2,), (0, 1), (3,))  # not in the order of the variables
FOLDS, BATCH, N, K = 3, 4, 20, 3
INDEX = torch.randint(K, (BATCH, N, 4), generator=seeded())
POINTS = one_hot(INDEX, K).double()


def training(n: int, folds: int) -> Tensor:
    """Return 1 where a draw is fitted in a fold, and 0 where it is held out."""
    return (torch.arange(n) % folds != torch.arange(folds)[:, None]).double().unsqueeze(1)


TRAIN = training(N, FOLDS)
TARGET = TRAIN * normals(FOLDS, BATCH, N, seed=1)


@pytest.mark.parametrize("folds", [2, 3, 8, 20])
@pytest.mark.parametrize("blocks", [BLOCKS, ((0, 1, 2, 3),), ((3,), (2,), (1,), (0,))])
@pytest.mark.parametrize("other", [ByCategories, OneFit])
def test_the_routes_agree_on_every_prefix(
    other: type[ByCategories | OneFit], blocks: tuple[tuple[int, ...], ...], folds: int
) -> None:
    """With blocks of more and of fewer categories than a fold holds out, and uneven folds."""
    train = training(N, folds)
    target = train * normals(folds, BATCH, N, seed=folds)
    routes = [route(POINTS, train, blocks, 0.7) for route in (ByDraws, other)]
    for _ in blocks:
        assert_close(*(route.fit(target) for route in routes), rtol=0, atol=1e-12)
        for route in routes:
            route.drop()


def test_one_fit_of_many_blocks_is_as_precise_as_the_first() -> None:
    """Rounding errors do not grow over 60 updates."""
    index = torch.randint(2, (2, 30, 60), generator=seeded(2))
    points, blocks = one_hot(index, 2).double(), tuple((i,) for i in range(60))
    train = training(30, 5)
    target = train * torch.linspace(-1, 2, 300, dtype=torch.float64).cos().view(5, 2, 30)
    model = OneFit(points, train, blocks, 3.0)
    for last in range(59, -1, -1):
        if last % 13 == 0:
            plain = ByDraws(points, train, blocks[: last + 1], 3.0)
            plain.agreement = plain._agreement(slice(0, last + 1))
            assert_close(model.fit(target), plain.fit(target), rtol=0, atol=1e-12)
        model.drop()


def test_a_plain_solution_agrees() -> None:
    """Fold 1, element 2, two blocks: normal equations with all training draws, or without one."""
    features = POINTS[2][:, [2, 0, 1]].flatten(-2)
    is_fitted = TRAIN[1, 0] > 0
    rows = is_fitted.nonzero()[:, 0]

    def solve(rows: torch.Tensor) -> torch.Tensor:
        z = features[rows]
        return torch.linalg.solve(
            z.mT @ z + 0.7 * torch.eye(9, dtype=torch.float64), z.mT @ TARGET[1, 2, rows]
        )

    model = ByDraws(POINTS, TRAIN, BLOCKS, 0.7)
    model.drop()
    predicted, left_out, table = model.fit(TARGET)
    assert_close(predicted[1, 2], features @ solve(rows))
    assert_close(table[1, 2].flatten(), solve(rows)[3:])
    for row in rows:
        assert_close(left_out[1, 2, row], features[row] @ solve(rows[rows != row]))
    assert not left_out[1, 2, ~is_fitted].any()


def test_the_cheaper_route_is_taken() -> None:
    assert isinstance(regression(POINTS, TRAIN, BLOCKS, 1.0), ByCategories)
    assert isinstance(regression(POINTS[:, :6], TRAIN[..., :6], BLOCKS, 1.0), ByDraws)
    points, chain = POINTS.repeat(1, 1, 5, 1), tuple((i,) for i in range(20))
    assert isinstance(regression(points, TRAIN, chain, 1.0), OneFit)
    # Where rounding errors of the held-out points would enter the fit, every fold has its own.
    assert not isinstance(regression(points, TRAIN, chain, 1e-6), OneFit)


@pytest.mark.parametrize("ridge", [1e-5, 1e-6, 1e-8, 1e-20])
@pytest.mark.parametrize("real", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("d", "k", "n"), [(3, 2, 16), (10, 3, 16), (3, 2, 200), (50, 10, 32), (1, 2, 16)]
)
def test_small_penalties_give_finite_gradients(
    d: int, k: int, n: int, real: torch.dtype, ridge: float
) -> None:
    """Also where all draws are the same point."""
    logits = torch.randn(3, d, k, generator=seeded()).to(real)
    logits = torch.stack([0 * logits, logits, 30 * logits]).requires_grad_()
    q = integers(logits)
    value = CritiCateR(n, ridge=ridge)(lambda x: 100 * x.to(real).sum(-1).sin() + 1000, q)
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    assert bool(gradient.isfinite().all())
    assert bool((gradient.abs() < 1000).all())


@pytest.mark.parametrize("route", [ByDraws, ByCategories])
@pytest.mark.parametrize("ridge", [1e-6, 1e-20])
def test_small_penalties_in_float32_fit_as_in_float64(
    route: type[ByDraws | ByCategories], ridge: float
) -> None:
    """The features explain the target."""
    target = TRAIN * (POINTS.flatten(-2) @ torch.linspace(-1, 1, 12, dtype=torch.float64))
    wanted = ByDraws(POINTS, TRAIN, BLOCKS, 1e-9).fit(target)[0]
    predicted = route(POINTS.float(), TRAIN.float(), BLOCKS, ridge).fit(target.float())[0]
    assert_close(predicted.double(), wanted, rtol=0, atol=1e-2)


@pytest.mark.parametrize("name", ["bits", "integers", "one integer"])
def test_small_penalties_in_float32_are_unbiased(name: str) -> None:
    case = CASES[name]
    case = replace(case, theta=case.theta.float().double())
    x, weight = outcomes(case, 3)
    wide, narrow = (x.dtype, torch.float32) if x.is_floating_point() else (x.dtype, x.dtype)
    for ridge in (1e-6, 1e-20):
        theta = case.theta.float().requires_grad_()
        q = case.distribution(theta.expand(x.shape[1], *theta.shape))
        E = CritiCateR(3, folds=3, ridge=ridge)
        value = E(lambda x: case.function("sine")(x.to(wide)).float(), q, x=x.to(narrow))
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
        for route in (ByDraws, ByCategories, OneFit):
            model = route(POINTS, TRAIN, BLOCKS, 0.7)
            for _ in BLOCKS:
                model.fit(TARGET)
                model.drop()
    words = ("linalg", "chol", "solve", "inv")
    algebra = {name for name in called if any(word in name for word in words)}
    assert algebra == {"linalg_cholesky_ex", "linalg_solve_triangular"}
