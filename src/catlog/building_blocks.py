"""One import for authors of estimators: read q, draw points, evaluate f, attach a gradient."""

from .checks import check_count as check_count
from .distributions.conditionals import structure as structure
from .distributions.conditionals import view as view
from .distributions.factors import factors as factors
from .estimator import ANY as ANY
from .estimator import BITS as BITS
from .estimator import INDEPENDENT as INDEPENDENT
from .estimator import RELAXABLE as RELAXABLE
from .estimator import Function as Function
from .estimator import Kind as Kind
from .estimator import Target as Target
from .estimator import attach as attach
from .estimator import label as label
from .evaluation.evaluate import evaluate as evaluate
from .evaluation.evaluate import evaluate_chunked as evaluate_chunked
from .evaluation.evaluate import value_and_grad as value_and_grad
from .evaluation.evaluate import value_and_slope as value_and_slope
from .evaluation.neighbours import differences as differences
from .sampling.draw import base_draws as base_draws
from .sampling.gumbel import gumbels as gumbels
from .sampling.subsets import deal_variables as deal_variables
