"""Which estimator? Measure them on your own f and q."""

from .advice import Advice, advise
from .comparing import Comparison, Row, compare
from .function_check import FunctionReport, check
from .layers import compare_layers
from .pilot import Trial

__all__ = [
    "Advice",
    "Comparison",
    "FunctionReport",
    "Row",
    "Trial",
    "advise",
    "check",
    "compare",
    "compare_layers",
]
