"""Which estimator? Measure them on your own f and q."""

from .comparing import compare
from .comparison import Comparison, Row

__all__ = [
    "Comparison",
    "Row",
    "compare",
]
