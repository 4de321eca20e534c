"""A function on a local Ray cluster of two workers. Run by `make test-scale`."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from catlog.functions import Pool, RowError

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """A cluster of two workers, which can import this module."""
    folders = (*Path(__file__).parents[:2], os.environ.get("PYTHONPATH", ""))
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, folders))
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()


def square(point: Any) -> float:
    if point.max() == 3:
        raise ZeroDivisionError("three")
    if point.max() == 4:
        time.sleep(100)
    if point.max() == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return float(point.sum()) ** 2


def test_a_function_runs_on_ray(tmp_path: Path) -> None:
    with Pool(square, 2, engine="ray", timeout=2.0) as pool:
        x = torch.tensor([[1, 2], [0, 0], [2, 2], [0, 1]])
        assert pool(x).tolist() == [9.0, 0.0, 16.0, 1.0]
        for kind, reason in (
            (3, "ZeroDivisionError: three"),
            (4, "timeout"),
            (5, "its worker died"),
        ):
            x[2, 1] = kind
            with pytest.raises(RowError, match=rf"row \(2,\), where x = \[2, {kind}\].*{reason}"):
                pool(x)
        x[2, 1] = 0
        assert pool(x).tolist() == [9.0, 0.0, 4.0, 1.0]
