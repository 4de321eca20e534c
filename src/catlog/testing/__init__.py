"""The judge of estimators: it enumerates every outcome of a sampler exactly.

``pytest --pyargs catlog.testing --catlog-estimator FILE.py:CLASS`` judges an estimator of your own.
"""

from .battery import z_limit, z_scores
from .cases import CASES, FUNCTIONS, PARAMETER, Case
from .enumeration import expectation, expected, outcomes

__all__ = [
    "CASES",
    "FUNCTIONS",
    "PARAMETER",
    "Case",
    "expectation",
    "expected",
    "outcomes",
    "z_limit",
    "z_scores",
]
