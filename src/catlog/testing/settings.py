"""The settings with which every estimator of the registry is judged."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import catlog
from catlog.estimators import ESTIMATORS
from catlog.estimator import Estimator, Kind

# Estimators whose gradient of a constant f is noise; for all others it is exactly zero.
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
        {"samples": 2, "corrections": 3, "pairs": True},
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
    "SIMPLE": [{"samples": 1}],
    "GumbelSoftmax": [{"samples": 2}, {"samples": 2, "hard": True, "temperature": 0.5}],
    "GumbelRao": [{"samples": 2}, {"samples": 1, "noise_samples": 3, "temperature": 0.5}],
    "ReinMax": [{"samples": 1}, {"samples": 2, "temperature": 1.3}],
    "ReinMaxRao": [{"samples": 2}, {"samples": 1, "noise_samples": 3, "temperature": 1.5}],
    "ReinMaxCV": [
        {"samples": 2},
        {"samples": 1, "noise_samples": 3, "temperature": 0.5, "control_weight": 1.0},
    ],
    "GappedStraightThrough": [{"samples": 1}, {"samples": 2, "gap": None, "temperature": 0.7}],
    "DecoupledStraightThrough": [
        {"samples": 2},
        {"samples": 1, "forward_temperature": 0.7, "backward_temperature": 1.5},
    ],
    "MinimumVarianceStraightThrough": [{"samples": 1}, {"samples": 2, "bias_weight": 1.0}],
    "ReDGE": [{"samples": 2}, {"samples": 1, "steps": 2, "last_time": 0.9}],
    "DARN": [{"samples": 1}, {"samples": 2, "order": 1}],
    "IMLE": [{"samples": 2}, {"samples": 3, "step": 2.0}],
    "DirectOptimisation": [{"samples": 2}, {"samples": 3, "epsilon": -2.0, "chunk_size": 2}],
}


def select(**wanted: object) -> dict[str, Estimator]:
    """Return every estimator, in every setting, whose attributes have the values ``wanted``.

    ``continuous`` may be asked for, too (see :func:`continuous`).
    """
    selected = {}
    for name, cls in ESTIMATORS.items():
        for options in VARIANTS.get(name, [{}]):
            E = cls(**options)
            derived = {"continuous": continuous(E)}
            if all(derived.get(key, getattr(E, key, None)) == wanted[key] for key in wanted):
                listing = ", ".join(f"{key}={value}" for key, value in options.items())
                selected[f"{name}({listing})"] = E
    return selected


def estimators(**wanted: object) -> list[object]:
    """Return :func:`select`'s estimators as parameters for pytest."""
    import pytest  # needed only where tests are collected

    return [pytest.param(E, id=label) for label, E in select(**wanted).items()]


def one_of_each() -> list[object]:
    """Return every estimator in the first of its settings, as parameters for pytest."""
    import pytest

    first = {name: cls(**VARIANTS.get(name, [{}])[0]) for name, cls in ESTIMATORS.items()}
    return [pytest.param(E, id=name) for name, E in first.items()]


def continuous(E: Estimator) -> bool:
    """Return whether the outcomes of E's sampler cannot be enumerated as independent draws of q.

    Points that are drawn without replacement, or outside a set, are enumerated in
    tests/estimators/sets.
    """
    return "noise" in E.randomness or getattr(E, "draws_are_dependent", False)


def chosen_per_draw(E: Estimator) -> int:
    """Return how many variables E sums out in each draw; 0 where it does not choose them."""
    return getattr(E, "variables", None) or 0


def supports(E: Estimator, kind: str) -> bool:
    """Return whether E takes distributions of this kind ("bits", "index", "one-hot", "mixed")."""
    return kind in E.supports and not (E.differentiates_f and kind in (Kind.INDEX, Kind.MIXED))


def load_estimator(location: str) -> type[Estimator]:
    """Return the class that FILE.py:CLASS names."""
    file, _, name = location.rpartition(":")
    if not Path(file).is_file():
        raise ValueError(f"--estimator: it must be FILE.py:CLASS, but {location!r} names no file.")
    spec = spec_from_file_location(Path(file).stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise ValueError(f"--estimator: {file} has no {name!r}.")
    cls: type[Estimator] = getattr(module, name)
    return cls


def judge_only(
    cls: type[Estimator], *, dependent_draws: bool = False, noisy_on_constants: bool = False
) -> None:
    """Put ``cls`` in place of all estimators of the registry."""
    try:
        E = cls()
    except TypeError as error:
        raise ValueError(
            f"--estimator: {cls.__name__}() must work without arguments, but: {error}."
        ) from error
    contract = {*vars(Estimator), *Estimator.__annotations__}
    for member in sorted(contract):
        if not member.startswith("_") and not hasattr(E, member):
            raise ValueError(
                f"--estimator: {cls.__name__} must have `{member}`, but it has none. "
                "See catlog.Estimator for the contract."
            )
    ESTIMATORS.clear()
    ESTIMATORS[cls.__name__] = cls
    setattr(catlog, cls.__name__, cls)
    if dependent_draws:
        cls.draws_are_dependent = True  # type: ignore[attr-defined]
    if noisy_on_constants:
        NOISY_ON_CONSTANTS.add(cls.__name__)
