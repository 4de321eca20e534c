"""Functions that are evaluated in worker processes, or divided among ranks."""

from .pool import Pool, RowError
from .sharded import Sharded

__all__ = ["Pool", "RowError", "Sharded"]
