"""Estimators that score whole draws: REINFORCE and its baselines."""

from .bbvi import BBVI
from .nvil import NVIL
from .reinforce import Reinforce
from .rloo import RLOO
from .vimco import VIMCO

__all__ = ["BBVI", "NVIL", "RLOO", "VIMCO", "Reinforce"]
