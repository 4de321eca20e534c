"""MemoryCateR: without variance where it remembers all points; which points it forgets.

The battery judges whether it is unbiased while it learns; what it learns: tests/frozen.
"""

import torch
from torch import Tensor

import catlog
from catlog.estimators import MemoryCateR
from support.gradients import assert_same
from support.laws import bits, integers


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
