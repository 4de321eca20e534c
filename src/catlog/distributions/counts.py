"""Counts as categories: their truncation, and a bound of its error."""

from bisect import bisect_left

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent, OneHotCategorical

from ..core.checks import check_count, check_flag, check_number, is_checked
from ..core.counts import Counts, counts

MOST_CATEGORIES = 2**16


@torch.no_grad()
def lost_mass(q: Distribution, categories: int) -> Float[Tensor, "*batch"]:
    r"""Return an upper bound of the probability that some count is at least ``categories``.

    The masses beyond K fall at least as fast as a geometric series with the ratio
    :math:`\rho = \max_{k \ge K} p(k + 1) / p(k)`, so :math:`\Pr(z \ge K) \le p(K) / (1 - \rho)`.
    The bounds of the variables add up.

    >>> from torch.distributions import Poisson
    >>> lost_mass(Poisson(torch.tensor(2.0)), 10)
    tensor(4.6676e-05)
    """
    check_count("lost_mass", "categories", categories)
    law = counts(q)
    return _tails(law, categories).sum(-1).clamp(max=1).to(law.real)


def _tails(law: Counts, categories: int) -> Float[Tensor, "*batch d"]:
    """Return an upper bound of every variable's probability to be at least ``categories``."""
    count = torch.full_like(law.parameter.detach(), categories, dtype=_wide(law.device))
    log_mass = law.family.log_mass(count.unsqueeze(-1)).squeeze(-1)
    mass = (log_mass + law.family.constant).exp()
    ratio = law.family.ratio(count)
    tail = torch.where(ratio < 1, mass / (1 - ratio), 1.0)
    return torch.where(count > law.family.most, 0.0, tail)


def _wide(device: torch.device) -> torch.dtype:
    """Return float64, where a device has it: log-masses are small differences of large numbers."""
    return torch.float32 if device.type == "mps" else torch.float64


def truncated(
    q: Distribution, error: float = 1e-6, categories: int | None = None, one_hot: bool = False
) -> Distribution:
    r"""Return counts as categories 0, ..., K - 1, for estimators of categorical variables.

    The probabilities are those of q, conditioned on all counts being below K. The total variation
    distance from q is the probability :math:`\varepsilon` of the rest. So for f with values in
    [a, b],

    .. math:: |\mathbb{E}_\text{truncated}[f] - \mathbb{E}_q[f]| \le \varepsilon\, (b - a),

    and :func:`lost_mass` bounds :math:`\varepsilon`. An f that grows without bounds can have a
    larger error. The result is differentiable in the parameters of q. A Binomial of n trials has
    n + 1 categories and no error, if ``error`` is 0.

    Args:
        q: Poisson, Binomial, Geometric or NegativeBinomial, alone or inside Independent.
        error: the largest :math:`\varepsilon`, over all variables of a batch element. It
            determines K, which costs a synchronisation.
        categories: K, instead of ``error``; nothing is looked at.
        one_hot: points are one-hot vectors, for relaxations, instead of integers.

    >>> from torch.distributions import Independent, Poisson
    >>> rate = torch.tensor([1.0, 3.0], requires_grad=True)
    >>> q = truncated(Independent(Poisson(rate), 1), error=1e-6)
    >>> q.base_dist.logits.shape
    torch.Size([2, 15])
    >>> from catlog import Exact
    >>> round(Exact()(lambda z: z.double().prod(-1), q).item(), 3)
    3.0
    """
    check_flag("truncated", "one_hot", one_hot)
    law = counts(q)
    if categories is None:
        check_number("truncated", "error", error, 0, 1)
        if law.parameter.is_meta:
            raise ValueError(
                "truncated: `categories` must be given for a q on the meta device, where numbers "
                "have no values, but it is None."
            )
        categories = _enough(law, error)
    check_count("truncated", "categories", categories, most=MOST_CATEGORIES)
    count = torch.arange(categories, dtype=_wide(law.device), device=law.device)
    log_mass = law.family.log_mass(count.expand(*law.parameter.shape, categories))
    logits = log_mass.log_softmax(-1).to(law.real)
    logits = logits.reshape(*q.batch_shape, *q.event_shape, categories)
    base = (OneHotCategorical if one_hot else Categorical)(logits=logits, validate_args=False)
    base._validate_args = is_checked(q)  # only the logits need no check
    dims = len(q.event_shape)
    return Independent(base, dims) if dims else base


@torch.no_grad()
def _enough(law: Counts, error: float) -> int:
    """Return the least number of categories for this error.

    There are two at least if a count can be positive, however unlikely that is: a single category
    has no gradient.
    """

    def is_enough(categories: int) -> bool:
        return bool((_tails(law, categories).sum(-1) <= error).all())

    sizes = range(2 if bool((law.family.most > 0).any()) else 1, MOST_CATEGORIES + 1)
    if not is_enough(MOST_CATEGORIES):
        raise ValueError(
            f"truncated: an `error` of {error} needs more than {MOST_CATEGORIES} categories. "
            "Use a larger one, or catlog.estimators.CountDifferences, which does not truncate."
        )
    return sizes[bisect_left(sizes, True, key=is_enough)]
