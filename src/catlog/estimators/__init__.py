"""The estimators, one file per family or per large method, and their registry.

To add one, write its class and list it in its family below.
"""

from inspect import signature
from typing import Any

from ..core.checks import with_known_arguments
from ..core.estimator import Estimator
from .control_variates import REBAR, RELAX, RODEO, DoubleCV, MuProp
from .count_differences import CountDifferences as CountDifferences
from .coupled import ARM, ARMS, ARSM, CARMS, DisARM, DisARMTree
from .criticater import CritiCateR
from .exact import Exact
from .indecater import IndeCateR
from .memorycater import MemoryCateR
from .perturbation import IMLE, DirectOptimisation
from .scater import LEG, RAM, SCateR
from .score_function import BBVI, NVIL, RLOO, VIMCO, Reinforce
from .score_function import MovingAverageBaseline as MovingAverageBaseline
from .sets import MAPO, SumAndSample, UnorderedSet
from .slopecater import SlopeCateR
from .straight_through import (
    DARN,
    SIMPLE,
    DecoupledStraightThrough,
    GappedStraightThrough,
    GumbelRao,
    GumbelSoftmax,
    MinimumVarianceStraightThrough,
    ReDGE,
    ReinMax,
    ReinMaxCV,
    ReinMaxRao,
    StraightThrough,
)

FAMILIES: dict[str, tuple[type[Estimator[Any]], ...]] = {
    "enumeration": (Exact,),
    "score functions": (Reinforce, RLOO, NVIL, BBVI, VIMCO),
    "control variates": (MuProp, DoubleCV, RODEO, REBAR, RELAX),
    "the CatLog trick": (IndeCateR, SCateR, RAM, LEG, CritiCateR, SlopeCateR, MemoryCateR),
    "coupled draws": (ARM, DisARM, ARMS, ARSM, CARMS, DisARMTree),
    "sets of draws": (UnorderedSet, SumAndSample, MAPO),
    "straight-through and relaxations": (
        StraightThrough,
        ReinMax,
        DARN,
        GumbelSoftmax,
        GumbelRao,
        ReinMaxRao,
        ReinMaxCV,
        GappedStraightThrough,
        DecoupledStraightThrough,
        MinimumVarianceStraightThrough,
        ReDGE,
        SIMPLE,
    ),
    "perturbed argmaxes": (IMLE, DirectOptimisation),
}

RENAMED = {
    "draws": "`draws` is called `sampling`.",
    "validate": "Give `validate_args=False` to q instead.",
    "tau": "tau is called `temperature`.",
}

# What tests, docs and benchmarks walk.
ESTIMATORS: dict[str, type[Estimator[Any]]] = {
    cls.__name__: cls for family in FAMILIES.values() for cls in family
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
