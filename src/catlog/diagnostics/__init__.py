"""Which estimator? Measure them on your own f and q."""

from .advice import Advice, advise
from .candidates import CANDIDATES, Candidate
from .comparison import Comparison, Row
from .layers import compare_layers
from .measuring import compare
from .trials import Trial

__all__ = [
    "CANDIDATES",
    "Advice",
    "Candidate",
    "Comparison",
    "Row",
    "Trial",
    "advise",
    "compare",
    "compare_layers",
]
