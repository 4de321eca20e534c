"""Functions and values as bytes for another process, also those that no module holds: of a notebook, a script, a closure."""

import importlib
import pickle
import sys
from pathlib import Path
from typing import Any, NamedTuple


class Packed(NamedTuple):
    """What ``pickle.loads`` takes; and how the other process has to import this one's script first, if it must (how, name)."""

    data: bytes
    main: tuple[str, str] | None = None


def pack(value: object) -> Packed:
    """The value by its name in a module where it has one, else (cloudpickle) as a copy, else by its name in this script."""
    data, trouble = None, None
    try:
        data = pickle.dumps(value)
    except Exception as error:
        trouble = error
    if data is not None and b"__main__" not in data:
        return Packed(data)
    try:
        return Packed(importlib.import_module("cloudpickle").dumps(value))
    except Exception as error:
        trouble = error
    main = script()
    if data is None or main is None:
        missing = isinstance(trouble, ImportError)
        way = (
            "Install cloudpickle (pip install 'catlog[pool]'), or define it"
            if missing
            else "Define it"
        )
        where = "cannot be sent to a worker" + (
            "" if missing else f" ({type(trouble).__name__}: {trouble})"
        )
        raise TypeError(
            f"Pool: {value!r} {where}: it has no name in a module. {way} in a module that workers can import."
        )
    return Packed(data, main)


def script() -> tuple[str, str] | None:
    """How to import what runs as ``__main__``: a module by its name, or a file; None: it is a notebook, or typed in."""
    main: Any = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if name is not None:
        return "module", name
    file = getattr(main, "__file__", None)
    if file is None or hasattr(sys, "ps1") or not Path(file).is_file():
        return None
    return "file", str(Path(file).resolve())
