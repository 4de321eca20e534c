"""Types and ranges of settings, given in the annotations of dataclass fields and checked."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Range:
    """The finite numbers from ``least`` (or above ``above``) up to ``most``."""

    least: float | None = None
    above: float | None = None
    most: float | None = None

    def contains(self, value: float) -> bool:
        return (
            math.isfinite(value)
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
        )

    def __str__(self) -> str:
        if self.above is not None:
            return f"above {self.above}"
        if self.most is None:
            return f"of at least {self.least}"
        return f"between {self.least} and {self.most}"


Count = Annotated[int, Range(least=1)]
Counted = Annotated[int, Range(least=0)]  # a count that may be zero
AtLeastTwo = Annotated[int, Range(least=2)]
Seed = Annotated[int, Range(least=0, most=2**32 - 1)]
Positive = Annotated[float, Range(above=0)]
NotNegative = Annotated[float, Range(least=0)]
Digits = Annotated[int, Range(least=1, most=17)]  # 17 decimal digits identify a double

NAMES = {int: "an int", float: "a number", bool: "True or False", str: "a text"}


class Checked:
    """A dataclass whose fields are checked when an instance is created."""

    def __post_init__(self) -> None:
        hints = annotations(type(self))
        for field in fields(self):  # type: ignore[arg-type]
            check(f"--{field.name.replace('_', '-')}", getattr(self, field.name), hints[field.name])


def annotations(cls: type) -> dict[str, Any]:
    """Return the annotation of every field, with its range."""
    return get_type_hints(cls, include_extras=True)


def check(name: str, value: object, annotation: Any) -> None:
    """Raise if ``value`` is not of the type and in the range of ``annotation``.

    Types that this module does not know pass.

    >>> check("--clip", -1.0, Positive | None)
    Traceback (most recent call last):
    ValueError: --clip must be a number above 0 or None, but -1.0 was given.
    """
    alternatives = _alternatives(annotation)
    if any(_fits(value, kind, within) for kind, within in alternatives):
        return
    kinds = [str if get_origin(kind) is Literal else kind for kind, _ in alternatives]
    has_right_type = any(_fits(value, kind, None) for kind in kinds)
    choices = [str(choice) for kind, _ in alternatives for choice in _choices(kind)]
    raise (ValueError if has_right_type else TypeError)(
        f"{name} must be {expected(annotation)}, but {value!r} was given."
        f"{did_you_mean(str(value), choices)}"
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question that names the closest known name, "" if none is close.

    >>> did_you_mean("RLO", ["Exact", "RLOO", "ARM"])
    ' Did you mean RLOO?'
    """
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = get_close_matches(name.lower(), by_lower, n=1)
    return f" Did you mean {by_lower[close[0]]}?" if close else ""


def convert(name: str, text: str, annotation: Any) -> Any:
    """Convert the text of a value on the command line to the type of its annotation.

    >>> convert("--grid: seed", "3", Seed)
    3
    >>> convert("--grid: options", "draws=latin variables=2", tuple[str, ...])
    ('draws=latin', 'variables=2')
    """
    value: Any = text
    for kind, _ in _alternatives(annotation):
        try:
            value = _read(text, kind)
            break
        except ValueError:
            continue
    else:
        raise ValueError(f"{name} must be {expected(annotation)}, but {text!r} was given.")
    check(name, value, annotation)
    return value


def expected(annotation: Any) -> str:
    """Describe in words what an annotation allows.

    >>> expected(Count | None), expected(Literal["own", "published"])
    ('an int of at least 1 or None', "one of 'own', 'published'")
    """
    return " or ".join(_describe(kind, within) for kind, within in _alternatives(annotation))


def _alternatives(annotation: Any) -> list[tuple[Any, Range | None]]:
    """Return the types that a value may have, each with its range."""
    if get_origin(annotation) in (Union, UnionType):
        return [pair for part in get_args(annotation) for pair in _alternatives(part)]
    if get_origin(annotation) is Annotated:
        inner, *notes = get_args(annotation)
        within = next((note for note in notes if isinstance(note, Range)), None)
        return [(kind, within or inner_range) for kind, inner_range in _alternatives(inner)]
    return [(annotation, None)]


def _choices(kind: Any) -> tuple[Any, ...]:
    """Return the values of a Literal, none for another type."""
    return get_args(kind) if get_origin(kind) is Literal else ()


def _fits(value: object, kind: Any, within: Range | None) -> bool:
    if get_origin(kind) is Literal:
        return value in _choices(kind)
    if get_origin(kind) is tuple:
        return isinstance(value, tuple)
    if kind in (int, float):
        if isinstance(value, bool) or not isinstance(value, int if kind is int else int | float):
            return False
        return within is None or within.contains(value)
    return isinstance(value, kind) if isinstance(kind, type) else True


def _read(text: str, kind: Any) -> Any:
    """Parse a text as a value of this type; raise a ValueError if it is not one."""
    if kind is NoneType:
        if text != "None":
            raise ValueError
        return None
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError
        return text.lower() == "true"
    if get_origin(kind) is tuple:
        return tuple(text.split())
    return kind(text) if kind in (int, float) else text


def _describe(kind: Any, within: Range | None) -> str:
    if kind is NoneType:
        return "None"
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(repr, _choices(kind)))
    name = NAMES.get(kind, f"a {getattr(kind, '__name__', kind)}")
    return name if within is None else f"{name} {within}"
