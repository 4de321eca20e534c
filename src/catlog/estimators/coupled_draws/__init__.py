"""Estimators from negatively dependent draws: ARM, DisARM and their relatives."""

from .arm import ARM
from .arms import ARMS
from .arsm import ARSM
from .carms import CARMS
from .disarm import DisARM
from .disarm_tree import DisARMTree

__all__ = ["ARM", "ARMS", "ARSM", "CARMS", "DisARM", "DisARMTree"]
