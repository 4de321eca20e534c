"""What runs in the other processes of a :class:`catlog.functions.Pool`: the keeper, which forks workers, and a worker's own loop.

The keeper has no threads and has imported catlog and torch, so that a worker costs one fork. It ends a worker together with
everything that the worker started, and all of them when its own parent is gone, however that died. On Linux nothing escapes it:
it adopts the processes that a dead worker leaves behind. Elsewhere a worker's process group is what is ended.
"""

import contextlib
import ctypes
import os
import pickle
import random
import runpy
import signal
import socket
import struct
import sys
import traceback
import types
import warnings
from collections.abc import Callable
from math import isfinite
from multiprocessing import process as processes
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

REQUEST = struct.Struct(
    "<Qq"
)  # its number; the process to end, or 0: start one, with the pipe that comes along
REPLY = struct.Struct(
    "<Qq"
)  # the request's number; the process started, or the exit code of the one ended
STARTED, READY = "started", "ready"  # what a worker says before and after it imports f

Answer = tuple[
    int, float | None, str, str
]  # row; f there, or None and then what went wrong, and a traceback


# a worker


def serve(pipe: Any) -> None:
    """Answer until the other end is gone: first comes the work (see :func:`prepare`), then rows."""
    with contextlib.suppress(EOFError, OSError):
        work = pipe.recv()
        pipe.send(STARTED)
        try:
            f = prepare(*work)
        except Exception as error:
            pipe.send((-1, None, f"{type(error).__name__}: {error}", traceback.format_exc()))
            return
        pipe.send(READY)
        while True:
            pipe.send(answer(f, *pipe.recv()))


def prepare(
    f: bytes,
    main: tuple[str, str] | None,
    path: list[str],
    argv: list[str],
    folder: str,
    streams: list[int],
) -> Any:
    """f, in the place that the parent process is in; ``main`` (how, name): the script to import first."""
    sys.path[:], sys.argv[:] = path, argv
    with contextlib.suppress(OSError):
        os.chdir(folder)
    reseed(streams)
    torch.set_num_threads(1)
    if main is not None:
        import_main(*main)
    return pickle.loads(f)


def import_main(how: str, name: str) -> None:
    """Import the parent's script as multiprocessing does, under a name for which ``if __name__ == "__main__"`` is false."""
    process: Any = processes.current_process()
    process._inheriting = True  # a pool that is called now has no main guard around it
    try:
        run = runpy.run_module if how == "module" else runpy.run_path
        module = types.ModuleType("__mp_main__")
        module.__dict__.update(run(name, run_name="__mp_main__"))
        sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    finally:
        del process._inheriting


def answer(f: Callable[..., Any], row: int, streams: list[int], given: bytes) -> Answer:
    """f at one row, with random numbers of the row's own."""
    reseed(streams)
    try:
        value = float(f(*pickle.loads(given)))
    except Exception as error:
        return row, None, f"it raised {type(error).__name__}: {error}", traceback.format_exc()
    return (
        (row, value, "", "")
        if isfinite(value)
        else (row, None, f"it returned {value}, which is not a finite number", "")
    )


def reseed(streams: list[int]) -> None:
    """Seed numpy's, Python's and torch's global generators from these numbers, each from a part of its own."""
    import numpy

    words = numpy.random.SeedSequence(streams).generate_state(12)
    numpy.random.seed(words[:4])  # noqa: NPY002 (f may use it)
    random.seed(words[4:8].tobytes())
    seed = int.from_bytes(words[8:10].tobytes(), "little")
    torch.default_generator.manual_seed(
        seed
    )  # torch.manual_seed takes 0.4 ms: it asks for every kind of device
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


# the keeper


def keep(handle: int) -> None:
    """Start and end workers as the parent asks (over the socket ``handle``), until it is gone."""
    control, parent = socket.socket(fileno=handle), os.getppid()
    control.set_inheritable(False)
    _prctl(_ADOPT_ORPHANS, 1)
    living: set[int] = set()
    codes: dict[int, int] = {}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    died = _told_of_deaths()
    try:
        while (
            os.getppid() == parent
        ):  # the socket alone does not tell: others may have inherited its other end
            came = wait([control, died], timeout=0.5)
            if died in came:
                os.read(died, 4096)
                _bury(living, codes)
            if control in came and not _obeyed(control, living, codes):
                break
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for pid in living:
            _kill(pid)
        _end_orphans(set())


def _obeyed(control: socket.socket, living: set[int], codes: dict[int, int]) -> bool:
    """Do what the parent asks; False once it has gone."""
    request, handles, *_ = socket.recv_fds(control, REQUEST.size, 1)
    if not request:
        return False
    number, pid = REQUEST.unpack(request)
    if pid == 0:
        value = _fork(handles[0], control)
        living.add(value)
    else:
        if pid in living:
            codes[pid] = _kill(pid)
            living.remove(pid)
            _end_orphans(living)
        value = codes.pop(pid, 0)
    control.sendall(REPLY.pack(number, value))
    return True


def _fork(handle: int, control: socket.socket) -> int:
    """A new worker at the pipe ``handle``: the leader of a session of its own."""
    keeper = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # numpy's idle threads: they know about forks
        pid = os.fork()
    if pid:
        os.close(handle)
        return pid
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for each in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)
        control.close()
        os.set_inheritable(handle, False)
        _prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        _prctl(_ADOPT_ORPHANS, 1)  # so that what f started stays below this worker
        if os.getppid() == keeper:
            serve(Connection(handle))
        code = 0
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os._exit(code)


def _told_of_deaths() -> int:
    """A file descriptor that can be read from once a child has died."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reader


def _bury(living: set[int], codes: dict[int, int]) -> None:
    """Take note of the workers that have died by themselves, and end what they left."""
    for pid in sorted(living):
        dead, status = os.waitpid(pid, os.WNOHANG)
        if dead:
            living.remove(pid)
            codes[pid] = os.waitstatus_to_exitcode(status)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
    _end_orphans(living)


def _kill(pid: int) -> int:
    """End a worker, with its process group; its exit code."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _end_orphans(living: set[int]) -> None:
    """End what dead workers have left to this process, and what that leaves in turn."""
    spared = set(living)
    while orphans := [pid for pid in _children() if pid not in spared]:
        for pid in orphans:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except PermissionError:  # it runs as someone else
                spared.add(pid)


def _children() -> list[int]:
    """The children of this process; none where there is no /proc of it."""
    found = []
    with contextlib.suppress(OSError):
        if os.readlink("/proc/self") != str(os.getpid()):
            return []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:
                if int(stat.read().rpartition(b")")[2].split()[1]) == os.getpid():
                    found.append(int(name))
    return found


_DIE_WITH_PARENT, _ADOPT_ORPHANS = (
    1,
    36,
)  # PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER of <linux/prctl.h>


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
