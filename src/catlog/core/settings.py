"""Settings of estimators, checked by their annotations, and printed so that they can be pasted."""

from inspect import signature
from math import isfinite
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from torch import Tensor, nn

from ..tracing import can_inspect


class Range:
    """Bounds of a number, for ``Annotated``.

    >>> Decay = Annotated[float, Range(0, 1)]
    """

    def __init__(
        self, least: float = float("-inf"), most: float = float("inf"), *, open: str = ""
    ) -> None:
        self.least = least
        self.most = most
        self.open = open  # ends that do not belong to it: "", "least", "most" or both

    def __contains__(self, value: float) -> bool:
        above = value > self.least if "least" in self.open else value >= self.least
        below = value < self.most if "most" in self.open else value <= self.most
        return above and below

    def __str__(self) -> str:
        if self.most == float("inf"):
            if self.least == float("-inf"):
                return "finite"
            least = f"{self.least:g}"
            return f"above {least}" if "least" in self.open else f"at least {least}"
        ends = "(" if "least" in self.open else "[", ")" if "most" in self.open else "]"
        return f"in {ends[0]}{self.least:g}, {self.most:g}{ends[1]}"


Count = Annotated[int, Range(1)]
Positive = Annotated[float, Range(0, open="least")]
Temperature = Annotated[float | Tensor, Range(0, open="least")]


def check_setting(owner: str, name: str, value: object, kind: Any, hint: str = "") -> None:
    """Raise unless a setting is what its annotation says.

    >>> check_setting("RLOO", "samples", 0, Annotated[int, Range(2)])
    Traceback (most recent call last):
    ValueError: RLOO: `samples` must be at least 2, but 0 was given.
    """
    bounds = Range()
    if get_origin(kind) is Annotated:
        kind, bounds = get_args(kind)
    parts = get_args(kind) if get_origin(kind) in (UnionType, Union) else (kind,)
    advice = f" {hint}" if hint else ""
    if value is None and type(None) in parts:
        return
    for part in parts:
        if get_origin(part) is Annotated:
            return check_setting(owner, name, value, part, hint)
    choices = [choice for part in parts if get_origin(part) is Literal for choice in get_args(part)]
    if choices:
        if not isinstance(value, str) or value not in choices:
            listing = ", ".join(map(repr, choices))
            raise ValueError(
                f"{owner}: `{name}` must be one of {listing}, but {value!r} was given."
            )
        return
    if isinstance(value, Tensor) and Tensor in parts:
        return _check_tensor(owner, name, value, bounds)
    if bool in parts:
        if not isinstance(value, bool):
            raise TypeError(f"{owner}: `{name}` must be True or False, but {value!r} was given.")
    elif int in parts or float in parts:
        _check_number(owner, name, value, bounds, is_count=float not in parts, advice=advice)
    elif nn.Module in parts and not isinstance(value, nn.Module):
        raise TypeError(f"{owner}: `{name}` must be an nn.Module or None, but {value!r} was given.")


def _check_number(
    owner: str, name: str, value: object, bounds: Range, is_count: bool, advice: str
) -> None:
    accepted = int if is_count else (int, float)
    if isinstance(value, bool) or not isinstance(value, accepted):
        kind = f"an int of {bounds}" if is_count else "a number"
        raise TypeError(f"{owner}: `{name}` must be {kind}, but {value!r} was given.{advice}")
    assert isinstance(value, (int, float))
    if abs(value) == float("inf") or value != value or value not in bounds:
        raise ValueError(f"{owner}: `{name}` must be {bounds}, but {value} was given.{advice}")


def _check_tensor(owner: str, name: str, value: Tensor, bounds: Range) -> None:
    """Raise unless a tensor is one number; its value may change later."""
    if value.dim() > 0 or not value.is_floating_point():
        raise TypeError(
            f"{owner}: `{name}` must be a number or a 0-d tensor of floats, but one of "
            f"{value.dtype} with shape {tuple(value.shape)} was given."
        )
    if can_inspect(True, value):
        number = value.item()
        if not isfinite(number) or number not in bounds:
            raise ValueError(f"{owner}: `{name}` must be {bounds}, but {number} was given.")


def label(E: object) -> str:
    """Return the name of an estimator, its number of draws and the settings that are not defaults.

    It is the ``__repr__`` of every estimator, and can be pasted, as ``RLOO(2)``. Coefficients that
    an estimator learns are left out; of a function or a module there is only the name.
    """
    settings: list[str] = []
    for position, (name, parameter) in enumerate(signature(type(E)).parameters.items()):
        value = getattr(E, name, parameter.default)
        if name == "samples":
            settings.insert(0, _shown(value) if position == 0 else f"{name}={_shown(value)}")
        elif not isinstance(value, nn.Parameter) and value is not parameter.default:
            text = _shown(value)
            if text != _shown(parameter.default):
                settings.append(f"{name}={text}")
    return f"{type(E).__name__}({', '.join(settings)})"


def _shown(value: object) -> str:
    """Return a setting in few characters that still tell it from every other number."""
    if isinstance(value, Tensor):
        if value.dim() > 0 or not can_inspect(True, value):
            return "tensor"
        value = value.item()
    if isinstance(value, float):
        short = f"{value:.3g}"
        return short if float(short) == value else repr(value)
    if value is None or isinstance(value, bool | int | str | tuple | list):
        return repr(value)
    return str(getattr(value, "__name__", type(value).__name__))
