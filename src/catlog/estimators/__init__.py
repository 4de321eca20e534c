"""The estimators, one file per method and one folder per family, and their registry.

To add one, write its file and list it in the ``__init__.py`` of its family.
"""

# ruff: noqa: F403  # every family lists its estimators in `__all__`
from inspect import signature

from ..checks import with_known_arguments
from ..estimator import Estimator
from . import catlog_trick, control_variates, coupled_draws, relaxations, score_function, sets
from .catlog_trick import *
from .control_variates import *
from .count_differences import CountDifferences as CountDifferences
from .coupled_draws import *
from .exact import Exact as Exact
from .relaxations import *
from .score_function import *
from .sets import *

FAMILIES = (score_function, control_variates, catlog_trick, coupled_draws, sets, relaxations)

# What tests, docs and benchmarks walk.
ESTIMATORS: dict[str, type[Estimator]] = {"Exact": Exact} | {
    name: getattr(family, name) for family in FAMILIES for name in family.__all__
}


def _advice_on(unknown: list[str]) -> str:
    """Return where the settings belong that an estimator does not have."""
    advice: list[str] = []
    for name in unknown:
        owners = [owner for owner in ESTIMATORS if name in signature(ESTIMATORS[owner]).parameters]
        if owners:
            advice.append(f"`{name}` is a setting of {', '.join(owners)}.")
        if name == "draws":
            advice.append("The others need independent draws, or couple them in their own way.")
        if name == "tau":
            advice.append("tau is called `temperature`.")
        if name in ("x", "noise", "generator", "outputs"):
            advice.append(f"Make an instance, and pass `{name}` to its calls: E(f, q, {name}=...).")
    return " ".join(advice)


for _estimator in (*ESTIMATORS.values(), CountDifferences):
    _estimator.__init__ = with_known_arguments(_advice_on)(_estimator.__init__)  # type: ignore[misc]
