"""The estimators that race, by their labels: "GumbelSoftmax(4, hard=True)"."""

import re
from typing import Any

from catlog import Estimator
from catlog_experiments.named_estimators import make_estimator

DRAWS = (4, 2, 8, 16)
# Straight-through Gumbel-Softmax has its usual, constant temperature of 1.
LABELS = ("ReinMax({})", "SlopeCateR({})", "GumbelSoftmax({}, hard=True)", "RLOO({})")
LABELS += ("CritiCateR({})",)


def settings_of(method: str) -> dict[str, Any]:
    """Return the estimator of a label, as fields of an experiment's settings.

    >>> settings_of("IndeCateR(9, draws=latin, variables=4)")
    {'estimator': 'IndeCateR', 'samples': 9, 'options': ('draws=latin', 'variables=4')}
    """
    match = re.fullmatch(r"(\w+)\((?:(\d+)(?:, |(?=\))))?(.*)\)", method)
    if match is None:
        raise ValueError(f"`method` must be a label such as RLOO(4), but it is {method!r}.")
    name, samples, options = match.groups()
    draws = None if samples is None else int(samples)
    return {
        "estimator": name,
        "samples": draws,
        "options": tuple(options.split(", ")) if options else (),
    }


def estimator_of(method: str) -> Estimator:
    """Return the estimator of a label."""
    name, samples, options = settings_of(method).values()
    return make_estimator(name, samples, options, {})


def entrants() -> list[str]:
    """Return the labels of all racers, the likely good ones first."""
    racers = [text.format(draws) for draws in DRAWS for text in LABELS]
    return racers + [f"IndeCateR({draws})" for draws in sorted(DRAWS)]
