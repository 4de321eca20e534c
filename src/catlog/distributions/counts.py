"""Counts: how estimators see Poisson, Binomial, Geometric and NegativeBinomial, and their
truncation to categories with a bound of its error."""

from bisect import bisect_left
from math import prod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import (
    Binomial,
    Categorical,
    Distribution,
    Geometric,
    Independent,
    NegativeBinomial,
    OneHotCategorical,
    Poisson,
)
from torch.nn.functional import logsigmoid

from ..core.categories import Kind, safe_log, widened
from ..core.checks import (
    check_count,
    check_dense,
    check_flag,
    check_number,
    is_checked,
    refusal,
)
from ..core.factors import READERS, Factors, given_form
from ..core.tracing import can_inspect
from ..core.view import view

MOST_CATEGORIES = 2**16


class Counts(Factors):
    r"""A distribution over counts :math:`z \in \{0, 1, \dots\}^d` with independent :math:`z_i`.

    .. math:: \frac{\partial}{\partial \theta_i} \mathbb{E}[f(z)] = \mathbb{E}[w_i(z)\, D_i f(z)]

    Attributes:
        parameter: :math:`\theta_i`, the rate (Poisson) or the probability, ``[*batch, d]``,
            differentiable.
        fixed: the same, a constant.
        size: the ``total_count`` of each variable; 0 if there is none.
        log_p, log_rest: the logarithms of the probability and of 1 less it; of a rate, the first.
        steps: 1 where the difference :math:`D_i f` is :math:`f(z + e_i) - f(z)`, -1 where it is
            :math:`f(z) - f(z - e_i)`.
        most: the largest count of each variable, inf if there is none.
    """

    kinds = frozenset({Kind.COUNTS})
    kind = Kind.COUNTS
    endless: float | None = None  # the probability at which counts are infinite

    def __init__(
        self,
        base: Any,
        batch_shape: torch.Size,
        event_shape: torch.Size,
        outputs: int = 0,
        validate: bool = True,
    ) -> None:
        super().__init__(batch_shape, event_shape, outputs, validate)
        name, total = type(base).__name__, getattr(base, "total_count", 0)
        if isinstance(total, Tensor) and total.requires_grad:
            raise ValueError(
                f"q: {name} has a `total_count` that requires a gradient, which is not estimated. "
                "Detach it."
            )
        given = base.rate if isinstance(base, Poisson) else base.probs
        check_dense(f"q: the parameter of {name}", given)
        if can_inspect(validate, given):
            if not bool(given.isfinite().all()):
                raise ValueError(f"q: {name} has parameters that are NaN or infinite.")
            if self.endless is not None and bool((given == self.endless).any()):
                raise ValueError(
                    f"q: {name} must have finite counts, but a probability is {self.endless:g}, "
                    "perhaps by rounding. Keep its logits moderate."
                )
        self.d = prod(event_shape)
        self.dtype = given.dtype
        self.device = given.device
        shape = self.batch_shape + (self.d,)
        self.parameter = widened(given.reshape(shape))
        self.real = self.parameter.dtype
        self.fixed = self.parameter.detach()
        size = total.to(self.fixed) if isinstance(total, Tensor) else self.fixed.new_full((), total)
        self.size = size.expand(given.shape).reshape(shape)
        logs = self.logarithms(base)
        self.log_p, self.log_rest = (log.to(self.real).reshape(shape) for log in logs)
        self.steps = torch.ones_like(self.fixed)
        self.most = torch.full_like(self.fixed, torch.inf)

    def check_points(self, x: Tensor, points: Tensor) -> None:
        counts = self.flat(points)
        is_count = (counts >= 0) & (counts == counts.round()) & (counts <= self.most)
        if not bool(is_count.all()):
            claim = "hold counts that q can draw, whole numbers from 0 on"
            raise refusal("x", claim, "others were given")

    def logarithms(self, base: Any) -> tuple[Tensor, Tensor]:
        """Return log p and log(1 - p), exact also for logits of +-80."""
        if given_form(base) == "logits":
            logits = widened(base.logits)
            return logsigmoid(logits), logsigmoid(-logits)
        probs = widened(base.probs)
        return safe_log(probs), safe_log(1 - probs)

    def weights(self, z: Float[Tensor, "n *batch d"]) -> Float[Tensor, "n *batch d"]:
        """Return :math:`w_i(z)`, the weights of the differences."""
        raise NotImplementedError

    def log_mass(self, k: Float[Tensor, "*batch d K"]) -> Float[Tensor, "*batch d K"]:
        """Return :math:`\\log p_i(k)`, less :meth:`constant`, differentiable."""
        raise NotImplementedError

    def constant(self) -> Tensor | float:
        """Return what all log-masses of a variable have in common, apart from differences."""
        return 0.0

    def ratio(self, k: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """Return an upper bound of :math:`p_i(j + 1) / p_i(j)` for all j from k on."""
        raise NotImplementedError


def _times(count: Tensor, log: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d K"]:
    """Return count times log, where 0 times -inf is 0."""
    return torch.where(count == 0, 0.0, count * log.unsqueeze(-1))


class PoissonCounts(Counts):
    """Counts with the rate as parameter."""

    def logarithms(self, base: Any) -> tuple[Tensor, Tensor]:
        log_rate = safe_log(widened(base.rate))
        return log_rate, log_rate

    def weights(self, z: Tensor) -> Tensor:
        return torch.ones_like(z)

    def log_mass(self, k: Tensor) -> Tensor:
        return _times(k, self.log_p) - torch.lgamma(k + 1)

    def constant(self) -> Tensor:
        return -self.parameter

    def ratio(self, k: Tensor) -> Tensor:
        return self.fixed / (k + 1)


class BinomialCounts(Counts):
    """Counts of successes among ``size`` trials."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.is_likely = self.fixed > 0.5
        self.steps = torch.where(self.is_likely, -1.0, 1.0).to(self.real)
        self.most = self.size

    def weights(self, z: Tensor) -> Tensor:
        return torch.where(self.is_likely, z / self.fixed, (self.size - z) / (1 - self.fixed))

    def log_mass(self, k: Tensor) -> Tensor:
        size = self.size[..., None].to(k.dtype)
        is_possible = k <= size
        rest = torch.where(is_possible, size - k, 0.0)
        choices = torch.lgamma(size + 1) - torch.lgamma(k + 1) - torch.lgamma(rest + 1)
        mass = choices + _times(k, self.log_p) + _times(rest, self.log_rest)
        return mass.masked_fill(~is_possible, -torch.inf)

    def ratio(self, k: Tensor) -> Tensor:
        return ((self.size - k) / (k + 1)).clamp(min=0) * self.fixed / (1 - self.fixed)


class GeometricCounts(Counts):
    """Counts of failures before the first success."""

    endless = 0.0

    def weights(self, z: Tensor) -> Tensor:
        return -(z + 1) / self.fixed

    def log_mass(self, k: Tensor) -> Tensor:
        return _times(k, self.log_rest) + self.log_p[..., None]

    def ratio(self, k: Tensor) -> Tensor:
        return (1 - self.fixed).expand(k.shape)


class NegativeBinomialCounts(Counts):
    """Counts of successes before ``size`` failures."""

    endless = 1.0

    def weights(self, z: Tensor) -> Tensor:
        return (z + self.size) / (1 - self.fixed)

    def log_mass(self, k: Tensor) -> Tensor:
        size = self.size[..., None].to(k.dtype)
        choices = torch.lgamma(size + k) - torch.lgamma(size) - torch.lgamma(k + 1)
        return choices + _times(k, self.log_p) + size * self.log_rest[..., None]

    def ratio(self, k: Tensor) -> Tensor:
        return self.fixed * ((k + self.size) / (k + 1)).clamp(min=1)


READERS[Poisson] = PoissonCounts
READERS[Binomial] = BinomialCounts
READERS[Geometric] = GeometricCounts
READERS[NegativeBinomial] = NegativeBinomialCounts


def counts(q: Distribution) -> Counts:
    """View ``q`` as independent counts, or raise an error that says which distributions can be.

    >>> q = Independent(Poisson(torch.tensor([1.0, 3.0])), 1)
    >>> counts(q).d, counts(q).weights(torch.zeros(2))
    (2, tensor([1., 1.]))
    """
    factors = view(q, 0, Counts.kinds)
    assert isinstance(factors, Counts)
    return factors


@torch.no_grad()
def lost_mass(q: Distribution, categories: int) -> Float[Tensor, "*batch"]:
    r"""Return an upper bound of the probability that some count is at least ``categories``.

    The masses beyond K fall at least as fast as a geometric series with the ratio
    :math:`\rho = \max_{k \ge K} p(k + 1) / p(k)`, so :math:`\Pr(z \ge K) \le p(K) / (1 - \rho)`.
    The bounds of the variables add up.

    >>> lost_mass(Poisson(torch.tensor(2.0)), 10)
    tensor(4.6676e-05)
    """
    check_count("lost_mass", "categories", categories)
    law = counts(q)
    return _tails(law, categories).sum(-1).clamp(max=1).to(law.real)


def _tails(law: Counts, categories: int) -> Float[Tensor, "*batch d"]:
    """Return an upper bound of every variable's probability to be at least ``categories``."""
    count = torch.full_like(law.parameter.detach(), categories, dtype=_wide(law.device))
    log_mass = law.log_mass(count.unsqueeze(-1)).squeeze(-1)
    mass = (log_mass + law.constant()).exp()
    ratio = law.ratio(count)
    tail = torch.where(ratio < 1, mass / (1 - ratio), 1.0)
    return torch.where(count > law.most, 0.0, tail)


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
    log_mass = law.log_mass(count.expand(*law.parameter.shape, categories))
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

    sizes = range(2 if bool((law.most > 0).any()) else 1, MOST_CATEGORIES + 1)
    if not is_enough(MOST_CATEGORIES):
        raise ValueError(
            f"truncated: an `error` of {error} needs more than {MOST_CATEGORIES} categories. "
            "Use a larger one, or catlog.estimators.CountDifferences, which does not truncate."
        )
    return sizes[bisect_left(sizes, True, key=is_enough)]
