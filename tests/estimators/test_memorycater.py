"""MemoryCateR: unbiased whatever it remembers, and a memory of the last points."""

import pytest
import torch
from torch import Tensor

import catlog
from catlog.estimators import MemoryCateR
from catlog.testing import CASES, FUNCTIONS, PARAMETER, Case, expectation, expected
from catlog.testing.cases import seeded
from support.gradients import assert_same
from support.laws import bits, integers


def random_state(size: int, generator: torch.Generator) -> MemoryCateR:
    """Return a frozen estimator with random buffers, among them points that q cannot draw."""
    E = MemoryCateR(2, size=size, max_variables=3).eval()
    E.points.copy_(torch.randint(-1, 4, E.points.shape, generator=generator))
    E.weight.copy_(torch.randn(E.weight.shape, generator=generator))
    E.rho.copy_(torch.rand(E.rho.shape, generator=generator))
    root = torch.randn(2, 2, generator=generator, dtype=torch.float64)
    E.gram.copy_(root @ root.T)
    E.excess.copy_(-E.gram @ torch.rand(2, generator=generator, dtype=torch.float64))
    return E


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_unbiased_in_any_state(case: Case) -> None:
    for seed, f in enumerate(FUNCTIONS.values()):
        E = random_state(3 + seed, seeded(seed))
        assert ((E.coefficients() > 0.01) & (E.coefficients() < 1)).all()
        got, exact = expectation(E, case, f, PARAMETER), expected(case, f, PARAMETER)
        torch.testing.assert_close(got, exact, rtol=1e-12, atol=1e-12)


def test_no_variance_where_all_points_are_remembered() -> None:
    """Of the gradient and of the value, even for parity."""
    logits = torch.tensor([0.4, -0.3, 0.9, 0.1], dtype=torch.float64)
    E = MemoryCateR(40, size=16)
    torch.manual_seed(0)

    def f(x: Tensor) -> Tensor:
        return 3 + (1 - 2 * x).prod(-1) + x[..., 0]

    for _ in range(300):
        E(f, bits(logits))
    assert (E.age > 0).all()
    leaf = logits.expand(50, 4).clone().requires_grad_()
    value, exact = E.eval()(f, bits(leaf)), catlog.Exact()(f, bits(leaf))
    assert_same(value, exact, leaf, rtol=0, atol=1e-3)


def test_predicts_pairs_at_points_that_it_has_not_seen() -> None:
    """From 256 of a million points of 20 bits it learns main effects and pairs."""
    generator = seeded()
    a = torch.randn(20, 20, dtype=torch.float64, generator=generator) * (
        torch.rand(20, 20, generator=generator) < 0.1
    )
    b = torch.randn(20, dtype=torch.float64, generator=generator)
    logits = torch.zeros(20, dtype=torch.float64)

    def f(x: Tensor) -> Tensor:
        return ((x @ a) * x).sum(-1) + x @ b

    E = MemoryCateR(40)
    for _ in range(30):
        E(f, bits(logits), generator=generator)
    variances = []
    for estimator in (E.eval(), catlog.RLOO(40)):
        leaf = logits.expand(200, 20).clone().requires_grad_()
        estimator(f, bits(leaf), generator=generator).sum().backward()
        variances.append(leaf.grad.var(0).sum())
    assert variances[0] < 0.1 * variances[1]


def test_a_critic_that_predicts_nothing_is_left_out() -> None:
    """Where f is noise, memory does not help, and RLOO remains."""
    generator, q = seeded(), bits(torch.zeros(4, dtype=torch.float64))
    E = MemoryCateR(16, size=32)

    def noise(x: Tensor) -> Tensor:
        return torch.randn(x.shape[:-1], dtype=torch.float64, generator=generator)

    for _ in range(100):
        E(noise, q, generator=generator)
    assert (E.coefficients() < 0.35).all()


def test_one_critic_per_batch_element() -> None:
    logits = torch.zeros(2, 3, dtype=torch.float64)
    scale = torch.tensor([1.0, -5.0], dtype=torch.float64)

    def f(x: Tensor) -> Tensor:
        return x.sum(-1).exp() * scale

    def trained_variance(critics: int) -> Tensor:
        E, generator = MemoryCateR(30, size=8, critics=critics), seeded()
        for _ in range(40):
            E(f, bits(logits), generator=generator)
        leaf = logits.expand(50, 2, 3).clone().requires_grad_()
        value = E.eval()(f, bits(leaf), generator=generator)
        return torch.autograd.grad(value.sum(), leaf)[0].var(0).sum()

    assert trained_variance(2) < 1e-4 * trained_variance(1)


def test_the_least_recent_point_is_forgotten() -> None:
    """A known point keeps its place, and a repeated one takes no second place."""
    E = MemoryCateR(2, size=4)

    def remembered(*draws: tuple[int, int]) -> set[tuple[int, ...]]:
        E(lambda x: x.double().sum(-1), integers(torch.zeros(2, 7)), x=torch.tensor(draws))
        return {tuple(point) for point in E.points[E.age > 0][:, :2].tolist()}

    assert remembered((0, 1), (1, 1)) == {(0, 1), (1, 1)}
    assert remembered((2, 0), (3, 0)) == {(0, 1), (1, 1), (2, 0), (3, 0)}
    assert remembered((0, 1), (5, 5)) == {(0, 1), (5, 5), (2, 0), (3, 0)}
    assert remembered((6, 6), (6, 6)) == {(0, 1), (5, 5), (6, 6), (3, 0)}
    many = {(k, k) for k in range(7)}
    assert len(remembered(*many) & many) == 4


def test_a_call_learns_for_later_calls_only() -> None:
    """Learning does not change the estimate of the same call; it changes that of the next one."""
    E, case = random_state(6, seeded()), CASES["one-hot"]
    x = case.points[torch.tensor([[0, 4], [7, 2]])]

    def estimate(E: MemoryCateR) -> Tensor:
        theta = case.theta.expand(2, *case.theta.shape).clone().requires_grad_()
        value = E(case.function("sine"), case.distribution(theta), x=x)
        return torch.cat([value.detach(), torch.autograd.grad(value.sum(), theta)[0].flatten()])

    frozen, learning = estimate(E.eval()), estimate(E.train())
    assert torch.equal(frozen, learning)
    assert not torch.allclose(frozen, estimate(E))
