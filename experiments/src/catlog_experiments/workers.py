"""Worker processes that stop with their parent, and whose deaths do not affect each other."""

import _thread
import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from multiprocessing.process import BaseProcess
from typing import Any

GRACE = 60.0  # seconds between the request to stop and the kill


class Died:
    """The result of a call whose worker died."""


class Workers:
    """``count`` processes that call ``work(*arguments)``.

    A process is started when it is first needed, and replaced if it died.

    Use it as a context manager. At the end of the context, and at Ctrl-C or SIGTERM inside, every
    worker gets a SIGTERM, which is a KeyboardInterrupt in ``work`` unless ``work`` handles it. A
    second Ctrl-C, or ``GRACE`` seconds, and the workers are killed. A worker whose parent was
    killed stops by itself in the same way.
    """

    def __init__(self, count: int, work: Callable[..., Any]) -> None:
        self.count = count
        self.work = work
        self._all: list[_Worker] = []
        self._idle: list[_Worker] = []
        self._busy: dict[Any, _Worker] = {}
        self._handler: Any = None

    @property
    def free(self) -> int:
        """Return the number of workers that can take a call."""
        return self.count - len(self._busy)

    @property
    def busy(self) -> bool:
        return bool(self._busy)

    def submit(self, key: Any, *arguments: Any) -> None:
        """Call ``work(*arguments)`` in a free worker; its result is returned under ``key``."""
        while self._idle and not self._idle[-1].process.is_alive():
            self._end(self._idle.pop())
        if not self._idle:
            self._all.append(_Worker(self.work))
            self._idle.append(self._all[-1])
        worker = self._busy[key] = self._idle.pop()
        with contextlib.suppress(OSError):  # it died just now: results() reports it
            worker.connection.send(arguments)

    def results(self, timeout: float) -> Iterator[tuple[Any, Any]]:
        """Wait at most ``timeout`` seconds; yield keys with their results, or with ``Died()``."""
        watched: dict[Any, Any] = {}
        for key, worker in self._busy.items():
            watched[worker.connection] = watched[worker.process.sentinel] = key
        ready = wait_for(list(watched), timeout)
        for key in dict.fromkeys(watched[handle] for handle in ready):
            worker = self._busy.pop(key)
            try:
                result = worker.connection.recv()
            except (EOFError, OSError):
                self._end(worker)
                yield key, Died()
            else:
                self._idle.append(worker)
                yield key, result

    def __enter__(self) -> "Workers":
        if threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGTERM, _interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._stop()
        finally:
            if self._handler is not None:
                signal.signal(signal.SIGTERM, self._handler)

    def _stop(self) -> None:
        try:
            for worker in self._all:
                worker.process.terminate()
            limit = time.monotonic() + GRACE
            for worker in self._all:
                worker.process.join(max(0.0, limit - time.monotonic()))
        finally:
            for worker in list(self._all):
                self._end(worker)

    def _end(self, worker: "_Worker") -> None:
        worker.kill()
        self._all.remove(worker)


class _Worker:
    """One process and the pipe to it."""

    def __init__(self, work: Callable[..., Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, remote_end = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(remote_end, work))
        with _ctrl_c_blocked():
            self.process.start()
        remote_end.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


@contextlib.contextmanager
def _ctrl_c_blocked() -> Iterator[None]:
    """Block Ctrl-C. A process started here inherits that, so its imports print no traceback."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _serve(connection: Connection, work: Callable[..., Any]) -> None:
    """Call ``work`` with arguments from the pipe and send back its results, until the pipe ends."""
    try:
        signal.signal(signal.SIGTERM, _interrupt)
        threading.Thread(target=_end_with_parent, daemon=True).start()
        if sys.platform != "win32":
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        while True:
            connection.send(work(*connection.recv()))
    except (KeyboardInterrupt, EOFError, OSError):
        os._exit(1)  # nothing to clean up, and nobody to report to


def _end_with_parent() -> None:
    """Stop this process when its parent is gone: by SIGTERM, then by force."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait_for([parent.sentinel])
    _thread.interrupt_main(signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(1)
