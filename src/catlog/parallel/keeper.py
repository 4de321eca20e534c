"""The keeper of a :class:`catlog.parallel.Pool`: the process that forks its workers.

It has no threads and has imported catlog and torch, so a worker costs one fork. It ends a
worker together with everything that the worker started. It ends all workers when its parent is
gone, however that died. On Linux nothing escapes: the keeper adopts the processes that a dead
worker leaves behind. On other systems it ends the worker's process group.
"""

import contextlib
import ctypes
import os
import signal
import socket
import struct
import sys
import traceback
import warnings
from multiprocessing.connection import Connection, wait

from .serving import serve

# A request is its number and the process to end; 0 starts one at the pipe that is sent along.
REQUEST = struct.Struct("<Qq")
# A reply is the number of the request and the process started, or the exit code of the one ended.
REPLY = struct.Struct("<Qq")
# The options of <linux/prctl.h>: PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER.
DIE_WITH_PARENT = 1
ADOPT_ORPHANS = 36


def keep(handle: int) -> None:
    """Start and end workers as the parent asks (over the socket ``handle``), until it is gone."""
    control = socket.socket(fileno=handle)
    parent = os.getppid()
    control.set_inheritable(False)
    _prctl(ADOPT_ORPHANS, 1)
    living: set[int] = set()
    codes: dict[int, int] = {}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    deaths = _notify_of_deaths()
    try:
        # The socket alone does not show it: other processes may have inherited its other end.
        while os.getppid() == parent:
            readable = wait([control, deaths], timeout=0.5)
            if deaths in readable:
                os.read(deaths, 4096)
                _collect_dead(living, codes)
            if control in readable and not _serve_request(control, living, codes):
                break
    except ConnectionError:
        pass  # the parent was killed while it asked
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for pid in living:
            _kill(pid)
        _end_orphans(set())


def _serve_request(control: socket.socket, living: set[int], codes: dict[int, int]) -> bool:
    """Start or end a worker as the parent asks; return False if the parent is gone."""
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
    """Start a worker at the pipe ``handle``, as the leader of a new session."""
    keeper = os.getpid()
    with warnings.catch_warnings():
        # The idle threads of numpy are safe to fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        os.close(handle)
        return pid
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        control.close()
        os.set_inheritable(handle, False)
        _prctl(DIE_WITH_PARENT, signal.SIGKILL)
        _prctl(ADOPT_ORPHANS, 1)  # so that processes that f started stay below this worker
        if os.getppid() == keeper:
            pipe = Connection(handle)  # open until the exit, whose code it would hide
            serve(pipe)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os._exit(code)


def _notify_of_deaths() -> int:
    """Return a file descriptor that becomes readable when a child dies."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reader


def _collect_dead(living: set[int], codes: dict[int, int]) -> None:
    """Record the exit codes of workers that have died, and end what they have started."""
    for pid in sorted(living):
        dead, status = os.waitpid(pid, os.WNOHANG)
        if dead:
            living.remove(pid)
            codes[pid] = os.waitstatus_to_exitcode(status)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
    _end_orphans(living)


def _kill(pid: int) -> int:
    """End a worker with its process group; return its exit code."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _end_orphans(living: set[int]) -> None:
    """End the processes that dead workers have left, and those that they leave in turn."""
    kept = set(living)
    while orphans := [pid for pid in _children() if pid not in kept]:
        for pid in orphans:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except PermissionError:  # it runs as another user
                kept.add(pid)


def _children() -> list[int]:
    """Return the children of this process; none on systems without /proc."""
    children = []
    with contextlib.suppress(OSError):
        if os.readlink("/proc/self") != str(os.getpid()):
            return []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:
                if int(stat.read().rpartition(b")")[2].split()[1]) == os.getpid():
                    children.append(int(name))
    return children


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
