"""Score-function estimators with a control variate made from derivatives of f."""

from .double_cv import DoubleCV
from .muprop import MuProp
from .rebar import REBAR
from .relax import RELAX
from .rodeo import RODEO

__all__ = ["REBAR", "RELAX", "RODEO", "DoubleCV", "MuProp"]
