"""The estimators, one file per method and one folder per family, and their registry.

To add one, write its file and list it in the ``__init__.py`` of its family.
"""

# ruff: noqa: F403  # every family lists its estimators in `__all__`
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
