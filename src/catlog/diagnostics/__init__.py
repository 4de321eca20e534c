"""Which estimator? Measure them on your own f and q."""

from .advice import Advice, advise
from .candidates import CANDIDATES, Candidate
from .comparison import Comparison, Row
from .function_check import FunctionReport, check
from .layers import compare_layers
from .measuring import compare
from .trials import Trial

__all__ = [
    "CANDIDATES",
    "Advice",
    "Candidate",
    "Comparison",
    "FunctionReport",
    "Row",
    "Trial",
    "advise",
    "check",
    "compare",
    "compare_layers",
]
