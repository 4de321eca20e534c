r"""Functions that know more than their values: a table of neighbours, or their mean.

A table holds f at every single-variable change of x, and is cheap.

If f has a method ``neighbours(x, variables=None)``, :class:`catlog.IndeCateR` calls it instead of
f:

- ``neighbours(x)`` returns ``[n, *batch, d, k]``, the value of f with ``x_i`` set to category k,
  for all i and k;
- ``neighbours(x, variables)`` with ``variables`` of shape ``[n, *batch, m]`` returns
  ``[n, *batch, m, k]`` for those only.

It is called without autograd. The entry of x's own category is f(x) as the table has it:
differences are taken to it, so that both sides are rounded alike. The entries of impossible
categories are ignored. :func:`catlog.check` compares entries with f itself.

If f has a method ``expectation(q)``, it knows its mean: ``expectation`` returns E[f] ``[*batch]``,
exact and differentiable in the parameters of q and of f, or raises NotImplementedError where it
does not know it. :class:`catlog.Exact` uses it, :func:`catlog.advise` finds it, and on small
problems :func:`catlog.compare` compares it with f. :class:`Additive`, :class:`Pairwise`,
:class:`Potts`, :class:`OfSum` and :class:`DigitsOfSum` know their means under independent
variables, and :class:`Known` uses such a function as a control variate.

Sums are taken in float32 or wider, whatever the dtype of the costs, of x or of autocast: f is large
and its changes are small.

Points are read as distributions write them: int64 categories (Categorical), 0/1 floats (Bernoulli),
or one-hot floats, for which the constructors take ``one_hot=True``. All functions here extend to
relaxed points (between 0 and 1), so estimators that differentiate f can use them as well.
"""

from .costs import Additive as Additive
from .costs import Pairwise as Pairwise
from .costs import Potts as Potts
from .costs import ising as ising
from .digits_of_sum import DigitsOfSum as DigitsOfSum
from .first_layer_linear import BernoulliCrossEntropy as BernoulliCrossEntropy
from .first_layer_linear import FirstLayerLinear as FirstLayerLinear
from .known import Known as Known
from .mapped import Mapped as Mapped
from .of_sum import OfSum as OfSum
from .sharded import Sharded as Sharded
