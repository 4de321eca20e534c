"""What a worker of a :class:`catlog.parallel.Pool` does: import f, then evaluate it row by row."""

import contextlib
import os
import pickle
import random
import reprlib
import runpy
import sys
import traceback
import types
from collections.abc import Callable
from math import isfinite
from multiprocessing import process as processes
from typing import Any

import torch

# A worker sends these before and after it imports f.
STARTED = "started"
READY = "ready"
# The row, the value of f there (None if it failed), the reason of a failure and its traceback.
Answer = tuple[int, float | list[Any] | None, str, str]


def serve(pipe: Any) -> None:
    """Answer until the other end is gone: first come the arguments of `prepare`, then rows."""
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
    """Return f, with the paths, arguments and working folder of the parent process.

    ``main`` is how the parent's script is imported first, if it must be: see :func:`import_main`.
    """
    sys.path[:] = path
    sys.argv[:] = argv
    with contextlib.suppress(OSError):
        os.chdir(folder)
    reseed(streams)
    torch.set_num_threads(1)
    if main is not None:
        import_main(*main)
    return pickle.loads(f)


def import_main(how: str, name: str) -> None:
    """Import the parent's script under another name than ``__main__``, as multiprocessing does."""
    process: Any = processes.current_process()
    process._inheriting = True  # marks pools that are called without a main guard
    try:
        run = runpy.run_module if how == "module" else runpy.run_path
        module = types.ModuleType("__mp_main__")
        module.__dict__.update(run(name, run_name="__mp_main__"))
        sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    finally:
        del process._inheriting


def answer(f: Callable[..., Any], row: int, streams: list[int], arguments: bytes) -> Answer:
    """Evaluate f at one row, with the random numbers of that row."""
    reseed(streams)
    try:
        points, outputs = pickle.loads(arguments)
        result = f(*points)
        value = numbers(result, outputs) if outputs else number(result)
    except NotANumberError as error:
        return row, None, str(error), ""
    except Exception as error:
        return row, None, f"it raised {type(error).__name__}: {error}", traceback.format_exc()
    if not (isinstance(value, list) or isfinite(value)):
        return row, None, f"it returned {value}, which is not a finite number", ""
    return row, value, "", ""


class NotANumberError(Exception):
    """What f returned is not a number."""


def number(result: Any) -> float:
    """Return the result as a float, or raise."""
    try:
        return float(result)
    except (TypeError, ValueError):
        shape = getattr(result, "shape", ())
        what = f"an array of shape {tuple(shape)}" if shape else reprlib.repr(result)
        remedy = f"; pass outputs={len(shape)} if it is meant" if shape else ""
        raise NotANumberError(f"it returned {what}, which is not a number{remedy}") from None


def numbers(result: Any, outputs: int) -> list[Any]:
    """Return an array of this many dimensions as nested lists, or raise."""
    import numpy

    values = numpy.asarray(result, dtype=float)
    if values.ndim != outputs:
        raise ValueError(
            f"f must return an array of {outputs} output dimensions, but it has {values.ndim}"
        )
    if not numpy.isfinite(values).all():
        raise ValueError(f"f must return finite numbers, but it returned {values.tolist()}")
    nested: list[Any] = values.tolist()
    return nested


def reseed(streams: list[int]) -> None:
    """Seed the global generators of numpy, Python and torch, each from a different part."""
    import numpy

    words = numpy.random.SeedSequence(streams).generate_state(12)
    numpy.random.seed(words[:4])  # noqa: NPY002 (f may use it)
    random.seed(words[4:8].tobytes())
    seed = int.from_bytes(words[8:10].tobytes(), "little")
    # torch.manual_seed takes 0.4 ms, since it visits every kind of device.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
