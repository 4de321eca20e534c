"""Settings of estimators, checked by their annotations, and printed so that they can be pasted."""

from collections.abc import Callable
from inspect import signature
from math import inf
from numbers import Real
from sys import maxsize
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from torch import Tensor, nn

from .checks import check_choice, check_count, check_flag, check_number, check_temperature
from .tracing import can_inspect


class Range(NamedTuple):
    """Bounds of a number, for ``Annotated``.

    Attributes:
        least, most: the ends, which belong to it.
        above: whether ``least`` does not belong to it.
        below: whether ``most`` does not.
        hint: what to do instead, for an error.
    """

    least: float = -inf
    most: float = inf
    above: bool = False
    below: bool = False
    hint: str = ""


Count = Annotated[int, Range(1)]
Positive = Annotated[float, Range(0, above=True)]
Temperature = Annotated[float | Tensor, "one"]
Temperatures = Annotated[float | Tensor, "many"]  # one, or one per variable
# Of a learner: a number, which becomes a parameter that starts there.
Learned = Annotated[Any, "learned"]


def check_setting(owner: str, name: str, value: object, kind: Any, hint: str = "") -> None:
    """Raise unless a setting is what its annotation says.

    >>> check_setting("Exact", "limit", 0, Count)
    Traceback (most recent call last):
    ValueError: Exact: `limit` must be at least 1, but 0 was given.
    """
    parts = get_args(kind) if get_origin(kind) in (UnionType, Union) else (kind,)
    if value is None and type(None) in parts:
        return
    kind = next(part for part in parts if part is not type(None))
    takes_functions = any(get_origin(part) is Callable for part in parts)
    bounds: Any = Range()
    if get_origin(kind) is Annotated:
        kind, bounds = get_args(kind)
    if get_origin(kind) is Literal:
        check_choice(owner, name, value, get_args(kind))
    elif bounds == "learned":
        if not isinstance(value, nn.Parameter):  # that of an estimator which this one is made from
            check_number(owner, name, value)
    elif isinstance(bounds, str):
        check_temperature(owner, value, name, many=bounds == "many")
    elif kind is bool:
        check_flag(owner, name, value)
    elif kind is int:
        least, most = int(max(bounds.least, -(2**62))), bounds.most
        most = most if most < inf else maxsize
        check_count(owner, name, value, least, most, hint or bounds.hint)
    elif kind is float and not (callable(value) and takes_functions):
        numbers = "a number or a callable" if takes_functions else "a number"
        least, most, above, below, _ = bounds
        check_number(owner, name, value, least, most, closed=not below, above=above, kind=numbers)
    elif kind is nn.Module and not isinstance(value, nn.Module):
        raise TypeError(f"{owner}: `{name}` must be an nn.Module or None, but {value!r} was given.")


def label(E: object) -> str:
    """Return the name of an estimator, its number of draws and the settings that are not defaults.

    It is the ``__repr__`` of every estimator. Python and ``compare`` make the same estimator of it
    again. Coefficients that an estimator learns are left out; of a function or a module there is
    only the name.

    >>> from catlog.estimators import DoubleCV, SumAndSample
    >>> from catlog import IndeCateR
    >>> IndeCateR(2, sampling="latin"), DoubleCV(4), SumAndSample(top=3)
    (IndeCateR(2, sampling='latin'), DoubleCV(4), SumAndSample(1, top=3))
    """
    settings: list[str] = []
    for name, parameter in signature(type(E)).parameters.items():
        value = getattr(E, name, parameter.default)
        if name == "samples":
            settings.insert(0, _shown(value))
        elif not isinstance(value, nn.Parameter) and value is not parameter.default:
            text = _shown(value)
            if text != _shown(parameter.default):
                settings.append(f"{name}={text}")
    return f"{type(E).__name__}({', '.join(settings)})"


def _shown(value: object) -> str:
    """Return a setting in few characters that still tell it from every other number."""
    if isinstance(value, Tensor):
        if value.numel() != 1 or not can_inspect(True, value):
            return "tensor"
        short = f"{value.item():.3g}"
        return short if bool(value == float(short)) else repr(value.item())
    if value is None or isinstance(value, bool | int | str | tuple | list):
        return repr(value)
    if isinstance(value, Real):
        short = f"{float(value):.3g}"
        return short if float(short) == value else repr(float(value))
    return str(getattr(value, "__name__", type(value).__name__))
