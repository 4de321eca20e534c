"""Workers of a pool: processes on this machine, or actors on a Ray cluster."""

import contextlib
import importlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from math import inf
from multiprocessing.connection import wait as wait_for
from typing import Any

from .packing import pack
from .processes import Lost, starter
from .serving import READY, STARTED, Answer, answer


class Worker:
    """A worker that evaluates f at one row at a time.

    Attributes:
        ready: Whether it has imported f.
        row: The row that it evaluates; None if it is idle.
        deadline: The time from which it counts as hanging.
    """

    def __init__(self) -> None:
        self.ready = False
        self.row: int | None = None
        self.deadline = inf


class ProcessWorker(Worker):
    """A worker process on this machine, with a pipe to it.

    concurrent.futures and multiprocessing.Pool cannot end a worker that hangs. pebble can, but is a
    further dependency.
    """

    prepare = staticmethod(pack)

    def __init__(self, f: Any, streams: list[int]) -> None:
        super().__init__()
        self.starter = starter()
        self.code: int | None = None
        self.pipe, remote = multiprocessing.Pipe()
        try:
            self.process = self.starter.start(remote)
        except Lost as lost:
            raise RuntimeError(f"Pool: no worker could be started ({lost}).") from None
        finally:
            remote.close()
        path = [str(entry) for entry in sys.path]
        self._send((f.data, f.main, path, sys.argv, os.getcwd(), streams))

    @staticmethod
    def imports_main(f: Any) -> bool:
        """Return whether workers import the script of this process."""
        return f.main is not None or not hasattr(os, "fork")

    @staticmethod
    def wait(workers: Sequence[Any], timeout: float) -> list[Any]:
        """Wait until a worker has sent something; return those that have."""
        seconds = None if timeout == inf else max(0.0, timeout)
        readable = wait_for([worker.pipe for worker in workers], seconds)
        return [worker for worker in workers if worker.pipe in readable]

    def died_idle(self) -> bool:
        """Return whether it died between two rows: an idle worker sends nothing else."""
        return self.ready and self.row is None and self.pipe.poll()

    def send(self, row: int, streams: list[int], arguments: tuple[Any, ...]) -> None:
        """Ask for f at one row."""
        self._send((row, streams, pack(arguments).data))

    def _send(self, message: Any) -> None:
        with contextlib.suppress(OSError):  # the worker died, which `receive` raises
            self.pipe.send(message)

    def receive(self) -> Any:
        """Return its next message. Raise Lost if it died."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            raise Lost(f"exit code {self.end()}") from None

    def end(self) -> int:
        """End the process, if it still lives, and return its exit code."""
        if self.code is None:
            self.code = self.starter.end(self.process)
        return self.code

    def kill(self) -> None:
        """End the process and close the pipe."""
        self.end()
        self.pipe.close()


class RayWorker(Worker):
    """A worker on a Ray cluster, with one core. It has the methods of a :class:`ProcessWorker`."""

    def __init__(self, f: Callable[..., Any], streams: list[int]) -> None:
        super().__init__()
        self.ray, _ = join_ray()
        self.f = f
        self.server = self.ray.remote(num_cpus=1)(_Server).remote()
        self.message = self.server.start.remote()

    @staticmethod
    def prepare(f: Callable[..., Any]) -> Callable[..., Any]:
        return f  # Ray packs it

    @staticmethod
    def imports_main(f: Any) -> bool:
        return False

    @staticmethod
    def wait(workers: Sequence[Any], timeout: float) -> list[Any]:
        messages = [worker.message for worker in workers if worker.message is not None]
        seconds = None if timeout == inf else max(0.0, timeout)
        arrived, _ = workers[0].ray.wait(messages, num_returns=1, timeout=seconds)
        return [worker for worker in workers if worker.message in arrived]

    def died_idle(self) -> bool:
        return False

    def send(self, row: int, streams: list[int], arguments: tuple[Any, ...]) -> None:
        self.message = self.server.answer.remote(row, streams, pack(arguments).data)

    def receive(self) -> Any:
        message, self.message = self.message, None
        try:
            content = self.ray.get(message)
        except self.ray.exceptions.RayActorError as error:
            raise Lost(str(error).strip().splitlines()[-1].strip()) from None
        if content == STARTED:
            self.message = self.server.load.remote(self.f)
        return content

    def end(self) -> int:
        self.ray.kill(self.server)
        return 0

    kill = end


class _Server:
    """The actor behind a :class:`RayWorker`."""

    def start(self) -> str:
        return STARTED

    def load(self, f: Callable[..., Any]) -> str:
        self.f = f
        return READY

    def answer(self, row: int, streams: list[int], arguments: bytes) -> Answer:
        return answer(self.f, row, streams, arguments)


def join_ray(address: str | None = None, **local: Any) -> tuple[Any, bool]:
    """Connect to a Ray cluster; return the module ray, and whether it was connected just now.

    The cluster is that at ``address`` (or RAY_ADDRESS), else one that is started on this machine
    with the settings ``local``.
    """
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise ImportError("Ray is not installed: pip install 'ray>=2.40'.") from error
    if ray.is_initialized():
        return ray, False
    address = address or os.environ.get("RAY_ADDRESS")
    settings: dict[str, Any] = {"include_dashboard": False, **local}
    if address:
        settings = {"address": address}
    ray.init(log_to_driver=False, logging_level="error", **settings)
    return ray, True
