"""Estimators and their names: as text, as their reprs write them, in lists and in dicts."""

import ast
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from torch import Tensor

from ..core.checks import refusal
from ..core.estimator import Estimator
from ..core.settings import label
from ..estimators import ESTIMATORS

AnyEstimator = Estimator[Any]
Chosen = Sequence[str | AnyEstimator] | Mapping[str, str | AnyEstimator]


def named_estimators(estimators: Chosen | None) -> dict[str, AnyEstimator]:
    """Return the estimators by name."""
    chosen = list(ESTIMATORS) if estimators is None else estimators
    if isinstance(chosen, str | Tensor) or not isinstance(chosen, Iterable):
        but, remedy = f"{chosen!r} was given", "Put it into a list, [...]."
        raise refusal("estimators", "be a list or a dict", but, remedy, TypeError)
    if isinstance(chosen, Mapping):
        named = {name: as_estimator(entry) for name, entry in chosen.items()}
    else:
        named = {}
        for entry in chosen:
            E = as_estimator(entry)
            name = str(entry) if entry in ESTIMATORS else label(E)
            if named.setdefault(name, E) != E and not isinstance(entry, str):
                raise ValueError(
                    f"estimators: two different ones have the label {name}, which leaves out what "
                    "they learn and what their functions do. Give them names of your own in a "
                    'dict, {"first": ..., "second": ...}.'
                )
    if not named:
        remedy = "Leave the argument out for all of the registry."
        raise refusal("estimators", "be at least one", "none was given", remedy)
    return named


def as_estimator(entry: object, argument: str = "estimators") -> AnyEstimator:
    """Return an estimator, also by its repr or name; raise an error if it is neither."""
    if isinstance(entry, str):
        return parse_estimator(entry)
    if isinstance(entry, type) or not isinstance(entry, Estimator):
        but, remedy = f"{entry!r} was given", "Give an instance, as in RLOO(4)."
        raise refusal(argument, "be names or estimators", but, remedy, TypeError)
    return entry


def parse_estimator(text: str) -> AnyEstimator:
    """Return the estimator that ``text`` describes: a name, with or without settings.

    Settings are Python's literals. Words need no quotes, as on the command line.

    >>> parse_estimator("RLOO"), parse_estimator("IndeCateR(4, sampling=latin)")
    (RLOO(2), IndeCateR(4, sampling='latin'))
    """
    try:
        call: Any = ast.parse(text.strip(), mode="eval").body
        name = getattr(call, "func", call).id
        settings = [_literal(entry) for entry in getattr(call, "args", [])]
        named = {str(entry.arg): _literal(entry.value) for entry in getattr(call, "keywords", [])}
    except (SyntaxError, ValueError, AttributeError):
        raise ValueError(
            f"estimators: {text!r} must be a name, with settings in parentheses or without, as in "
            "IndeCateR(4, sampling='latin')."
        ) from None
    if name not in ESTIMATORS:
        similar = get_close_matches(name, ESTIMATORS, n=1)
        known = ", ".join(ESTIMATORS)
        advice = f"Did you mean {similar[0]}?" if similar else f"Give one of {known}."
        raise ValueError(f"estimators: {name!r} is not known. {advice}")
    return ESTIMATORS[name](*settings, **named)


def _literal(node: ast.expr) -> object:
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)
