"""Worker processes that end with the process that started them, however that ends, and die one by one."""

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

GRACE = 60.0  # seconds that a worker has to stop after it was asked to


class Died:
    """In place of a result: the worker died."""


class Workers:
    """``count`` processes that call ``work(*arguments)``; each is started when it is first needed, and again when it died.

    As a context: at its end, and at Ctrl-C or SIGTERM inside, every worker is asked to stop (by SIGTERM, a KeyboardInterrupt in
    ``work`` unless it has a handler of its own) and waited for; a second Ctrl-C, or ``GRACE`` seconds, and they are killed. A
    worker whose parent was killed stops by itself in the same way.
    """

    def __init__(self, count: int, work: Callable[..., Any]) -> None:
        self.count, self.work = count, work
        self._all: list[_Worker] = []
        self._idle: list[_Worker] = []
        self._busy: dict[Any, _Worker] = {}
        self._handler: Any = None

    @property
    def free(self) -> int:
        """How many more can be given something."""
        return self.count - len(self._busy)

    @property
    def busy(self) -> bool:
        return bool(self._busy)

    def give(self, key: Any, *arguments: Any) -> None:
        """Have a free worker do this; its result comes under ``key``."""
        while self._idle and not self._idle[-1].process.is_alive():
            self._end(self._idle.pop())
        if not self._idle:
            self._all.append(_Worker(self.work))
            self._idle.append(self._all[-1])
        worker = self._busy[key] = self._idle.pop()
        with contextlib.suppress(OSError):  # it died just now: results() will tell
            worker.connection.send(arguments)

    def results(self, timeout: float) -> Iterator[tuple[Any, Any]]:
        """What has come in, after at most so many seconds of waiting: results under their keys, or ``Died()``."""
        watched = {
            each: key
            for key, worker in self._busy.items()
            for each in (worker.connection, worker.process.sentinel)
        }
        for key in dict.fromkeys(watched[each] for each in wait_for(list(watched), timeout)):  # type: ignore[index]
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
            until = time.monotonic() + GRACE
            for worker in self._all:
                worker.process.join(max(0.0, until - time.monotonic()))
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
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs, work))
        with _ctrl_c_held_back():
            self.process.start()
        theirs.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


@contextlib.contextmanager
def _ctrl_c_held_back() -> Iterator[None]:
    """Have Ctrl-C wait: the process that is started here inherits that, and has no traceback of its imports to show."""
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
    """A worker's life: what comes through the pipe is done, and its result sent back."""
    try:
        signal.signal(signal.SIGTERM, _interrupt)
        threading.Thread(target=_end_with_parent, daemon=True).start()
        if sys.platform != "win32":
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        while True:
            connection.send(work(*connection.recv()))
    except (KeyboardInterrupt, EOFError, OSError):
        os._exit(1)  # nothing to clean up, and nobody to tell


def _end_with_parent() -> None:
    """Stop this process when its parent is gone: politely, then not."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait_for([parent.sentinel])
    _thread.interrupt_main(signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(1)
