"""An f in worker processes: the same values, and every way in which a point can fail, with a pool that goes on."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import Bernoulli, Independent

import catlog
from catlog.functions import Pool, RowError


def simulator(point: Any) -> Any:
    """Sums, or what its input asks for: 3 raises, 4 hangs, 5 gives NaN, 6 dies, 7 gives no number."""
    worst = int(point.max())
    if worst == 3:
        raise ZeroDivisionError("a singular matrix")
    if worst == 4:
        time.sleep(100)
    if worst == 5:
        return float("nan")
    if worst == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    if worst == 7:
        return "seven"
    return np.sin(point @ np.arange(1.0, len(point) + 1))


def weighed(point: Any, weight: float) -> float:
    return weight * float(simulator(point))


def once(point: Any, folder: str) -> float:
    """Hangs, dies or raises the first time it sees a point."""
    path = Path(folder) / "-".join(str(int(i)) for i in point)
    if not path.exists():
        path.touch()
        if point[0] == 2:
            time.sleep(100)
        if point[0] == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError("the licence server does not answer")
    return 1.0


def reference(x: torch.Tensor) -> torch.Tensor:
    return (x.double() @ torch.arange(1.0, x.shape[-1] + 1, dtype=torch.float64)).sin()


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(simulator, 2, timeout=2.0, dtype=torch.float64) as pool:
        pool(torch.zeros(2, 3))  # started
        yield pool


def test_estimates_equal_those_of_the_same_function_in_torch(pool: Pool) -> None:
    logits = torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    q = Independent(Bernoulli(logits=logits), 1)
    for E in (catlog.IndeCateR(2), catlog.RLOO(3), catlog.SCateR(1)):
        gradients = []
        for f in (pool, reference):
            value = E(f, q, generator=torch.Generator().manual_seed(1))
            gradients.append((value.detach(), *torch.autograd.grad(value.sum(), logits)))
        torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (3, "it raised ZeroDivisionError: a singular matrix"),
        (4, "it took longer than the timeout of 2 s"),
        (5, "it returned nan, which is not a finite number"),
        (6, r"its worker died \(exit code -9\)"),
        (7, "it raised ValueError: could not convert string to float"),
    ],
)
def test_a_failure_names_the_row_and_the_pool_survives(kind: int, reason: str, pool: Pool) -> None:
    x = torch.zeros(5, 2, 3)
    x[3, 1, 2] = kind
    with pytest.raises(RowError, match=rf"row \(3, 1\), where x = \[0\., 0\., {kind}\.\]: {reason}") as caught:
        pool(x)
    assert caught.value.row == (3, 1)
    assert caught.value.point.tolist() == [0, 0, kind]
    if kind == 3:
        assert "in simulator" in caught.value.__notes__[0]
    x[3, 1, 2] = 1
    torch.testing.assert_close(pool(x), reference(x), rtol=0, atol=1e-15)
    assert len(pool._workers) == 2


def test_rows_of_an_abandoned_call_do_not_leak_into_the_next(pool: Pool) -> None:
    """One row fails at once while the other worker hangs; the next call is right all the same."""
    x = torch.tensor([[4.0, 0.0], [3.0, 0.0]])
    with pytest.raises(RowError, match="singular"):
        pool(x)
    y = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    torch.testing.assert_close(pool(y), reference(y), rtol=0, atol=1e-15)


def test_retries(tmp_path: Path) -> None:
    x = torch.tensor([[[0, 1]], [[1, 0]], [[2, 0]], [[3, 0]]])
    with Pool(once, 2, retries=1, timeout=2.0, batch=[str(tmp_path)]) as pool:
        assert pool(x).tolist() == [[1.0], [1.0], [1.0], [1.0]]
    with Pool(simulator, 1, retries=2) as pool, pytest.raises(RowError, match=r"tried 3 times"):
        pool(torch.tensor([[5.0]]))


def test_batch_elements_have_their_own_argument() -> None:
    x = torch.tensor([[[1, 0], [0, 1]], [[1, 1], [0, 0]]])  # [2 draws, 2 batch elements, 2 variables]
    with Pool(weighed, 2, batch=[1.0, 10.0], dtype=torch.float64) as pool:
        torch.testing.assert_close(pool(x), reference(x) * torch.tensor([1.0, 10.0]), rtol=0, atol=1e-14)
        with pytest.raises(ValueError, match="3 batch elements"):
            pool(torch.zeros(2, 3, 2))


def test_what_cannot_be_sent_is_told() -> None:
    with pytest.raises(TypeError, match="import"), Pool(lambda point: 0.0, 1) as pool:
        pool(torch.zeros(1, 2))
    for settings, named in (({"workers": 0}, "workers"), ({"timeout": 0}, "timeout"), ({"engine": "threads"}, "engine")):
        with pytest.raises(ValueError, match=named):
            Pool(simulator, **settings)
