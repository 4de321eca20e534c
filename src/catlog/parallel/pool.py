"""f in worker processes or on a Ray cluster, one point at a time, for simulators and solvers."""

import importlib.util
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import count
from math import inf, prod
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..checks import check_choice, check_count
from .processes import Lost
from .serving import READY, STARTED, Answer
from .workers import ProcessWorker, RayWorker

Engine = Literal["processes", "ray"]
DIED = "its worker died"
# Workers that may die in a row before they are ready, beside the retries. A single death may be
# chance.
STARTS = 3


class RowError(RuntimeError):
    """An error of f at one point.

    Attributes:
        row: The index of the point in ``[n, *batch]``.
        point: The point, as f got it.
        reason: What happened.
    """

    def __init__(self, row: tuple[int, ...], point: Any, reason: str, attempts: int) -> None:
        import numpy

        self.row = row
        self.point = point
        self.reason = reason
        shown = numpy.array2string(
            point, threshold=64, edgeitems=16, max_line_width=10**6, separator=", "
        )
        tried = f" (tried {attempts} times)" if attempts > 1 else ""
        super().__init__(f"Pool: f failed at row {row}, where x = {shown}: {reason}{tried}.")


class _RowFailure(Exception):  # noqa: N818
    def __init__(self, answer: Answer) -> None:
        self.answer = answer


class Pool:
    """A function f that several workers evaluate, one point at a time, for an f that is slow and
    not written in torch.

    ``f(point)`` gets one point as a numpy array of shape ``[*event]`` and returns a number. Workers
    are processes, or (``engine="ray"``) actors on a Ray cluster. Pass a pool to an estimator as f.
    Its values have no gradient, so use an estimator that does not differentiate f. Threads may
    share a pool; their calls take turns.

    A point fails if f raises an error, returns NaN or infinity, kills its worker, or takes longer
    than ``timeout``. It is tried ``retries`` more times; then a :class:`RowError` names it. The
    pool survives: a worker that hangs or has died is replaced. A worker ends with the processes
    that it started, and all end with this process, however it dies (on Windows, processes that f
    started stay).

    Every evaluation has separate streams of the global generators of numpy, Python and torch. They
    depend on ``seed``, the number of the call and the row, but not on the workers. A row that is
    tried again gets new streams, or the same if its worker died. A generator that f's module makes
    with a fixed seed is the same in every worker: seed it from a global one, inside f.

    Cost: a few tenths of a millisecond per point for messages and seeds, so a cheaper f is better
    vectorised. A call takes rows / workers evaluations; ``chunk_size`` of an estimator is the
    number of points per call.
    Needs: numpy; an f that a worker can import, such as a function of a module. Lambdas, closures
    and functions of a notebook or a script are copied when the pool is made, if cloudpickle is
    installed (``pip install cloudpickle``). Without it those of a script are imported, which
    needs the usual ``if __name__ == "__main__":``. Workers see the environment variables of the
    time when the first of them was started. ``engine="ray"`` needs Ray (``pip install ray``);
    it joins the cluster of ``ray.init`` (or of RAY_ADDRESS), or starts one on this machine.

    Args:
        f: The function of a point or, with ``batch``, of a point and its batch element's entry.
        workers: The number of workers; None: one per core.
        event_dims: The number of dimensions of a point: 1, or 2 for one-hot points.
        batch: The second argument of f: one entry per batch element (flattened).
        timeout: Seconds that one point may take; None: no limit.
        retries: How often a point that failed is tried again.
        engine: "processes" or "ray".
        outputs: The number of dimensions of the array that f returns; 0: a number. Pass the same
            number to the estimator.
        dtype: The dtype of the values; None: that of the points, float32 at least, or torch's
            default for integers.
        seed: The seed of the random numbers that f draws; None: drawn from torch's generator when
            the pool is made.
        start_timeout: Seconds that a worker may take to import f; None: ``timeout``, but at least
            20.

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
        outputs: int = 0,
        dtype: torch.dtype | None = None,
        seed: int | None = None,
        start_timeout: float | None = None,
    ) -> None:
        workers = os.cpu_count() or 1 if workers is None else workers
        check_count("Pool", "workers", workers)
        check_count("Pool", "event_dims", event_dims, least=0)
        check_count("Pool", "outputs", outputs, least=0)
        check_count("Pool", "retries", retries, least=0)
        check_choice("Pool", "engine", engine, get_args(Engine))
        if batch is not None and not hasattr(batch, "__len__"):
            raise TypeError(
                "Pool: `batch` must be a sequence with an entry per batch element, but it is "
                f"{batch!r}."
            )
        if importlib.util.find_spec("numpy") is None:
            raise ImportError("Pool gives its points to f as numpy arrays: pip install numpy.")
        check_seconds("timeout", timeout)
        check_seconds("start_timeout", start_timeout)
        if not callable(f):
            raise TypeError(f"Pool: `f` must be a function of a point, but it is {f!r}.")
        if seed is None:
            seed = int(torch.randint(2**63 - 1, ()))
        check_count("Pool", "seed", seed, least=0)
        self.f = f
        self.size = workers
        self.event_dims = event_dims
        self.batch = batch
        self.timeout = timeout
        self.retries = retries
        self.outputs = outputs
        self.dtype = dtype
        self.seed = seed
        self.start_timeout = start_timeout or (None if timeout is None else max(timeout, 20.0))
        self._worker = ProcessWorker if engine == "processes" else RayWorker
        self._prepared_f: Any = self._worker.prepare(f)
        self._reset()

    def _reset(self) -> None:
        """Begin without workers, in this process."""
        self._workers: list[ProcessWorker | RayWorker] = []
        self._calls = count()
        self._started = count()
        self._deaths_at_start = 0
        self._lock = threading.RLock()
        self._closed = 0
        self._process = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        fresh = Pool.__new__(Pool)
        fresh._reset()
        return {name: value for name, value in vars(self).items() if name not in vars(fresh)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all workers. A call of another thread fails; the next call starts new workers."""
        if self._process != os.getpid():
            return
        self._closed += 1
        while not self._lock.acquire(timeout=0.1):  # a running call wakes when its workers die
            for worker in list(self._workers):
                worker.end()
        try:
            for worker in list(self._workers):
                self._remove(worker)
        finally:
            self._lock.release()

    def __call__(self, x: Tensor) -> Tensor:
        import numpy

        if self._process != os.getpid():  # a copy in a forked process: the workers are the parent's
            self._reset()
        lead, event = x.shape[: x.dim() - self.event_dims], x.shape[x.dim() - self.event_dims :]
        host = x.detach().cpu()
        if host.dtype == torch.bfloat16:  # unknown to numpy
            host = host.float()
        points = host.reshape(-1, *event).numpy()
        size = prod(lead[1:])
        if self.batch is not None and len(self.batch) != size:
            raise ValueError(
                f"Pool: `batch` must have an entry for each of the {size} batch elements, "
                f"but it has {len(self.batch)}."
            )
        arguments: list[tuple[Any, ...]] = [(point,) for point in points]
        if self.batch is not None:
            arguments = [(point, self.batch[row % size]) for row, point in enumerate(points)]
        try:
            values = self._values(arguments)
        except _RowFailure as failure:
            row, _, reason, trace = failure.answer
            index = tuple(int(i) for i in torch.unravel_index(torch.tensor(row), lead))
            error = RowError(index, points[row], reason, self.retries + 1)
            if trace:
                error.add_note(f"In the worker:\n{trace}")
            raise error from None
        dtype = self.dtype or torch.get_default_dtype()
        if self.dtype is None and x.is_floating_point():
            dtype = torch.promote_types(x.dtype, torch.float32)
        shapes = {numpy.shape(value) for value in values}
        if len(shapes) > 1:
            raise ValueError(
                "Pool: f must return arrays of one shape for all points, but it returned arrays "
                f"of shapes {', '.join(map(str, sorted(shapes)))}."
            )
        numbers = torch.tensor(values, dtype=dtype, device=x.device)
        return numbers.reshape(lead + numbers.shape[1:])

    def _values(self, arguments: list[tuple[Any, ...]]) -> list[float | list[Any]]:
        """Return f at every row. One call runs at a time."""
        closed = self._closed
        with self._lock:
            try:
                for worker in [worker for worker in self._workers if worker.died_idle()]:
                    self._remove(worker)
                return self._evaluate(arguments, closed)
            except BaseException as error:  # the rows that are still evaluated are of no use
                for worker in list(self._workers):
                    if worker.row is not None or not worker.ready:
                        self._remove(worker)
                if isinstance(error, Exception) and self._closed != closed:
                    message = "Pool: it was closed before all points were evaluated."
                    raise RuntimeError(message) from None
                raise

    def _evaluate(self, arguments: list[tuple[Any, ...]], closed: int) -> list[float | list[Any]]:
        """Return f at every row. Rows wait in line, and every worker has at most one."""
        rows = len(arguments)
        values: dict[int, float | list[Any]] = {}
        waiting = deque(range(rows))
        failures = Counter[int]()
        stream = Counter[int]()
        call = [self.seed, _rank(), 1 + next(self._calls)]
        while len(values) < rows:
            if self._closed != closed:
                raise Lost("closed")
            while len(self._workers) < min(self.size, rows - len(values)):
                streams = [self.seed, _rank(), 0, next(self._started)]
                self._workers.append(self._worker(self._prepared_f, streams))
            for worker in self._workers:
                if waiting and worker.ready and worker.row is None:
                    row = worker.row = waiting.popleft()
                    worker.deadline = _from_now(self.timeout)
                    worker.send(row, [*call, row, stream[row]], (arguments[row], self.outputs))
            for row, value, reason, trace in self._answers():
                if value is not None:
                    values[row] = value
                    continue
                failures[row] += 1
                stream[row] += not reason.startswith(DIED)
                if failures[row] > self.retries:
                    raise _RowFailure((row, value, reason, trace))
                waiting.appendleft(row)
        return [values[row] for row in range(rows)]

    def _answers(self) -> list[Answer]:
        """Return the answers until the next deadline; workers that died or hang leave the pool."""
        answers: list[Answer] = []
        timeout = min(worker.deadline for worker in self._workers) - time.monotonic()
        for worker in self._worker.wait(self._workers, timeout):
            try:
                answers += self._received(worker, worker.receive())
            except Lost as lost:
                self._remove(worker)
                self._deaths_at_start += not worker.ready
                if self._deaths_at_start > STARTS + self.retries:
                    raise self._not_started(f"{lost}, {self._deaths_at_start} times") from None
                if worker.row is not None:
                    answers.append((worker.row, None, f"{DIED} ({lost})", ""))
        for worker in list(self._workers):
            if worker.deadline <= time.monotonic():
                answers.append(self._timed_out(worker))
        return answers

    def _received(self, worker: ProcessWorker | RayWorker, message: Any) -> list[Answer]:
        """Return the answer in a message; none if it only says how far the worker has come."""
        if message == STARTED:
            worker.deadline = _from_now(self.start_timeout)
            return []
        if message == READY:
            worker.ready = True
            self._deaths_at_start = 0
        elif not worker.ready:
            self._remove(worker)
            error = self._not_started(message[2])
            error.add_note(f"In the worker:\n{message[3]}")
            raise error
        worker.row = None
        worker.deadline = inf
        return [] if message == READY else [message]

    def _timed_out(self, worker: ProcessWorker | RayWorker) -> Answer:
        self._remove(worker)
        if worker.row is None:
            raise self._not_started(
                f"the import took longer than {self.start_timeout:g} s; if f needs that, "
                "give a larger `start_timeout`"
            )
        return worker.row, None, f"it took longer than the timeout of {self.timeout:g} s", ""

    def _not_started(self, reason: str) -> RuntimeError:
        guard = ""
        if self._worker.imports_main(self._prepared_f):
            guard = ' In a script, start the work under `if __name__ == "__main__":`.'
        return RuntimeError(f"Pool: a worker could not import f ({reason}).{guard}")

    def _remove(self, worker: ProcessWorker | RayWorker) -> None:
        self._workers.remove(worker)
        worker.kill()


def check_seconds(name: str, value: object) -> None:
    """Raise an error unless ``value`` is a positive number or None."""
    if value is None:
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not value > 0:  # type: ignore[operator]
        raise (ValueError if is_number else TypeError)(
            f"Pool: `{name}` must be a positive number of seconds or None, but it is {value!r}."
        )


def _from_now(seconds: float | None) -> float:
    return inf if seconds is None else time.monotonic() + seconds


def _rank() -> int:
    """Return the rank of this process: ranks that share one estimate have the same seed."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_rank() if distributed else 0
