"""Estimators from text, as their reprs write them."""

import ast
from difflib import get_close_matches
from typing import Any

from ..core import Estimator
from ..estimators import ESTIMATORS


def parse_estimator(text: str) -> Estimator[Any]:
    """Return the estimator that ``text`` describes: a name, with or without settings.

    Settings are Python's literals. Words need no quotes, as on the command line.

    >>> parse_estimator("RLOO"), parse_estimator("IndeCateR(4, sampling=latin)")
    (RLOO(2), IndeCateR(4, sampling='latin'))
    """
    name, settings, named = _parts(text)
    if name not in ESTIMATORS:
        similar = get_close_matches(name, ESTIMATORS, n=1)
        advice = (
            f"Did you mean {similar[0]}?" if similar else f"Give one of {', '.join(ESTIMATORS)}."
        )
        raise ValueError(f"estimators: {name!r} is not known. {advice}")
    return ESTIMATORS[name](*settings, **named)


def _parts(text: str) -> tuple[str, list[object], dict[str, object]]:
    """Return the name, the settings without a name and those with one."""
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if isinstance(call, ast.Name):
            return call.id, [], {}
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            named = {str(entry.arg): _literal(entry.value) for entry in call.keywords}
            return call.func.id, [_literal(entry) for entry in call.args], named
    except (SyntaxError, ValueError):
        pass
    raise ValueError(
        f"estimators: {text!r} must be a name, with settings in parentheses or without, as in "
        "IndeCateR(4, sampling='latin')."
    )


def _literal(node: ast.expr) -> object:
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)
