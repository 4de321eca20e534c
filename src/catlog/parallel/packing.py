"""Functions and values as bytes for another process, including closures and those of notebooks."""

import contextlib
import importlib
import pickle
import sys
from pathlib import Path
from typing import Any, NamedTuple


class Packed(NamedTuple):
    """A pickled value, and how to import this process's script before it is loaded.

    Attributes:
        data: The bytes for ``pickle.loads``.
        main: "module" or "file", and its name; None if the script is not needed.
    """

    data: bytes
    main: tuple[str, str] | None = None


def pack(value: object) -> Packed:
    """Pack a value by its name in a module, else as a copy (cloudpickle), else by its script."""
    data = None
    with contextlib.suppress(Exception):
        data = pickle.dumps(value)
    if data is not None and b"__main__" not in data:
        return Packed(data)
    try:
        return Packed(importlib.import_module("cloudpickle").dumps(value))
    except ImportError:
        reason, remedy = "", "Install cloudpickle (pip install 'cloudpickle>=3'), or define it"
    except Exception as error:
        reason, remedy = f" ({type(error).__name__}: {error})", "Define it"
    main = script()
    if data is None or main is None:
        raise TypeError(
            f"Pool: {value!r} cannot be sent to a worker{reason}: it has no name in a module. "
            f"{remedy} in a module that workers can import."
        )
    return Packed(data, main)


def script() -> tuple[str, str] | None:
    """Return how to import ``__main__``, as "module" or "file" and its name; None in a notebook."""
    main: Any = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if name is not None:
        return "module", name
    file = getattr(main, "__file__", None)
    if file is None or hasattr(sys, "ps1") or not Path(file).is_file():
        return None
    return "file", str(Path(file).resolve())
