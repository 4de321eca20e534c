"""The estimators, one file per family or per large method, and their registry.

To add one, write its class and list it in the `__all__` of its file.
"""

# ruff: noqa: F403  # every file lists its estimators in `__all__`
from importlib import import_module
from inspect import signature
from types import ModuleType
from typing import Any

from ..core.checks import with_known_arguments
from ..core.estimator import RENAMED, Estimator
from .control_variates import *
from .count_differences import CountDifferences as CountDifferences
from .coupled import *
from .criticater import *
from .exact import *
from .indecater import *
from .memorycater import *
from .perturbation import *
from .scater import *
from .score_function import *
from .score_function import MovingAverageBaseline as MovingAverageBaseline
from .sets import *
from .slopecater import *
from .straight_through import *

_FAMILIES = {
    "enumeration": "exact",
    "score functions": "score_function",
    "control variates": "control_variates",
    "the CatLog trick": "indecater scater criticater slopecater memorycater",
    "coupled draws": "coupled",
    "sets of draws": "sets",
    "straight-through and relaxations": "straight_through",
    "perturbed argmaxes": "perturbation",
}
FAMILIES: dict[str, tuple[ModuleType, ...]] = {
    family: tuple(import_module(f"{__name__}.{file}") for file in files.split())
    for family, files in _FAMILIES.items()
}

# What tests, docs and benchmarks walk.
ESTIMATORS: dict[str, type[Estimator[Any]]] = {
    name: getattr(module, name)
    for modules in FAMILIES.values()
    for module in modules
    for name in module.__all__
}


def _advice_on(unknown: list[str]) -> str:
    """Return where the settings belong that an estimator does not have."""
    advice: list[str] = []
    for name in unknown:
        owners = [owner for owner in ESTIMATORS if name in signature(ESTIMATORS[owner]).parameters]
        if owners:
            advice.append(f"`{name}` is a setting of {', '.join(owners)}.")
        if name == "sampling":
            advice.append("The others need independent draws, or couple them in their own way.")
        if name in RENAMED:
            advice.append(RENAMED[name])
        if name in ("x", "noise", "generator", "outputs"):
            advice.append(f"Make an instance, and pass `{name}` to its calls: E(f, q, {name}=...).")
    return " ".join(advice)


for _estimator in (*ESTIMATORS.values(), CountDifferences):
    _estimator.__init__ = with_known_arguments(_advice_on)(_estimator.__init__)  # type: ignore[misc]
