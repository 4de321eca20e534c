"""An f that is not torch at all (a simulator, a solver), evaluated point by point in worker processes or on a Ray cluster."""

import contextlib
import importlib.util
import multiprocessing
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import count
from math import inf, prod
from multiprocessing.connection import wait as wait_for
from types import TracebackType
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..checks import check_choice, check_count
from .keeper import READY, STARTED, Answer, answer
from .packing import pack
from .processes import Lost, starter

Engine = Literal["processes", "ray"]


class RowError(RuntimeError):
    """f failed at one point.

    row: the point's index in ``[n, *batch]``.
    point: the point, as f got it.
    reason: what happened.
    """

    def __init__(self, row: tuple[int, ...], point: Any, reason: str, attempts: int) -> None:
        import numpy

        self.row, self.point, self.reason = row, point, reason
        shown = numpy.array2string(
            point, threshold=64, edgeitems=16, max_line_width=10**6, separator=", "
        )
        often = f" (tried {attempts} times)" if attempts > 1 else ""
        super().__init__(f"Pool: f failed at row {row}, where x = {shown}: {reason}{often}.")


class Pool:
    """f evaluated one point at a time by several workers: for an f that is slow, that may fail or hang, and that is not torch.

    ``f(point)`` gets one point as a numpy array of shape ``[*event]`` and returns a number. Workers are processes of their
    own, or (``engine="ray"``) actors on a Ray cluster. The pool is an f as estimators take it; its values have no gradient, so it
    goes with every estimator that does not differentiate f. Threads may share a pool; their calls take turns.

    A point at which f raises, returns NaN or infinity, kills its worker, or takes longer than ``timeout`` is tried ``retries``
    more times; then a :class:`RowError` names it. The pool survives: a worker that hangs or died is replaced. A worker's end is
    also that of the processes it started, and all end with this process, however it dies (Windows: what f itself started stays).

    Every evaluation has streams of its own of the global generators (numpy's, Python's and torch's), a function of
    ``seed``, the number of the call and the row: they do not depend on which worker takes the row, nor on how many there are. A
    row that is tried again gets new ones, or the same where its worker died. A generator that f's module makes by
    itself with a fixed seed is the same in every worker: seed it from a global one, inside f.

    Cost: a few tenths of a millisecond per point for messages and seeds, so an f cheaper than that is better vectorised. A
    call takes rows / workers evaluations; ``chunk_size`` of an estimator is the number of points per call.
    Needs: numpy; an f that a worker can import, such as a function of a module. Lambdas, closures and functions of a notebook
    or a script travel as copies, made when the pool is, if cloudpickle is installed (``pip install 'catlog[pool]'``);
    without it those of a script are imported, which needs the usual ``if __name__ == "__main__":``. Workers see the
    environment variables of when the first of them was started. For ``engine="ray"``: ``pip install 'catlog[ray]'``; it
    joins the cluster that ``ray.init`` was called for (or RAY_ADDRESS names), or starts one here.

    Args:
        f: the function of a point; with ``batch``, of a point and its batch element's entry.
        workers: how many; None: one per core.
        event_dims: number of dimensions of a point: 1, or 2 for one-hot points.
        batch: what f gets as its second argument: one entry per batch element (flattened).
        timeout: seconds that one point may take; None: any time.
        retries: how often a point that failed is tried again.
        engine: "processes" or "ray".
        dtype: of the values; None: that of the points, or torch's default one where they are integers.
        seed: of the random numbers that f draws; None: drawn from torch's generator when the pool is made.
        start_timeout: seconds that a worker may take to import f; None: ``timeout``, but at least 20.

    >>> from operator import itemgetter
    >>> with Pool(itemgetter(1), workers=2) as f:  # the second variable
    ...     f(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    tensor([1., 0.])
    """

    def __init__(
        self,
        f: Callable[..., Any],
        workers: int | None = None,
        *,
        event_dims: int = 1,
        batch: Sequence[Any] | None = None,
        timeout: float | None = None,
        retries: int = 0,
        engine: Engine = "processes",
        dtype: torch.dtype | None = None,
        seed: int | None = None,
        start_timeout: float | None = None,
    ) -> None:
        workers = os.cpu_count() or 1 if workers is None else workers
        check_count("Pool", "workers", workers)
        check_count("Pool", "event_dims", event_dims, least=0)
        check_count("Pool", "retries", retries, least=0)
        check_choice("Pool", "engine", engine, get_args(Engine))
        if importlib.util.find_spec("numpy") is None:
            raise ImportError("Pool gives its points to f as numpy arrays: pip install numpy.")
        check_seconds("timeout", timeout)
        check_seconds("start_timeout", start_timeout)
        if not callable(f):
            raise TypeError(f"Pool: `f` must be a function of a point, but {f!r} was given.")
        if seed is None:
            seed = int(torch.randint(2**63 - 1, ()))
        check_count("Pool", "seed", seed, least=0)
        self.f, self.size, self.event_dims, self.batch = f, workers, event_dims, batch
        self.timeout, self.retries, self.dtype, self.seed = timeout, retries, dtype, seed
        self.start_timeout = start_timeout or (None if timeout is None else max(timeout, 20.0))
        self._kind: type[_Process] | type[_Actor] = _Process if engine == "processes" else _Actor
        self._work: Any = self._kind.work(f)
        self._begin()

    def _begin(self) -> None:
        """No workers yet, in this process."""
        self._workers: list[_Process | _Actor] = []
        self._calls, self._started, self._dead_at_start = count(), count(), 0
        self._lock, self._closed, self._process = threading.RLock(), 0, os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        own = ("_workers", "_calls", "_started", "_dead_at_start", "_lock", "_closed", "_process")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all workers; a call that another thread has under way fails. The next call would start new ones."""
        if self._process != os.getpid():
            return
        self._closed += 1
        while not self._lock.acquire(timeout=0.1):  # a call under way wakes when its workers die
            for worker in list(self._workers):
                worker.end()
        try:
            for worker in list(self._workers):
                self._lose(worker)
        finally:
            self._lock.release()

    def __call__(self, x: Tensor) -> Tensor:
        if (
            self._process != os.getpid()
        ):  # a copy of the pool in a forked process; the workers are its parent's
            self._begin()
        lead, event = x.shape[: x.dim() - self.event_dims], x.shape[x.dim() - self.event_dims :]
        points = x.detach().cpu().reshape(-1, *event).numpy()
        size = prod(lead[1:])
        if self.batch is not None and len(self.batch) != size:
            raise ValueError(
                f"Pool: `batch` must have an entry for each of the {size} batch elements, but it has {len(self.batch)}."
            )
        given = [
            (point,) if self.batch is None else (point, self.batch[row % size])
            for row, point in enumerate(points)
        ]
        try:
            values = self._values(given)
        except _RowFailure as failure:
            row, _, reason, trace = failure.answer
            index = tuple(int(i) for i in torch.unravel_index(torch.tensor(row), lead))
            error = RowError(index, points[row], reason, self.retries + 1)
            if trace:
                error.add_note(f"In the worker:\n{trace}")
            raise error from None
        dtype = self.dtype or (x.dtype if x.is_floating_point() else torch.get_default_dtype())
        return torch.tensor(values, dtype=dtype, device=x.device).reshape(lead)

    def _values(self, given: list[tuple[Any, ...]]) -> list[float]:
        """f at every row; one call at a time."""
        closed = self._closed
        with self._lock:
            try:
                for worker in [each for each in self._workers if each.died_idle()]:
                    self._lose(worker)
                return self._evaluated(given, closed)
            except BaseException as error:  # what the others do is of no use
                for worker in [
                    each for each in self._workers if each.row is not None or not each.ready
                ]:
                    self._lose(worker)
                if isinstance(error, Exception) and self._closed != closed:
                    raise RuntimeError(
                        "Pool: it was closed before all points were evaluated."
                    ) from None
                raise

    def _evaluated(self, given: list[tuple[Any, ...]], closed: int) -> list[float]:
        """f at every row; rows wait in line, and every worker has at most one."""
        values: dict[int, float] = {}
        waiting, failed, stream = deque(range(len(given))), Counter[int](), Counter[int]()
        call = [self.seed, _rank(), 1 + next(self._calls)]
        while len(values) < len(given):
            if self._closed != closed:
                raise Lost("closed")
            self._start(min(self.size, len(given) - len(values)))
            for worker in self._workers:
                if waiting and worker.ready and worker.row is None:
                    row = worker.row = waiting.popleft()
                    worker.deadline = _from_now(self.timeout)
                    worker.send(row, [*call, row, stream[row]], given[row])
            for row, value, reason, trace in self._answers():
                if value is not None:
                    values[row] = value
                    continue
                failed[row] += 1
                stream[row] += not reason.startswith(_DIED)
                if failed[row] > self.retries:
                    raise _RowFailure((row, value, reason, trace))
                waiting.appendleft(row)
        return [values[row] for row in range(len(given))]

    def _start(self, wanted: int) -> None:
        while len(self._workers) < wanted:
            self._workers.append(
                self._kind(self._work, [self.seed, _rank(), 0, next(self._started)])
            )

    def _answers(self) -> list[Answer]:
        """What came until the next deadline; a worker that is lost, or too late, leaves the pool, and its row has failed."""
        answers: list[Answer] = []
        for worker in self._kind.wait(
            self._workers, min(each.deadline for each in self._workers) - time.monotonic()
        ):
            try:
                came = worker.receive()
            except Lost as lost:
                self._lose(worker)
                self._dead_at_start += not worker.ready
                if self._dead_at_start > STARTS + self.retries:
                    raise self._not_started(f"{lost}, {self._dead_at_start} times") from None
                if worker.row is not None:
                    answers.append((worker.row, None, f"{_DIED} ({lost})", ""))
                continue
            if came == STARTED:
                worker.deadline = _from_now(self.start_timeout)
                continue
            if came == READY:
                worker.ready, self._dead_at_start = True, 0
            elif not worker.ready:
                self._lose(worker)
                error = self._not_started(came[2])
                error.add_note(f"In the worker:\n{came[3]}")
                raise error
            else:
                answers.append(came)
            worker.row, worker.deadline = None, inf
        for worker in [each for each in self._workers if each.deadline <= time.monotonic()]:
            self._lose(worker)
            if worker.row is None:
                raise self._not_started(
                    f"to import f took longer than {self.start_timeout:g} s: give more in `start_timeout` if that is in order"
                )
            answers.append(
                (worker.row, None, f"it took longer than the timeout of {self.timeout:g} s", "")
            )
        return answers

    def _not_started(self, reason: str) -> RuntimeError:
        guard = (
            ' In a script, start the work under `if __name__ == "__main__":`.'
            if self._kind.imports_main(self._work)
            else ""
        )
        return RuntimeError(f"Pool: a worker could not import f ({reason}).{guard}")

    def _lose(self, worker: "_Process | _Actor") -> None:
        self._workers.remove(worker)
        worker.kill()


def check_seconds(name: str, value: object) -> None:
    """Raise unless ``value`` is a positive number or None."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(
            f"Pool: `{name}` must be a positive number of seconds or None, but {value!r} was given."
        )
    if not value > 0:
        raise ValueError(
            f"Pool: `{name}` must be a positive number of seconds or None, but {value!r} was given."
        )


def _from_now(seconds: float | None) -> float:
    return inf if seconds is None else time.monotonic() + seconds


def _rank() -> int:
    """This process's, where several share one estimate: their seeds are the same."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_rank() if distributed else 0


_DIED = "its worker died"
STARTS = 3  # deaths in a row, beside the retries, of workers that were not ready yet: one may be killed by chance


class _RowFailure(Exception):  # noqa: N818
    def __init__(self, answer: Answer) -> None:
        self.answer = answer


class _Worker:
    """One that evaluates f: ``ready`` once it has imported f, then with at most one row at a time."""

    def __init__(self) -> None:
        self.ready = False
        self.row: int | None = None
        self.deadline = inf


class _Process(_Worker):
    """A worker on this machine, with a pipe to it. concurrent.futures and multiprocessing.Pool cannot end one that hangs."""

    work = staticmethod(pack)

    def __init__(self, work: Any, streams: list[int]) -> None:
        super().__init__()
        self.starter = starter()
        self.code: int | None = None
        self.pipe, other = multiprocessing.Pipe()
        try:
            self.process = self.starter.start(other)
        except Lost as lost:
            raise RuntimeError(f"Pool: no worker could be started ({lost}).") from None
        finally:
            other.close()
        with contextlib.suppress(OSError):  # it died: told by `receive`
            self.pipe.send(
                (
                    work.data,
                    work.main,
                    [str(each) for each in sys.path],
                    sys.argv,
                    os.getcwd(),
                    streams,
                )
            )

    @staticmethod
    def imports_main(work: Any) -> bool:
        return work.main is not None or not hasattr(os, "fork")

    @staticmethod
    def wait(workers: list[Any], timeout: float) -> list[Any]:
        came = wait_for(
            [worker.pipe for worker in workers], None if timeout == inf else max(0.0, timeout)
        )
        return [worker for worker in workers if worker.pipe in came]

    def died_idle(self) -> bool:
        """Whether there is word from it though nothing was asked."""
        return self.ready and self.row is None and self.pipe.poll()

    def send(self, row: int, streams: list[int], given: tuple[Any, ...]) -> None:
        data = pack(given).data
        with contextlib.suppress(OSError):  # it died: told by `receive`
            self.pipe.send((row, streams, data))

    def receive(self) -> Any:
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            raise Lost(f"exit code {self.end()}") from None

    def end(self) -> int:
        """End it, if it still lives; its exit code."""
        if self.code is None:
            self.code = self.starter.end(self.process)
        return self.code

    def kill(self) -> None:
        self.end()
        self.pipe.close()


class _Server:
    def start(self) -> str:
        return STARTED

    def load(self, f: Callable[..., Any]) -> str:
        self.f = f
        return READY

    def answer(self, row: int, streams: list[int], given: bytes) -> Answer:
        return answer(self.f, row, streams, given)


class _Actor(_Worker):
    """A worker anywhere on a Ray cluster, with one core to itself."""

    @staticmethod
    def work(f: Callable[..., Any]) -> Callable[..., Any]:
        return f  # Ray packs it

    def __init__(self, work: Callable[..., Any], streams: list[int]) -> None:
        super().__init__()
        self.ray, _ = joined_ray()
        self.f = work
        self.server = self.ray.remote(num_cpus=1)(_Server).remote()
        self.coming = self.server.start.remote()

    @staticmethod
    def imports_main(work: Any) -> bool:
        return False

    @staticmethod
    def wait(workers: list[Any], timeout: float) -> list[Any]:
        coming = [worker.coming for worker in workers if worker.coming is not None]
        came, _ = workers[0].ray.wait(
            coming, num_returns=1, timeout=None if timeout == inf else max(0.0, timeout)
        )
        return [worker for worker in workers if worker.coming in came]

    def died_idle(self) -> bool:
        return False

    def send(self, row: int, streams: list[int], given: tuple[Any, ...]) -> None:
        self.coming = self.server.answer.remote(row, streams, pack(given).data)

    def receive(self) -> Any:
        came, self.coming = self.coming, None
        try:
            answer = self.ray.get(came)
        except self.ray.exceptions.RayActorError as error:
            raise Lost(str(error).strip().splitlines()[-1].strip()) from None
        if answer == STARTED:
            self.coming = self.server.load.remote(self.f)
        return answer

    def end(self) -> int:
        self.ray.kill(self.server)
        return 0

    kill = end


def joined_ray(address: str | None = None, **local: Any) -> tuple[Any, bool]:
    """The module ray, connected to the cluster at ``address`` (or RAY_ADDRESS), else to one with these settings started here.

    Also whether that was done now.
    """
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise ImportError("Ray is not installed: pip install 'catlog[ray]'.") from error
    if ray.is_initialized():
        return ray, False
    given = address or os.environ.get("RAY_ADDRESS")
    settings: dict[str, Any] = (
        {"address": given} if given else {"include_dashboard": False, **local}
    )
    ray.init(log_to_driver=False, logging_level="error", **settings)
    return ray, True
