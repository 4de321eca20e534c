"""What a setting may be: its type and its range, said in the annotation of its field and checked when the settings are made."""

import math
from dataclasses import dataclass, fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Range:
    """The finite numbers from ``least`` (or beyond ``above``) up to ``most``."""

    least: float | None = None
    above: float | None = None
    most: float | None = None

    def holds(self, value: float) -> bool:
        low = (self.least is None or value >= self.least) and (
            self.above is None or value > self.above
        )
        return math.isfinite(value) and low and (self.most is None or value <= self.most)

    def __str__(self) -> str:
        if self.above is not None:
            return f"above {self.above}"
        return (
            f"of at least {self.least}"
            if self.most is None
            else f"between {self.least} and {self.most}"
        )


Count = Annotated[int, Range(least=1)]
Counted = Annotated[int, Range(least=0)]  # a count that may be none
AtLeastTwo = Annotated[int, Range(least=2)]
Seed = Annotated[int, Range(least=0, most=2**32 - 1)]
Positive = Annotated[float, Range(above=0)]
NotNegative = Annotated[float, Range(least=0)]
Digits = Annotated[int, Range(least=1, most=17)]  # a double has no more

NAMES = {int: "an int", float: "a number", bool: "True or False", str: "a text"}


class Checked:
    """A dataclass whose fields are checked when it is made."""

    def __post_init__(self) -> None:
        hints = annotations(type(self))
        for field in fields(self):  # type: ignore[arg-type]
            check(f"--{field.name.replace('_', '-')}", getattr(self, field.name), hints[field.name])


def annotations(cls: type) -> dict[str, Any]:
    """The annotation of every field, with its range."""
    return get_type_hints(cls, include_extras=True)


def check(name: str, value: object, annotation: Any) -> None:
    """Raise unless ``value`` is of the type and in the range of ``annotation``; a type that is not known here passes.

    >>> check("--clip", -1.0, Positive | None)
    Traceback (most recent call last):
    ValueError: --clip must be a number above 0 or None, but -1.0 was given.
    """
    kinds = _alternatives(annotation)
    if any(_fits(value, kind, within) for kind, within in kinds):
        return
    known = any(
        _fits(value, str if get_origin(kind) is Literal else kind, None) for kind, _ in kinds
    )
    raise (ValueError if known else TypeError)(
        f"{name} must be {expected(annotation)}, but {value!r} was given."
    )


def converted(name: str, text: str, annotation: Any) -> Any:
    """A value given as text on the command line, as its annotation has it.

    >>> converted("--grid: seed", "3", Seed), converted("--grid: options", "draws=latin variables=2", tuple[str, ...])
    (3, ('draws=latin', 'variables=2'))
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
    """What an annotation allows, in words.

    >>> expected(Count | None), expected(Literal["own", "published"])
    ('an int of at least 1 or None', "one of 'own', 'published'")
    """
    return " or ".join(_told(kind, within) for kind, within in _alternatives(annotation))


def _alternatives(annotation: Any) -> list[tuple[Any, Range | None]]:
    """The types that a value may have, each with its range."""
    if get_origin(annotation) in (Union, UnionType):
        return [each for part in get_args(annotation) for each in _alternatives(part)]
    if get_origin(annotation) is Annotated:
        inner, *notes = get_args(annotation)
        within = next((note for note in notes if isinstance(note, Range)), None)
        return [(kind, within or its) for kind, its in _alternatives(inner)]
    return [(annotation, None)]


def _fits(value: object, kind: Any, within: Range | None) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) is tuple:
        return isinstance(value, tuple)
    if kind in (int, float):
        number = isinstance(value, int if kind is int else (int, float)) and not isinstance(
            value, bool
        )
        return number and (within is None or within.holds(value))  # type: ignore[arg-type]
    return isinstance(value, kind) if isinstance(kind, type) else True


def _read(text: str, kind: Any) -> Any:
    """The text as a value of this type; ValueError where it is none."""
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


def _told(kind: Any, within: Range | None) -> str:
    if kind is NoneType:
        return "None"
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(repr, get_args(kind)))
    return NAMES.get(kind, f"a {getattr(kind, '__name__', kind)}") + (
        "" if within is None else f" {within}"
    )
