"""The settings with which every estimator of the registry is tested, and what the tests must know of it beside its contract."""

import pytest

import catlog
from catlog import ESTIMATORS

# Estimators with continuous noise of their own, so that `x` cannot be given: judged by a z-test instead of by enumeration.
CONTINUOUS = {"GumbelSoftmax"}

# Estimators that make noise of a constant f; for all others its gradient is exactly zero.
NOISY_ON_CONSTANTS = {"Reinforce"}

# Estimators that do not compile with fullgraph=True, and why.
NOT_COMPILED: dict[str, str] = {}

VARIANTS: dict[str, list[dict[str, object]]] = {
    "Exact": [{}, {"chunk_size": 2}],
    "Reinforce": [{"samples": 1}, {"samples": 2, "baseline": 0.7}],
    "RLOO": [{"samples": 2}, {"samples": 3}],
    "IndeCateR": [
        {"samples": 1},
        {"samples": 2, "chunk_size": 3},
        {"samples": 1, "fresh": True},
        {"samples": 2, "fresh": True, "chunk_size": 1},
        {"samples": 2, "variables": 1},
        {"samples": 1, "variables": 2, "chunk_size": 2},
        {"samples": 2, "variables": 2, "control": "none"},
    ],
    "SCateR": [{"samples": 1}, {"samples": 2, "chunk_size": 3}, {"samples": 1, "variables": 1}],
    "CritiCateR": [{"samples": 2}, {"samples": 3, "folds": 3}, {"samples": 3, "folds": 2, "ridge": 0.1}],
    "LEG": [{"samples": 1}, {"samples": 2, "chunk_size": 3}],
    "RAM": [{"samples": 1}],
    "StraightThrough": [{"samples": 1}, {"samples": 2}],
    "GumbelSoftmax": [{"samples": 2}, {"samples": 2, "hard": True, "temperature": 0.5}],
}


def estimators(**wanted: bool) -> list[object]:
    listed = []
    for name, cls in ESTIMATORS.items():
        for options in VARIANTS.get(name, [{}]):
            E = cls(**options)
            told = {"continuous": name in CONTINUOUS}
            if all(told.get(key, getattr(E, key, None)) == value for key, value in wanted.items()):
                listed.append(pytest.param(E, id=f"{name}({', '.join(f'{k}={v}' for k, v in options.items())})"))
    return listed


def continuous(E: catlog.Estimator) -> bool:
    return type(E).__name__ in CONTINUOUS


def supports(E: catlog.Estimator, kind: str) -> bool:
    """Whether E takes laws of this kind ("bits", "index", "one-hot", "mixed")."""
    return kind in E.laws and not (E.differentiates_f and kind in ("index", "mixed"))
