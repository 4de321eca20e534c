"""f on the workers of an executor: order, dtypes, noise, errors, and the estimators that use it."""

import multiprocessing
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, distributed
from torch.distributions import Bernoulli, Distribution, Independent
from torch.testing import assert_close

import catlog
from catlog.estimators import MemoryCateR
from catlog.functions import Mapped
from catlog.testing.cases import seeded
from support.gradients import assert_same

DOUBLE = torch.float64


@pytest.fixture(scope="module")
def processes() -> Iterator[Executor]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["catlog"])
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        yield executor


@pytest.fixture(scope="module")
def threads() -> Iterator[Executor]:
    with ThreadPoolExecutor(3) as executor:
        yield executor


def wave(point: Any) -> float:
    return float(np.sin(point @ np.arange(1.0, len(point) + 1)))


def reference(x: Tensor) -> Tensor:
    return (x.double() @ torch.arange(1.0, x.shape[-1] + 1, dtype=DOUBLE)).sin()


# values


ESTIMATORS = (
    catlog.IndeCateR(2),
    catlog.IndeCateR(1, variables=2, control="none"),
    catlog.RLOO(3),
    catlog.SCateR(1),
    catlog.CritiCateR(6),
    MemoryCateR(4),
)


@pytest.mark.parametrize("E", ESTIMATORS, ids=repr)
def test_estimates_equal_those_of_the_same_function_in_torch(E: Any, processes: Executor) -> None:
    logits = torch.randn(2, 1, 4, dtype=DOUBLE, generator=seeded()).requires_grad_()
    q = Independent(Bernoulli(logits=logits), 1)
    f = Mapped(wave, processes, chunk=3)
    assert_same(f_of(E, f, q), f_of(E, reference, q), logits, rtol=0, atol=1e-13)
    with torch.no_grad():
        assert_close(f_of(E, f, q), f_of(E, reference, q), rtol=0, atol=1e-13)


def f_of(E: Any, f: Any, q: Distribution) -> Tensor:
    value: Tensor = deepcopy(E)(f, q, generator=seeded(1))
    return value


def test_values_stand_in_the_order_of_the_points(threads: Executor) -> None:
    """The first rows take longest."""

    def slow(point: Any) -> float:
        time.sleep(0.02 * (5 - float(point[0])))
        return float(point[0])

    x = torch.arange(6.0).reshape(3, 2, 1)
    for chunk in (1, 2, 100):
        assert torch.equal(Mapped(slow, threads, chunk)(x), x.squeeze(-1))


def test_points_of_every_shape_and_dtype(threads: Executor) -> None:
    x = torch.tensor([[0, 1, 1], [1, 0, 2]])
    total = Mapped(np.sum, threads)
    assert_close(total(x), torch.tensor([2.0, 3.0]))
    assert_close(Mapped(np.sum, threads, dtype=DOUBLE)(x), torch.tensor([2.0, 3.0], dtype=DOUBLE))
    for dtype in (torch.bfloat16, torch.float16):
        assert_close(total(x.to(dtype)), torch.tensor([2.0, 3.0]))
    assert_close(total(x.double()), torch.tensor([2.0, 3.0], dtype=DOUBLE))
    assert_close(Mapped(np.sum, threads, event_dims=0)(x), x.float())
    assert_close(
        Mapped(np.sum, threads, event_dims=2)(x.expand(4, 1, 2, 3)), torch.full((4, 1), 5.0)
    )
    assert_close(Mapped(lambda point: point[:2] > 0, threads)(x), (x[:, :2] > 0).float())


def test_batch_elements_have_their_own_argument(threads: Executor) -> None:
    x = torch.tensor([[[1, 0], [0, 1]], [[1, 1], [0, 0]]])  # draws, batch elements, variables
    for weights in ([1.0, 10.0], torch.tensor([1.0, 10.0])):
        f = Mapped(lambda point, weight: weight * point.sum(), threads, batch=weights)
        assert f(x).tolist() == [[1.0, 10.0], [2.0, 0.0]]
        with pytest.raises(ValueError, match=r"has 2 for points with .* \(2, 3\)"):
            f(torch.zeros(2, 3, 2))


def test_outputs(threads: Executor) -> None:
    q = Independent(Bernoulli(logits=torch.zeros(3)), 1)
    f = Mapped(lambda point: point[:2], threads)
    assert catlog.RLOO(4)(f, q, outputs=1).shape == (2,)
    with pytest.raises(ValueError, match="pass outputs=1"):
        catlog.RLOO(4)(f, q)


# noise


def noise(point: Any) -> float:
    """Return a sum of numbers of all three global generators."""
    legacy = np.random.rand()  # noqa: NPY002
    return float(legacy + 2 * random.random() + 4 * torch.rand((), dtype=DOUBLE).item())


def numpys(point: Any) -> float:
    return float(np.random.rand())  # noqa: NPY002


def pythons(point: Any) -> float:
    return random.random()


def torchs(point: Any) -> float:
    return torch.rand((), dtype=DOUBLE).item()


def normal(point: Any, rng: np.random.Generator) -> float:
    return rng.normal()


def twice(f: Mapped) -> Tensor:
    """Return the values of two calls after a fixed seed."""
    torch.manual_seed(3)
    x = torch.zeros(8, 1)
    return torch.stack([f(x), f(x)])


def is_distinct(values: Tensor) -> bool:
    return len(values.unique()) == values.numel()


def test_global_generators_of_processes_are_seeded_for_every_row(processes: Executor) -> None:
    """Each of the three by a seed of its own."""
    seen = []
    for f in (numpys, pythons, torchs):
        first, second = (twice(Mapped(f, processes, chunk, dtype=DOUBLE)) for chunk in (1, 3))
        assert torch.equal(first, second)
        seen.append(first)
    assert is_distinct(torch.stack(seen))


def test_generators_of_rows_depend_neither_on_workers_nor_on_chunks(
    threads: Executor, processes: Executor
) -> None:
    mapped = partial(Mapped, normal, rng=True, dtype=DOUBLE)
    first, second = twice(mapped(threads)), twice(mapped(processes, 3))
    assert torch.equal(first, second)
    assert is_distinct(first)


def test_ranks_have_different_noise(threads: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may have the same seed and the same rows."""
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    values = []
    for rank in range(2):
        monkeypatch.setattr(distributed, "get_rank", lambda rank=rank: rank)
        values.append(twice(Mapped(normal, threads, rng=True)))
    assert is_distinct(torch.stack(values))


def test_threads_do_not_seed_the_generators_of_their_caller(threads: Executor) -> None:
    f = Mapped(noise, threads)
    torch.manual_seed(0)
    states = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    Mapped(np.sum, threads)(torch.zeros(4, 1))
    assert states == (random.getstate(), np.random.get_state()[1].tolist())  # noqa: NPY002
    assert is_distinct(f(torch.zeros(8, 1)))


# errors


def singular(point: Any) -> float:
    if point[0] == 3:
        raise ZeroDivisionError("a singular matrix")
    return float(point[0])


def test_an_error_names_the_row(threads: Executor, processes: Executor) -> None:
    x = torch.zeros(4, 2, 2)
    x[2, 1, 0] = 3
    for executor in (threads, processes):
        for chunk in (1, 3):
            with pytest.raises(
                RuntimeError, match=r"row \(2, 1\), where x = \[3\., 0\.\]: ZeroDiv.*singular"
            ) as caught:
                Mapped(singular, executor, chunk)(x)
            assert "in singular" in str(caught.value.__cause__) or executor is threads
        assert Mapped(singular, executor)(torch.ones(2, 1)).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("value", ["seven", None, [None], 1j], ids=str)
def test_values_must_be_numbers(value: object, threads: Executor) -> None:
    with pytest.raises(RuntimeError, match=r"row \(0,\).*must return numbers, but it returned"):
        Mapped(lambda point: value, threads)(torch.zeros(1, 2))


def test_values_must_have_one_shape(threads: Executor) -> None:
    f = Mapped(lambda point: point[: int(point[0])], threads)
    with pytest.raises(ValueError, match=r"one shape, but they have .*\(2,\)"):
        f(torch.tensor([[1.0, 0.0], [2.0, 0.0]]))


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_rows_that_have_not_begun_are_cancelled(kind: type[BaseException]) -> None:
    """Beside an error of f, as at Ctrl-C in the caller."""
    begun, stopped = [], threading.Event()

    def stops(point: Any) -> float:
        begun.append(point)
        if len(begun) == 2:
            stopped.wait(10)  # until the caller has seen the first row's error
            return 0.0
        raise kind

    with ThreadPoolExecutor(1) as executor:
        try:
            with pytest.raises((RuntimeError, KeyboardInterrupt)):
                Mapped(stops, executor)(torch.zeros(50, 1))
        finally:
            stopped.set()
    assert len(begun) <= 2


def test_wrong_settings_are_reported(threads: Executor) -> None:
    with pytest.raises(ValueError, match="`chunk` must be at least 1, but 0"):
        Mapped(wave, threads, 0)
    with pytest.raises(ValueError, match="`event_dims` must be at least 0, but -1"):
        Mapped(wave, threads, event_dims=-1)


# executors of other packages


def test_loky_copies_functions_without_a_module() -> None:
    loky = pytest.importorskip("joblib.externals.loky")  # joblib comes with scikit-learn
    weight = 3.0
    f = Mapped(lambda point: weight * point.sum(), loky.get_reusable_executor(1))
    assert f(torch.tensor([[1.0, 1.0], [0.0, 1.0]])).tolist() == [6.0, 3.0]
