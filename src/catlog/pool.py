"""An f that is not torch at all (a simulator, a solver), evaluated point by point in worker processes or on a Ray cluster."""

import contextlib
import importlib.util
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isfinite, prod
from multiprocessing.connection import wait as wait_for
from types import TracebackType
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from .checks import check_choice, check_count

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
        shown = numpy.array2string(point, threshold=64, edgeitems=16, max_line_width=10**6, separator=", ")
        often = f" (tried {attempts} times)" if attempts > 1 else ""
        super().__init__(f"Pool: f failed at row {row}, where x = {shown}: {reason}{often}.")


class Pool:
    """f evaluated one point at a time by several workers: for an f that is slow, that may fail or hang, and that is not torch.

    ``f(point)`` gets one point as a numpy array of shape ``[*event]`` and returns a number. Workers are processes of their
    own, or (``engine="ray"``) actors on a Ray cluster. The pool is an f as estimators take it; its values have no gradient, so it
    goes with every estimator that does not differentiate f.

    A point at which f raises, returns NaN or infinity, kills its worker, or takes longer than ``timeout`` is tried ``retries``
    more times; then a :class:`RowError` names it. The pool survives: a worker that hangs or died is replaced.

    Cost: about 0.1 ms per point for the messages (``results/scaling.csv``), so an f cheaper than that is better vectorised. A
    call takes rows / workers evaluations; ``chunk_size`` of an estimator is the number of points per call.
    Needs: numpy; f that a worker can import (a function of a module, not a lambda) and, in a script, the usual
    ``if __name__ == "__main__":``. Workers see the environment variables of when the first of them was started. For
    ``engine="ray"``: ``pip install 'catlog[ray]'``; it joins the cluster that ``ray.init`` was
    called for (or RAY_ADDRESS names), or starts one here.

    Args:
        f: the function of a point; with ``batch``, of a point and its batch element's entry.
        workers: how many; None: one per core.
        event_dims: number of dimensions of a point: 1, or 2 for one-hot points.
        batch: what f gets as its second argument: one entry per batch element (flattened).
        timeout: seconds that one point may take; None: any time.
        retries: how often a point that failed is tried again.
        engine: "processes" or "ray".
        dtype: of the values; None: that of the points, or torch's default one where they are integers.

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
    ) -> None:
        workers = os.cpu_count() or 1 if workers is None else workers
        check_count("Pool", "workers", workers)
        check_count("Pool", "event_dims", event_dims, least=0)
        check_count("Pool", "retries", retries, least=0)
        check_choice("Pool", "engine", engine, get_args(Engine))
        if importlib.util.find_spec("numpy") is None:
            raise ImportError("Pool gives its points to f as numpy arrays: pip install numpy.")
        if timeout is not None and not timeout > 0:
            raise ValueError(f"Pool: `timeout` must be a positive number of seconds or None, but {timeout!r} was given.")
        self.f, self.size, self.event_dims, self.batch = f, workers, event_dims, batch
        self.timeout, self.retries, self.dtype = timeout, retries, dtype
        self._kind: type[_Process] | type[_Actor] = _Process if engine == "processes" else _Actor
        self._workers: list[_Process | _Actor] = []

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End all workers. The next call would start new ones."""
        for worker in self._workers:
            worker.kill()
        self._workers = []

    def __call__(self, x: Tensor) -> Tensor:
        lead, event = x.shape[: x.dim() - self.event_dims], x.shape[x.dim() - self.event_dims :]
        points = x.detach().cpu().reshape(-1, *event).numpy()
        size = prod(lead[1:])
        if self.batch is not None and len(self.batch) != size:
            raise ValueError(
                f"Pool: `batch` must have an entry for each of the {size} batch elements, but it has {len(self.batch)}."
            )
        given = [(point,) if self.batch is None else (point, self.batch[row % size]) for row, point in enumerate(points)]
        try:
            values = self._values(given)
        except _RowFailure as failure:
            index = tuple(int(i) for i in torch.unravel_index(torch.tensor(failure.answer.row), lead))
            error = RowError(index, points[failure.answer.row], failure.answer.reason, self.retries + 1)
            if failure.answer.trace:
                error.add_note(f"In the worker:\n{failure.answer.trace}")
            raise error from None
        finally:
            for worker in [each for each in self._workers if each.row is not None]:  # after an error: what they do is of no use
                self._lose(worker)
        dtype = self.dtype or (x.dtype if x.is_floating_point() else torch.get_default_dtype())
        return torch.tensor(values, dtype=dtype, device=x.device).reshape(lead)

    def _values(self, given: list[tuple[Any, ...]]) -> list[float]:
        """f at every row; rows wait in line, and every worker has at most one."""
        values: dict[int, float] = {}
        waiting, failed = deque(range(len(given))), Counter[int]()
        while len(values) < len(given):
            wanted = min(self.size, len(given) - len(values))
            self._workers += [self._kind(self.f) for _ in range(wanted - len(self._workers))]
            for worker in self._workers:
                if waiting and worker.ready and worker.row is None:
                    worker.row = waiting.popleft()
                    worker.deadline = inf if self.timeout is None else time.monotonic() + self.timeout
                    worker.send(worker.row, given[worker.row])
            for answer in self._answers():
                if answer.value is not None:
                    values[answer.row] = answer.value
                    continue
                failed[answer.row] += 1
                if failed[answer.row] > self.retries:
                    raise _RowFailure(answer)
                waiting.appendleft(answer.row)
        return [values[row] for row in range(len(given))]

    def _answers(self) -> list["_Answer"]:
        """What came until the next deadline; a worker that is lost, or too late, leaves the pool, and its row has failed."""
        answers = []
        for worker in self._kind.wait(self._workers, min(each.deadline for each in self._workers) - time.monotonic()):
            try:
                answer = worker.receive()
            except _LostError as lost:
                self._lose(worker)
                if not worker.ready:
                    raise RuntimeError(
                        f"Pool: a worker could not start ({lost}). Workers import the module that f is defined in; in a script, "
                        'start the work under `if __name__ == "__main__":`.'
                    ) from None
                answer = None if worker.row is None else _Answer(worker.row, None, f"its worker died ({lost})")
            if answer is not None:
                answers.append(answer)
            worker.ready, worker.row, worker.deadline = True, None, inf
        for worker in [each for each in self._workers if each.deadline <= time.monotonic()]:
            self._lose(worker)
            answers.append(_Answer(worker.row or 0, None, f"it took longer than the timeout of {self.timeout:g} s"))
        return answers

    def _lose(self, worker: "_Process | _Actor") -> None:
        self._workers.remove(worker)
        worker.kill()


@dataclass(frozen=True)
class _Answer:
    """f at a row, or else what went wrong."""

    row: int
    value: float | None
    reason: str = ""
    trace: str = ""


def _answer(f: Callable[..., Any], row: int, given: tuple[Any, ...]) -> _Answer:
    try:
        value = float(f(*given))
    except Exception as error:
        return _Answer(row, None, f"it raised {type(error).__name__}: {error}", traceback.format_exc())
    return _Answer(row, value) if isfinite(value) else _Answer(row, None, f"it returned {value}, which is not a finite number")


class _RowFailure(Exception):  # noqa: N818
    def __init__(self, answer: _Answer) -> None:
        self.answer = answer


class _LostError(Exception):
    """A worker is gone."""


class _Worker:
    """One that evaluates f: ``ready`` once it has started, then with at most one row at a time."""

    def __init__(self) -> None:
        self.ready = False
        self.row: int | None = None
        self.deadline = inf


class _Process(_Worker):
    """A worker on this machine, with a pipe to it. concurrent.futures and multiprocessing.Pool cannot end one that hangs."""

    def __init__(self, f: Callable[..., Any]) -> None:
        super().__init__()
        context: Any = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
        if sys.platform != "win32":
            context.set_forkserver_preload([__name__])  # torch is imported once, and a lost worker is replaced in no time
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(f, other), daemon=True)
        try:
            self.process.start()
        except Exception as error:
            raise TypeError(
                f"Pool: `f` must be something that a worker process can import, such as a function of a module, but {f!r} was "
                f"given ({error})."
            ) from error
        other.close()

    @staticmethod
    def wait(workers: list[Any], timeout: float) -> list[Any]:
        came = wait_for([worker.pipe for worker in workers], None if timeout == inf else max(0.0, timeout))
        return [worker for worker in workers if worker.pipe in came]

    def send(self, row: int, given: tuple[Any, ...]) -> None:
        with contextlib.suppress(OSError):  # it died: told by `receive`
            self.pipe.send((row, given))

    def receive(self) -> _Answer | None:
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            raise _LostError(f"exit code {self.process.exitcode}") from None

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve(f: Callable[..., Any], pipe: Any) -> None:
    """What a worker process does: answer until the other end is gone. Ctrl-C is its parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    pipe.send(None)
    with contextlib.suppress(EOFError, OSError):
        while True:
            row, given = pipe.recv()
            pipe.send(_answer(f, row, given))


class _Server:
    def __init__(self, f: Callable[..., Any]) -> None:
        self.f = f

    def start(self) -> None: ...

    def answer(self, row: int, given: tuple[Any, ...]) -> _Answer:
        return _answer(self.f, row, given)


class _Actor(_Worker):
    """A worker anywhere on a Ray cluster, with one core to itself."""

    def __init__(self, f: Callable[..., Any]) -> None:
        super().__init__()
        self.ray, _ = joined_ray()
        self.server = self.ray.remote(num_cpus=1)(_Server).remote(f)
        self.coming = self.server.start.remote()

    @staticmethod
    def wait(workers: list[Any], timeout: float) -> list[Any]:
        coming = [worker.coming for worker in workers if worker.coming is not None]
        came, _ = workers[0].ray.wait(coming, num_returns=1, timeout=None if timeout == inf else max(0.0, timeout))
        return [worker for worker in workers if worker.coming in came]

    def send(self, row: int, given: tuple[Any, ...]) -> None:
        self.coming = self.server.answer.remote(row, given)

    def receive(self) -> _Answer | None:
        came, self.coming = self.coming, None
        try:
            return self.ray.get(came)
        except self.ray.exceptions.RayActorError as error:
            raise _LostError(str(error).strip().splitlines()[-1].strip()) from None

    def kill(self) -> None:
        self.ray.kill(self.server)


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
    settings: dict[str, Any] = {"address": given} if given else {"include_dashboard": False, **local}
    ray.init(log_to_driver=False, logging_level="error", **settings)
    return ray, True
