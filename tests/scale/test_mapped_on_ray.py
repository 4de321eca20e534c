"""f on a local Ray cluster, by the executor of docs/black_box.md. Run by `make test-scale`."""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest
import torch

from catlog.functions import Mapped

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """A cluster of two workers, which can import this module."""
    folders = (*Path(__file__).parents[:2], os.environ.get("PYTHONPATH", ""))
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, folders))
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()


class RayExecutor(Executor):
    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:  # type: ignore[override]
        future: Future[Any] = ray.remote(function).remote(*arguments).future()
        return future


def square(point: Any) -> float:
    if point.max() == 3:
        raise ZeroDivisionError("three")
    if point.max() == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return float(point.sum()) ** 2


def test_a_function_runs_on_ray() -> None:
    f = Mapped(square, RayExecutor())
    x = torch.tensor([[1, 2], [0, 0], [2, 2], [0, 1]])
    assert f(x).tolist() == [9.0, 0.0, 16.0, 1.0]
    x[2, 1] = 3
    with pytest.raises(RuntimeError, match=r"row \(2,\), where x = \[2, 3\]: ZeroDivisionError"):
        f(x)
    x[2, 1] = 5
    with pytest.raises(ray.exceptions.WorkerCrashedError):
        f(x)
    x[2, 1] = 0
    assert f(x).tolist() == [9.0, 0.0, 4.0, 1.0]
