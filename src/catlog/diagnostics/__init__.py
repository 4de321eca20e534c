"""Which estimator? Measure them on your own f and q."""

from .comparing import compare
from .comparison import Comparison, Row
from .function_check import FunctionReport, check
from .layers import compare_layers

__all__ = [
    "Comparison",
    "FunctionReport",
    "Row",
    "check",
    "compare",
    "compare_layers",
]
