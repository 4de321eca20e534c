"""Kinds of settings: the annotation of a setting says what it must be."""

from typing import Annotated, Any, Literal, get_args, get_origin

from jax import Array


def is_number(value: object) -> bool:
    """Return whether a setting may be a number, perhaps traced."""
    return not isinstance(value, bool | str)


# What a setting must be, and a test. Arrays may be traced, and are not read.
Flag = Annotated[bool, "True or False", lambda v: isinstance(v, bool)]
Count = Annotated[int, "an int of at least 1", lambda v: type(v) is int and v >= 1]
Several = Annotated[int, "an int of at least 2", lambda v: type(v) is int and v >= 2]
Share = Annotated[float, "in [0, 1]", lambda v: is_number(v) and 0 <= v <= 1]
Positive = Annotated[
    float | Array,
    "positive",
    lambda v: is_number(v) and not (isinstance(v, int | float) and v <= 0),
]
Sampling = Literal["independent", "antithetic", "latin"]


def check_setting(owner: str, name: str, value: object, kind: Any) -> None:
    """Raise unless a setting is what its annotation says.

    >>> check_setting("Exact", "limit", 0, Count)
    Traceback (most recent call last):
    ValueError: Exact: `limit` must be an int of at least 1, but it is 0.
    """
    if type(None) in get_args(kind):
        if value is None:
            return
        kind = get_args(kind)[0]
    wanted, test = getattr(kind, "__metadata__", ("a number", is_number))
    if get_origin(kind) is Literal:
        wanted, test = f"one of {str(get_args(kind))[1:-1]}", get_args(kind).__contains__
    if not test(value):
        raise ValueError(f"{owner}: `{name}` must be {wanted}, but it is {value!r}.")
