"""Which estimator? Measure them on your own f and q."""

from .advice import CANDIDATES, Advice, Candidate, Trial, advise
from .comparison import Comparison, Row, compare

__all__ = ["CANDIDATES", "Advice", "Candidate", "Comparison", "Row", "Trial", "advise", "compare"]
