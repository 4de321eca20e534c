"""Start and end the workers of a pool: by a keeper process or, on Windows, by multiprocessing."""

import contextlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from functools import cache
from itertools import count
from multiprocessing import spawn
from typing import Any

from . import keeper, serving


class Lost(Exception):  # noqa: N818
    """Raised when a worker is gone."""


def starter() -> "Keeper | Spawner":
    """Return what starts and ends the workers of this process on this system."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError("the script calls a pool at its import, and workers import the script")
    if not hasattr(os, "fork"):
        return Spawner()
    if not living_keeper(os.getpid()).living():
        living_keeper.cache_clear()
    return living_keeper(os.getpid())


@cache
def living_keeper(parent: int) -> "Keeper":
    """Return the keeper that all pools of a process share: its start imports catlog."""
    return Keeper()


class Keeper:
    """The process in which :func:`catlog.parallel.keeper.keep` runs. Threads may share it."""

    def __init__(self) -> None:
        self.socket, remote = socket.socketpair()
        path = [str(entry) for entry in sys.path]
        keep = f"from {keeper.__name__} import keep; keep({remote.fileno()})"
        code = f"import sys; sys.path[:] = {path!r}; {keep}"
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        self.process = subprocess.Popen(
            [os.fsdecode(spawn.get_executable()), *flags, "-c", code],
            pass_fds=[remote.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # only the parent handles Ctrl-C
        )
        remote.close()
        self.lock = threading.Lock()
        self.numbers = count()
        self.groups: set[int] = set()
        resources = (self.socket, self.process, self.groups)
        self.close = weakref.finalize(self, _close, os.getpid(), *resources)

    def living(self) -> bool:
        """Return whether the process still runs."""
        return self.close.alive and self.process.poll() is None

    def start(self, pipe: Any) -> int:
        """Start a worker that serves at this end of a pipe; return its process id."""
        pid = self._ask(0, pipe.fileno())
        self.groups.add(pid)
        return pid

    def end(self, process: int) -> int:
        """End a worker, if it still lives, and what it started; return its exit code."""
        try:
            return self._ask(process)
        except Lost:  # workers die with their keeper, but what they started may still live
            _end_groups({process})
            return -signal.SIGKILL
        finally:
            self.groups.discard(process)

    def _ask(self, process: int, *handles: int) -> int:
        with self.lock:
            number = next(self.numbers)
            try:
                socket.send_fds(self.socket, [keeper.REQUEST.pack(number, process)], handles)
                while True:
                    reply = self.socket.recv(keeper.REPLY.size)
                    if not reply:
                        raise Lost("the process that starts workers died")
                    answered, value = keeper.REPLY.unpack(reply)
                    if answered == number:  # else an interrupted call asked for it
                        return int(value)
            except OSError as error:
                raise Lost(f"the process that starts workers died: {error}") from None


def _close(
    owner: int, control: socket.socket, process: "subprocess.Popen[bytes]", groups: set[int]
) -> None:
    """End a keeper and with it all workers; in a forked process, only close the copied socket."""
    if os.getpid() != owner:
        process.returncode = 0  # it is a child of another process
        control.close()
        return
    with contextlib.closing(control):
        with contextlib.suppress(OSError):
            control.shutdown(socket.SHUT_RDWR)  # even if other processes have inherited it
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.returncode:
            _end_groups(groups)


def _end_groups(groups: set[int]) -> None:
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


class Spawner:
    """Workers by multiprocessing, for systems that cannot fork.

    Processes that f started are not ended with their worker.
    """

    def start(self, pipe: Any) -> Any:
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=_serve, args=(pipe,), daemon=True)
        process.start()
        return process

    def end(self, process: Any) -> int:
        process.kill()
        process.join()
        return int(process.exitcode)


def _serve(pipe: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the parent handles Ctrl-C
    serving.serve(pipe)
