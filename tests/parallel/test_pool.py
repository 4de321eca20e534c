"""f in worker processes: the same values, every way in which a point can fail, and recovery."""

import gc
import importlib.util
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch.distributions import Bernoulli, Independent
from torch.testing import assert_close

import catlog
from catlog.functions import Pool, RowError
from catlog.parallel import processes, serving
from catlog.testing.cases import seeded
from leftovers import MARK, leftovers, marked
from support.gradients import assert_same


def simulator(point: Any) -> Any:
    """Return a number unless x has a 3 or more.

    3: raise, 4: hang, 5: NaN, 6: die, 7: a word, 8: nothing, 9: an array, 10: exit slowly.
    """
    worst = int(point.max())
    if worst == 3:
        raise ZeroDivisionError("a singular matrix")
    if worst == 4:
        time.sleep(100)
    if worst == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    if worst == 10:
        sys.stdout = Mock(flush=lambda: time.sleep(0.3))
        sys.exit(3)
    wrong = {5: float("nan"), 7: "seven", 8: None, 9: point}
    if worst in wrong:
        return wrong[worst]
    return np.sin(point @ np.arange(1.0, len(point) + 1))


def weighed(point: Any, weight: float) -> float:
    return weight * float(simulator(point))


def once(point: Any, folder: str) -> float:
    """Hang, die or raise at the first evaluation of a point."""
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
    logits = torch.randn(2, 4, dtype=torch.float64, generator=seeded()).requires_grad_()
    q = Independent(Bernoulli(logits=logits), 1)
    for E in (catlog.IndeCateR(2), catlog.RLOO(3), catlog.SCateR(1)):
        values = [E(f, q, generator=seeded(1)) for f in (pool, reference)]
        assert_same(*values, logits, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (3, "it raised ZeroDivisionError: a singular matrix"),
        (4, "it took longer than the timeout of 2 s"),
        (5, "it returned nan, which is not a finite number"),
        (6, r"its worker died \(exit code -9\)"),
        (7, "it returned 'seven', which is not a number"),
        (8, "it returned None, which is not a number"),
        (9, r"it returned an array of shape \(3,\), which is not a number; pass outputs=1"),
        (10, r"its worker died \(exit code 3\)"),
    ],
)
def test_a_failure_names_the_row_and_the_pool_survives(kind: int, reason: str, pool: Pool) -> None:
    x = torch.zeros(5, 2, 3)
    x[3, 1, 2] = kind
    with pytest.raises(
        RowError, match=rf"row \(3, 1\), where x = \[ *0\., +0\., {kind}\.\]: {reason}"
    ) as caught:
        pool(x)
    assert caught.value.row == (3, 1)
    assert caught.value.point.tolist() == [0, 0, kind]
    if kind == 3:
        assert "in simulator" in caught.value.__notes__[0]
    x[3, 1, 2] = 1
    assert_close(pool(x), reference(x), rtol=0, atol=1e-15)
    assert len(pool._workers) == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_points_of_few_bits_have_values_of_32(dtype: torch.dtype) -> None:
    x = torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0]])
    with Pool(simulator, 1) as pool:
        values = pool(x.to(dtype))
    assert values.dtype == torch.float32
    assert_close(values, reference(x).float())


def test_rows_of_an_abandoned_call_do_not_leak_into_the_next(pool: Pool) -> None:
    """One row fails at once while the other worker hangs; the next call is right all the same."""
    x = torch.tensor([[4.0, 0.0], [3.0, 0.0]])
    with pytest.raises(RowError, match="singular"):
        pool(x)
    y = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    assert_close(pool(y), reference(y), rtol=0, atol=1e-15)


def test_retries(tmp_path: Path) -> None:
    x = torch.tensor([[[0, 1]], [[1, 0]], [[2, 0]], [[3, 0]]])
    with Pool(once, 2, retries=1, timeout=2.0, batch=[str(tmp_path)]) as pool:
        assert pool(x).tolist() == [[1.0], [1.0], [1.0], [1.0]]
    with Pool(simulator, 1, retries=2) as pool, pytest.raises(RowError, match=r"tried 3 times"):
        pool(torch.tensor([[5.0]]))


def test_batch_elements_have_their_own_argument() -> None:
    x = torch.tensor([[[1, 0], [0, 1]], [[1, 1], [0, 0]]])  # draws, batch elements, variables
    with Pool(weighed, 2, batch=[1.0, 10.0], dtype=torch.float64) as pool:
        assert_close(pool(x), reference(x) * torch.tensor([1.0, 10.0]), rtol=0, atol=1e-14)
        with pytest.raises(ValueError, match="3 batch elements"):
            pool(torch.zeros(2, 3, 2))


def test_wrong_settings_are_reported() -> None:
    for name, value in {"workers": 0, "timeout": 0, "engine": "threads"}.items():
        with pytest.raises(ValueError, match=name):
            Pool(simulator, **{name: value})
    for name, value in {"timeout": "2", "start_timeout": True, "seed": 0.5, "batch": 3}.items():
        with pytest.raises(TypeError, match=name):
            Pool(simulator, **{name: value})
    with pytest.raises(TypeError, match="`f` must be a function"):
        Pool(3)  # type: ignore[arg-type]


# threads


def test_threads_share_a_pool(pool: Pool) -> None:
    points = [torch.randint(3, (9, 4), generator=seeded(i)).double() for i in range(8)]
    with ThreadPoolExecutor(4) as threads:
        values = [threads.submit(pool, x) for x in points]
        for x, value in zip(points, values, strict=True):
            assert_close(value.result(60), reference(x), rtol=0, atol=1e-15)


def test_closed_by_another_thread() -> None:
    """Even an f that hangs without a timeout does not keep a pool from being closed."""
    pool = Pool(simulator, 1)
    pool(torch.zeros(1, 2))
    with ThreadPoolExecutor(1) as threads:
        hanging = threads.submit(pool, torch.full((1, 2), 4.0))
        while not (pool._workers and pool._workers[0].row is not None):
            time.sleep(0.01)
        pool.close()
        with pytest.raises(RuntimeError, match="it was closed before all points"):
            hanging.result(60)
    assert pool(torch.zeros(1, 2)).tolist() == [0.0]
    pool.close()


def test_a_forked_copy_has_separate_workers(pool: Pool) -> None:
    x = torch.ones(3, 2)
    expected = pool(x)
    parents = [worker.process for worker in pool._workers]
    copy = deepcopy(pool)
    pool._process = -1  # as in a forked process
    assert torch.equal(pool(x), expected)
    assert not {worker.process for worker in pool._workers} & set(parents)
    pool.close()
    with copy:
        assert torch.equal(copy(x), expected)


# random numbers


def noise(point: Any) -> float:
    """Return a sum of numbers of all three generators."""
    legacy = np.random.rand()  # noqa: NPY002
    return float(legacy + 2 * random.random() + 4 * torch.rand((), dtype=torch.float64).item())


def numpys(point: Any) -> float:
    return float(np.random.rand())  # noqa: NPY002


def pythons(point: Any) -> float:
    return random.random()


def torchs(point: Any) -> float:
    return torch.rand((), dtype=torch.float64).item()


@pytest.mark.parametrize("f", [numpys, pythons, torchs])
def test_every_evaluation_has_different_random_numbers(f: Any) -> None:
    with Pool(f, 4, dtype=torch.float64) as pool:
        values = torch.cat([pool(torch.zeros(20, 1)), pool(torch.zeros(20, 1))])
    assert len(values.unique()) == 40


def test_random_numbers_depend_on_the_seed_but_not_on_the_workers() -> None:
    x, values = torch.zeros(8, 1), []
    for workers, seed in ((1, 7), (3, 7), (3, 8)):
        with Pool(noise, workers, seed=seed, dtype=torch.float64) as pool:
            values.append(torch.stack([pool(x), pool(x)]))
    assert torch.equal(values[0], values[1])
    assert len(torch.stack(values[1:]).unique()) == 32
    torch.manual_seed(3)
    first = Pool(noise).seed
    torch.manual_seed(3)
    assert Pool(noise).seed == first != Pool(noise).seed


def test_random_numbers_of_f_and_of_its_generators_are_independent() -> None:
    """Streams differ between ranks, rows, calls and retries, and between the three generators."""
    states = []
    for streams in ("10100", "11100", "10110", "10200", "10101"):
        state, python = torch.get_rng_state(), random.getstate()
        serving.reseed([int(number) for number in streams])
        states += [numpys(None), pythons(None), torchs(None)]
        torch.set_rng_state(state)
        random.setstate(python)
    assert len(set(states)) == len(states)


# hanging and orphaned processes


def importable(folder: Path, name: str, code: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the function ``f`` of a new module, which is imported in this process first."""
    (folder / f"{name}.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module(name).f


def test_a_hang_in_the_import_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hang = f"import os, time\nif os.getpid() != {os.getpid()}: time.sleep(100)"
    code = f"{hang}\ndef f(point): return 1.0"
    f = importable(tmp_path, "hanging_module", code, monkeypatch)
    with Pool(f, 2, timeout=0.1, start_timeout=0.3) as pool:
        with pytest.raises(
            RuntimeError, match=r"could not import f \(.*longer than 0\.3 s.*`start_timeout`"
        ) as caught:
            pool(torch.zeros(2, 1))
        assert pool._workers == []
    assert "__main__" not in str(caught.value)
    assert Pool(f, timeout=0.1).start_timeout == 20
    assert Pool(f).start_timeout is None


def test_an_error_in_the_import_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail = f"import os\nif os.getpid() != {os.getpid()}: import nonexistent_package"
    code = f"{fail}\ndef f(point): return 1.0"
    f = importable(tmp_path, "broken_module", code, monkeypatch)
    with (
        Pool(f, 1) as pool,
        pytest.raises(
            RuntimeError, match=r"could not import f .*No module named 'nonexistent_p"
        ) as caught,
    ):
        pool(torch.zeros(1, 1))
    assert "broken_module.py" in caught.value.__notes__[0]
    assert "__main__" not in str(caught.value)


def starts_others(point: Any, mark: str) -> float:
    """Start a child, one in a new session, and an orphan; then hang (1), die (2) or return (0)."""
    environment = {**os.environ, MARK: mark}
    sleep = [sys.executable, "-c", "import time; time.sleep(100)"]
    subprocess.Popen(sleep, env=environment)
    subprocess.Popen(sleep, env=environment, start_new_session=True)
    orphan = f"import subprocess; subprocess.Popen({sleep!r}, start_new_session=True)"
    subprocess.run([sys.executable, "-c", orphan], env=environment, check=True)
    if point[0] == 1:
        time.sleep(100)
    if point[0] == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return 0.0


linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


@linux
@pytest.mark.parametrize("kind", [1, 2])
def test_processes_of_f_end_with_its_worker(kind: int) -> None:
    mark = uuid.uuid4().hex
    with Pool(starts_others, 1, batch=[mark]) as pool:
        pool(torch.zeros(1, 1, 1))
        assert len(marked(mark)) == 3  # if f returns, they live as long as its worker
        pool.timeout = 1.0  # wherever it cuts
        with pytest.raises(RowError):
            pool(torch.full((1, 1, 1), kind))
        assert leftovers(mark) == {}


PARENT = """
import sys, torch
from catlog.functions import Pool
from test_pool import starts_others

pool = Pool(starts_others, 2, batch=[sys.argv[1]])
pool(torch.zeros(2, 1, 1))
print("started", flush=True)
pool(torch.tensor([0, 1])[:, None, None])
"""


@linux
def test_nothing_outlives_a_terminated_parent() -> None:
    """One worker hangs, one is idle, and both have started processes (see also tests/kills)."""
    mark = uuid.uuid4().hex
    environment = {**os.environ, MARK: mark, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, mark], env=environment, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"started\n"
        # The parent, the keeper, the workers and the processes that they started.
        assert len(marked(mark)) >= 1 + 1 + 2 + 6
        parent.terminate()
        assert parent.wait(60) == -signal.SIGTERM
        assert leftovers(mark) == {}


@linux
def test_a_keeper_that_is_killed_is_replaced() -> None:
    with Pool(simulator, 2, retries=3) as pool:
        assert pool(torch.zeros(2, 2)).tolist() == [0.0, 0.0]
        old = pool._workers[0].starter.process  # type: ignore[union-attr]
        old.kill()
        old.wait()
        assert pool(torch.zeros(4, 2)).tolist() == [0.0] * 4
        assert pool._workers[0].starter.process.pid != old.pid  # type: ignore[union-attr]


def test_a_worker_that_died_between_calls_costs_nothing() -> None:
    with Pool(simulator, 1) as pool:
        assert pool(torch.zeros(1, 2)).tolist() == [0.0]
        os.kill(pool._workers[0].process, signal.SIGKILL)  # type: ignore[union-attr]
        while not pool._workers[0].died_idle():
            time.sleep(0.01)
        assert pool(torch.zeros(1, 2)).tolist() == [0.0]


def test_batches_of_tensors_need_no_shared_memory() -> None:
    """The pickling of torch.multiprocessing would open a file in /dev/shm, or a socket."""
    with Pool(added, 1, batch=[torch.ones(2)]) as pool:
        pool(torch.zeros(1, 1, 2))
        before = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
        assert pool(torch.zeros(1, 1, 2)).tolist() == [[2.0]]
        assert sys.platform != "linux" or len(os.listdir("/proc/self/fd")) == before


def added(point: Any, entry: torch.Tensor) -> float:
    assert not entry.is_shared()
    return float(entry.sum()) + float(point.sum())


def test_without_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows: the same values, failures and random numbers."""
    x = torch.tensor([[0.0, 1.0], [1.0, 1.0]])
    with Pool(noise, 1, seed=1, dtype=torch.float64) as pool:
        expected = pool(x)
    monkeypatch.delattr(os, "fork")
    with Pool(noise, 1, seed=1, dtype=torch.float64) as pool:
        assert torch.equal(pool(x), expected)
        assert isinstance(pool._workers[0].starter, processes.Spawner)  # type: ignore[union-attr]
        os.kill(pool._workers[0].process.pid, signal.SIGKILL)  # type: ignore[union-attr]
        pool._workers[0].process.join()  # type: ignore[union-attr]


def test_import_without_the_functions_of_posix(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {
        os: "fork setsid killpg waitstatus_to_exitcode",
        signal: "SIGKILL SIGCHLD",
        socket: "send_fds recv_fds",
    }
    gc.collect()  # else old keepers might be closed without these functions
    for module, missing in names.items():
        for name in missing.split():
            monkeypatch.delattr(module, name)
    monkeypatch.setitem(sys.modules, "fcntl", None)
    for name in ("serving", "keeper", "packing", "processes", "workers", "pool"):
        spec = importlib.util.spec_from_file_location(
            f"catlog.parallel.{name}_again", Path(catlog.parallel.__file__).with_name(f"{name}.py")
        )
        assert spec is not None
        assert spec.loader is not None
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


# functions without a module


def test_lambdas_and_closures() -> None:
    pytest.importorskip("cloudpickle")
    weight = 3.0
    with Pool(lambda point: weight * point.sum(), 2) as pool:
        assert pool(torch.tensor([[1.0, 1.0], [0.0, 1.0]])).tolist() == [6.0, 3.0]


NOTEBOOK = """
import torch
from catlog.functions import Pool

scale = 2.0

class Entry:
    def __init__(self, value): self.value = value

def f(point, entry):
    return scale * point.sum() + entry.value

if {guard}:
    with Pool(f, 1, batch=[Entry(1.0)]) as pool:
        result = pool(torch.ones(2, 1, 3)).tolist()
"""


@pytest.mark.parametrize("guard", ["True", "__name__ == '__main__'"], ids=["no guard", "guard"])
@pytest.mark.parametrize("typed", [True, False], ids=["notebook", "script"])
@pytest.mark.parametrize("copies", [True, False], ids=["cloudpickle", "pickle"])
def test_functions_of_notebooks_and_scripts(
    guard: str, typed: bool, copies: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, code = types.ModuleType("__main__"), NOTEBOOK.format(guard=guard)
    if copies:
        pytest.importorskip("cloudpickle")
    else:
        monkeypatch.setitem(sys.modules, "cloudpickle", None)
    if not typed:
        main.__file__ = str(tmp_path / "a script.py")
        Path(main.__file__).write_text(code, encoding="utf-8")
    monkeypatch.setitem(sys.modules, "__main__", main)
    if copies or (guard != "True" and not typed):
        exec(code, main.__dict__)
        assert main.result == [[7.0], [7.0]]
    elif typed:
        with pytest.raises(
            TypeError, match=r"<function f .*Install cloudpickle \(pip install 'cloudpickle>=3'\)"
        ) as caught:
            exec(code, main.__dict__)
        assert "__name__" not in str(caught.value)
    else:
        with pytest.raises(
            RuntimeError,
            match=r"could not import f .*start the work under `if __name__ == \"__main__\":`",
        ):
            exec(code, main.__dict__)


def test_functions_that_cannot_be_sent_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = threading.Lock()
    pytest.importorskip("cloudpickle")
    with pytest.raises(
        TypeError, match=r"cannot be sent to a worker .*lock.*Define it in a module"
    ):
        Pool(lambda point: float(lock.locked()))
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(
        TypeError, match=r"cannot be sent to a worker: .*pip install 'cloudpickle>=3'"
    ):
        Pool(lambda point: 0.0)
