"""Which estimator? Measure them on your own f and q."""

from .advice import Advice, Trial, advise
from .comparing import compare
from .comparison import Comparison, Row
from .function_check import FunctionReport, check
from .layers import compare_layers

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
