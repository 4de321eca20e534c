"""Both routes of the regressions give the same numbers, and those of a regression solved by itself."""

import torch
from torch.nn.functional import one_hot

from catlog.regression import ByCategories, ByDraws, regression

BLOCKS = ((2,), (0, 1), (3,))  # not in the order of the variables
FOLDS, BATCH, N, K = 3, 4, 20, 3
INDEX = torch.randint(K, (BATCH, N, 4), generator=torch.Generator().manual_seed(0))
POINTS = one_hot(INDEX, K).double()
HELD_OUT = torch.arange(N) % FOLDS == torch.arange(FOLDS)[:, None]
TRAIN = (~HELD_OUT).double().view(FOLDS, 1, N)
TARGET = TRAIN * torch.randn(FOLDS, BATCH, N, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_the_two_routes_agree_on_every_prefix() -> None:
    routes = [route(POINTS, TRAIN, BLOCKS, 0.7) for route in (ByDraws, ByCategories)]
    for _ in BLOCKS:
        for a, b in zip(*(route.fit(TARGET) for route in routes), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
        for route in routes:
            route.drop()


def test_against_a_plain_solution() -> None:
    """Fold 1, batch element 2, the first two blocks: normal equations on the training draws, and each left out in turn."""
    features = POINTS[2][:, [2, 0, 1]].flatten(-2)
    rows = (~HELD_OUT[1]).nonzero()[:, 0]

    def solve(rows: torch.Tensor) -> torch.Tensor:
        z = features[rows]
        return torch.linalg.solve(z.mT @ z + 0.7 * torch.eye(9, dtype=torch.float64), z.mT @ TARGET[1, 2, rows])

    model = ByDraws(POINTS, TRAIN, BLOCKS, 0.7)
    model.drop()
    predicted, left_out, table = model.fit(TARGET)
    torch.testing.assert_close(predicted[1, 2], features @ solve(rows))
    torch.testing.assert_close(table[1, 2].flatten(), solve(rows)[3:])
    for row in rows:
        torch.testing.assert_close(left_out[1, 2, row], features[row] @ solve(rows[rows != row]))
    assert not left_out[1, 2, HELD_OUT[1]].any()


def test_the_cheaper_route_is_taken() -> None:
    assert isinstance(regression(POINTS, TRAIN, BLOCKS, 1.0), ByCategories)
    assert isinstance(regression(POINTS[:, :6], TRAIN[..., :6], BLOCKS, 1.0), ByDraws)
