"""MemoryCateR: unbiased whatever it remembers, and a memory of the last points."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor

import catlog
from catlog.estimators import MemoryCateR
from catlog.estimators.memorycater import (
    slots_for,
    write_slots,
)
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
@pytest.mark.parametrize("seed", range(3))
def test_unbiased_in_any_state(case: Case, seed: int) -> None:
    E = random_state(3 + seed, seeded(seed))
    assert ((E.coefficients() > 0.01) & (E.coefficients() < 1)).all()
    for f in FUNCTIONS.values():
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
    with pytest.raises(
        ValueError,
        match="MemoryCateR: `critics` must be 1 or the number of elements of the last batch",
    ):
        MemoryCateR(2, critics=3)(lambda x: x.sum(-1), bits(logits))


def test_the_least_recent_point_is_forgotten() -> None:
    points = torch.tensor([[[0, 1], [1, 1], [2, 0], [-1, -1]]])
    age = torch.tensor([[3, 1, 2, 0]])
    new = torch.tensor([[[1, 1], [5, 5], [5, 5], [6, 6]]])
    slots = slots_for(new, points, age)
    assert slots.tolist() == [[1, 3, 4, 2]]
    assert write_slots(points, slots, new).tolist() == [[[0, 1], [1, 1], [6, 6], [5, 5]]]
    assert write_slots(age, slots, torch.tensor([[7, 7, 7, 7]])).tolist() == [[3, 7, 7, 7]]


def test_memory_is_saved_and_frozen() -> None:
    E, copy = MemoryCateR(8, size=10), MemoryCateR(8, size=10)
    q = catlog.distributions.Categoricals(torch.zeros(2, 3), (3, 2))
    f = lambda x: x.double().sum(-1).sin()  # noqa: E731
    for _ in range(20):
        E(f, q)
    copy.load_state_dict(E.state_dict())
    before = deepcopy(E.state_dict())
    values = [estimator.eval()(f, q, generator=seeded()) for estimator in (E, copy)]
    assert torch.equal(*values)
    assert all(torch.equal(value, before[key]) for key, value in E.state_dict().items())
    assert int((E.age > 0).sum()) == 6  # all points of q


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


def test_more_draws_than_slots() -> None:
    E = MemoryCateR(50, size=4)
    E(lambda x: x.double().sum(-1), integers(torch.zeros(3, 2, 5)))
    points = E.points[E.age > 0].tolist()
    assert 1 <= len(points) == len({tuple(point) for point in points})
    assert all(point[2:] == [-1] * 62 for point in points)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(
        ValueError,
        match=r"MemoryCateR: `max_variables` must be at least 3, but 2 was given\. q has 3 "
        r"variables",
    ):
        MemoryCateR(2, max_variables=2)(lambda x: x.sum(-1), bits(torch.zeros(3)))
