"""The judge of estimators: it enumerates every outcome of a sampler exactly.

``pytest --pyargs catlog.testing --estimator FILE.py:CLASS`` judges an estimator of your own.
"""

from .battery import z_limit as z_limit
from .battery import z_scores as z_scores
from .cases import CASES as CASES
from .cases import FUNCTIONS as FUNCTIONS
from .cases import PARAMETER as PARAMETER
from .cases import Case as Case
from .enumeration import expectation as expectation
from .enumeration import expected as expected
from .enumeration import outcomes as outcomes
