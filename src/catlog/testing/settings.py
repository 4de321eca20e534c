"""The settings with which every estimator of the registry is tested, and what the tests must know of it beside its contract."""

import pytest

import catlog
from catlog import ESTIMATORS

# Estimators whose draws are not draws of q (without replacement, from outside a set) or leave noise over. They take `x`, and
# test_sets_and_relaxations.py enumerates or integrates them.
OTHER_DRAWS = {"UnorderedSet", "SumAndSample", "MAPO", "GumbelRao", "IMLE", "DirectOptimisation"}

# Estimators with continuous noise of their own, so that `x` cannot be given: judged by a z-test instead of by enumeration.
CONTINUOUS = OTHER_DRAWS | {
    "GumbelSoftmax",
    "ARM",
    "DisARM",
    "ARMS",
    "ARSM",
    "CARMS",
    "DisARMTree",
    "REBAR",
    "RELAX",
}

# Estimators whose value is no estimate of E[f], and what it estimates instead: judged in a test of their own.
OTHER_TARGETS = {
    "VIMCO": "the importance-weighted bound of its draws, E[log mean exp f] (test_coupled.py)"
}

# Estimators that make noise of a constant f; for all others its gradient is exactly zero.
NOISY_ON_CONSTANTS = {"Reinforce", "NVIL", "RELAX"}

VARIANTS: dict[str, list[dict[str, object]]] = {
    "Exact": [{}, {"chunk_size": 2}],
    "Reinforce": [{"samples": 1}, {"samples": 2, "baseline": 0.7}],
    "RLOO": [{"samples": 2}, {"samples": 3}],
    "NVIL": [{"samples": 1}, {"samples": 2}],
    "BBVI": [{"samples": 2}, {"samples": 3}],
    "MuProp": [{"samples": 1}, {"samples": 2}],
    "REBAR": [{"samples": 1}, {"samples": 2, "temperature": 0.2}],
    "RELAX": [{"samples": 4}],
    "DoubleCV": [{"samples": 2, "alpha": 0.7}, {"samples": 3, "alpha": -0.4}],
    "RODEO": [
        {"samples": 2, "alpha": -0.6, "beta": 0.4},
        {"samples": 3, "alpha": 0.3, "beta": -0.2},
    ],
    "IndeCateR": [
        {"samples": 1},
        {"samples": 2, "chunk_size": 3},
        {"samples": 1, "per_variable": True},
        {"samples": 2, "per_variable": True, "chunk_size": 1},
        {"samples": 2, "variables": 1},
        {"samples": 1, "variables": 2, "chunk_size": 2},
        {"samples": 2, "variables": 2, "control": "none"},
    ],
    "SCateR": [{"samples": 1}, {"samples": 2, "chunk_size": 3}, {"samples": 1, "variables": 1}],
    "CritiCateR": [
        {"samples": 2},
        {"samples": 3, "folds": 3},
        {"samples": 3, "folds": 2, "ridge": 0.1},
    ],
    "SlopeCateR": [
        {"samples": 2},
        {"samples": 2, "corrections": 1},
        {"samples": 1, "corrections": 3},
    ],
    "MemoryCateR": [{"samples": 2}, {"samples": 3, "size": 5}],
    "LEG": [{"samples": 1}, {"samples": 2, "chunk_size": 3}],
    "RAM": [{"samples": 1}],
    "ARM": [{"samples": 1}, {"samples": 2}],
    "DisARM": [{"samples": 1}, {"samples": 2}],
    "ARMS": [{"samples": 2}, {"samples": 3}],
    "ARSM": [{"samples": 1}, {"samples": 2}],
    "CARMS": [{"samples": 2}, {"samples": 4}],
    "DisARMTree": [{"samples": 1}, {"samples": 2, "tree": "stick"}],
    "VIMCO": [{"samples": 2}, {"samples": 3}],
    "UnorderedSet": [{"samples": 2}, {"samples": 3}],
    "SumAndSample": [{"top": 2}, {"top": 1, "samples": 3}],
    "MAPO": [{"size": 2}, {"size": 3, "samples": 3, "maximise": False}],
    "StraightThrough": [{"samples": 1}, {"samples": 2}],
    "GumbelSoftmax": [{"samples": 2}, {"samples": 2, "hard": True, "temperature": 0.5}],
    "GumbelRao": [{"samples": 2}, {"samples": 1, "noise_samples": 3, "temperature": 0.5}],
    "ReinMax": [{"samples": 1}, {"samples": 2, "temperature": 1.3}],
    "DARN": [{"samples": 1}, {"samples": 2, "order": 1}],
    "IMLE": [{"samples": 2}, {"samples": 3, "step": 2.0}],
    "DirectOptimisation": [{"samples": 2}, {"samples": 3, "epsilon": -2.0, "chunk_size": 2}],
}


def estimators(**wanted: bool) -> list[object]:
    listed = []
    for name, cls in ESTIMATORS.items():
        for options in VARIANTS.get(name, [{}]):
            E = cls(**options)
            told = {"continuous": name in CONTINUOUS, "of_mean": name not in OTHER_TARGETS}
            if all(told.get(key, getattr(E, key, None)) == value for key, value in wanted.items()):
                listed.append(
                    pytest.param(
                        E, id=f"{name}({', '.join(f'{k}={v}' for k, v in options.items())})"
                    )
                )
    return listed


def one_of_each() -> list[object]:
    """Every estimator in the first of its settings."""
    first = {name: cls(**VARIANTS.get(name, [{}])[0]) for name, cls in ESTIMATORS.items()}
    return [pytest.param(E, id=name) for name, E in first.items()]


def continuous(E: catlog.Estimator) -> bool:
    return type(E).__name__ in CONTINUOUS


def supports(E: catlog.Estimator, kind: str) -> bool:
    """Whether E takes laws of this kind ("bits", "index", "one-hot", "mixed")."""
    return kind in E.supports and not (E.differentiates_f and kind in ("index", "mixed"))
