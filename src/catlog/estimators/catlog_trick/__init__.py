"""Estimators that sum out one variable at a time: the CatLog-Derivative trick."""

from .criticater import CritiCateR
from .indecater import IndeCateR
from .leg import LEG
from .memorycater import MemoryCateR
from .ram import RAM
from .scater import SCateR
from .slopecater import SlopeCateR

__all__ = ["LEG", "RAM", "CritiCateR", "IndeCateR", "MemoryCateR", "SCateR", "SlopeCateR"]
