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
Named = Mapping[str, AnyEstimator]


def named_estimators(chosen: Chosen, argument: str = "estimators") -> dict[str, AnyEstimator]:
    """Return estimators by the names in a dict, or by their labels."""
    if isinstance(chosen, str | Tensor) or not isinstance(chosen, Iterable):
        but, remedy = f"{chosen!r} was given", "Put it into a list, [...]."
        raise refusal(argument, "be a list or a dict", but, remedy, TypeError)
    named: dict[str, AnyEstimator] = {}
    pairs = chosen.items() if isinstance(chosen, Mapping) else ((None, entry) for entry in chosen)
    for given, entry in pairs:
        E = parse_estimator(entry) if isinstance(entry, str) else entry
        if not isinstance(E, Estimator):
            but, remedy = f"{entry!r} was given", "Give an instance, as in RLOO(4)."
            raise refusal(argument, "be names or estimators", but, remedy, TypeError)
        name = label(E) if given is None else given
        if named.setdefault(name, E) != E and not isinstance(entry, str):
            raise ValueError(
                f"{argument}: two different ones have the label {name}, which leaves out what they "
                "learn and what their functions do. Give them names of your own in a dict, "
                '{"first": ..., "second": ...}.'
            )
    if not named:
        remedy = "Leave the argument out for the usual ones."
        raise refusal(argument, "be at least one", "none was given", remedy)
    return named


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
