"""Counts: the view of Poisson, Binomial, Geometric and NegativeBinomial, and their truncation."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from math import prod

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
from ..core.checks import check_count, check_dense, check_flag, check_number, is_checked
from ..core.factors import Factors, base_distribution, given_form
from ..core.tracing import can_inspect

MOST_CATEGORIES = 2**16


@dataclass(frozen=True, eq=False)
class Family:
    r"""What is known of a family of counts, for the variables of one distribution.

    Attributes:
        weights: :math:`w_i(z)` of a difference, as a function of z ``[n, *batch, d]``.
        steps: 1 where the difference is :math:`f(z + e_i) - f(z)`, -1 where it is
            :math:`f(z) - f(z - e_i)`.
        log_mass: :math:`\log p_i(k)` of counts k ``[*batch, d, K]``, less ``constant``,
            differentiable.
        ratio: an upper bound of :math:`p_i(j + 1) / p_i(j)` for all j from k ``[*batch, d]`` on.
        most: the largest count of each variable, inf if there is none.
        constant: what all log-masses of a variable have in common, apart from their differences.

    .. math:: \frac{\partial}{\partial \theta_i} \mathbb{E}[f(z)] = \mathbb{E}[w_i(z)\, D_i f(z)]
    """

    weights: Callable[[Tensor], Tensor]
    steps: Float[Tensor, "*batch d"]
    log_mass: Callable[[Tensor], Tensor]
    ratio: Callable[[Tensor], Tensor]
    most: Float[Tensor, "*batch d"]
    constant: Tensor | float = 0.0


@dataclass(frozen=True, eq=False)
class Counts(Factors):
    r"""A distribution over counts :math:`z \in \{0, 1, \dots\}^d` with independent :math:`z_i`.

    Attributes:
        parameter: :math:`\theta_i`, the rate (Poisson) or the probability, differentiable.
        family: what is known of the distribution of a single count.
        distribution: what the user gave.
        batch_shape: of q.
        event_shape: of q.
        dtype: of a point as f sees it.
        outputs: how many of the last batch dimensions stand for the outputs of f.
        validate: check what comes with q, values of f and points, where Python may look at them.
    """

    kinds = frozenset({Kind.COUNTS})
    kind = Kind.COUNTS

    parameter: Float[Tensor, "*batch d"]
    family: Family
    distribution: Distribution
    batch_shape: torch.Size
    event_shape: torch.Size
    dtype: torch.dtype
    outputs: int
    validate: bool

    @property
    def d(self) -> int:  # type: ignore[override]
        return prod(self.event_shape)

    @property
    def real(self) -> torch.dtype:  # type: ignore[override]
        return self.parameter.dtype

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.parameter.device


def counts(q: Distribution, outputs: int = 0) -> Counts:
    """View ``q`` as independent counts, or raise an error that says which distributions can be.

    >>> q = Independent(Poisson(torch.tensor([1.0, 3.0])), 1)
    >>> counts(q).d, counts(q).family.weights(torch.zeros(2))
    (2, tensor([1., 1.]))
    """
    base = base_distribution(q)
    validate = is_checked(q)
    if not isinstance(base, (Poisson, Binomial, Geometric, NegativeBinomial)):
        raise TypeError(
            "q: a distribution of independent counts is needed, Poisson, Binomial, Geometric or "
            "NegativeBinomial of torch.distributions, alone or inside Independent(..., dims), but "
            f"{type(base).__name__} was given."
        )
    total = getattr(base, "total_count", 0)
    if isinstance(total, Tensor) and total.requires_grad:
        raise ValueError(
            f"q: {type(base).__name__} has a `total_count` that requires a gradient, which is not "
            "estimated. Detach it."
        )
    batch = q.batch_shape + (1,) * outputs
    shape = batch + (prod(q.event_shape),)
    parameter = base.rate if isinstance(base, Poisson) else base.probs
    check_dense(f"q: the parameter of {type(base).__name__}", parameter)
    if can_inspect(validate, parameter) and not bool(parameter.isfinite().all()):
        raise ValueError(f"q: {type(base).__name__} has parameters that are NaN or infinite.")
    theta = widened(parameter.reshape(shape))
    endless = {Geometric: 0.0, NegativeBinomial: 1.0}.get(type(base))
    if endless is not None and can_inspect(validate, theta) and bool((theta == endless).any()):
        raise ValueError(
            f"q: {type(base).__name__} must have finite counts, but a probability is {endless:g}, "
            "perhaps by rounding. Keep its logits moderate."
        )
    size = total.to(theta) if isinstance(total, Tensor) else theta.new_full((), total)
    size = size.expand(parameter.shape).reshape(shape)
    logs = [log.to(theta.dtype).reshape(shape) for log in _logs(base)]
    return Counts(
        parameter=theta,
        family=FAMILIES[type(base)](theta, size, *logs),
        distribution=q,
        batch_shape=batch,
        event_shape=q.event_shape,
        dtype=parameter.dtype,
        outputs=outputs,
        validate=validate,
    )


def _logs(q: Poisson | Binomial | Geometric | NegativeBinomial) -> tuple[Tensor, Tensor]:
    """Return log p and log(1 - p), exact also for logits of +-80; of a rate, its logarithm."""
    if isinstance(q, Poisson):
        return safe_log(widened(q.rate)), q.rate
    if given_form(q) == "logits":
        logits = widened(q.logits)
        return logsigmoid(logits), logsigmoid(-logits)
    probs = widened(q.probs)
    return safe_log(probs), safe_log(1 - probs)


def _times(count: Tensor, log: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d K"]:
    """Return count times log, where 0 times -inf is 0."""
    return torch.where(count == 0, 0.0, count * log.unsqueeze(-1))


def _poisson(rate: Tensor, _: Tensor, log_rate: Tensor, __: Tensor) -> Family:
    fixed = rate.detach()
    return Family(
        weights=torch.ones_like,
        steps=torch.ones_like(fixed),
        log_mass=lambda k: _times(k, log_rate) - torch.lgamma(k + 1),
        ratio=lambda k: fixed / (k + 1),
        most=torch.full_like(fixed, torch.inf),
        constant=-rate,
    )


def _binomial(probs: Tensor, n: Tensor, log_p: Tensor, log_rest: Tensor) -> Family:
    fixed = probs.detach()
    is_likely = fixed > 0.5

    def log_mass(k: Tensor) -> Tensor:
        size = n[..., None].to(k.dtype)
        is_possible = k <= size
        rest = torch.where(is_possible, size - k, 0.0)
        choices = torch.lgamma(size + 1) - torch.lgamma(k + 1) - torch.lgamma(rest + 1)
        mass = choices + _times(k, log_p) + _times(rest, log_rest)
        return mass.masked_fill(~is_possible, -torch.inf)

    return Family(
        weights=lambda z: torch.where(is_likely, z / fixed, (n - z) / (1 - fixed)),
        steps=torch.where(is_likely, -1.0, 1.0).to(fixed.dtype),
        log_mass=log_mass,
        ratio=lambda k: ((n - k) / (k + 1)).clamp(min=0) * fixed / (1 - fixed),
        most=n,
    )


def _geometric(probs: Tensor, _: Tensor, log_p: Tensor, log_rest: Tensor) -> Family:
    fixed = probs.detach()
    return Family(
        weights=lambda z: -(z + 1) / fixed,
        steps=torch.ones_like(fixed),
        log_mass=lambda k: _times(k, log_rest) + log_p[..., None],
        ratio=lambda k: (1 - fixed).expand(k.shape),
        most=torch.full_like(fixed, torch.inf),
    )


def _negative_binomial(probs: Tensor, r: Tensor, log_p: Tensor, log_rest: Tensor) -> Family:
    fixed = probs.detach()

    def log_mass(k: Tensor) -> Tensor:
        size = r[..., None].to(k.dtype)
        choices = torch.lgamma(size + k) - torch.lgamma(size) - torch.lgamma(k + 1)
        return choices + _times(k, log_p) + size * log_rest[..., None]

    return Family(
        weights=lambda z: (z + r) / (1 - fixed),
        steps=torch.ones_like(fixed),
        log_mass=log_mass,
        ratio=lambda k: fixed * ((k + r) / (k + 1)).clamp(min=1),
        most=torch.full_like(fixed, torch.inf),
    )


FAMILIES: dict[type[Distribution], Callable[[Tensor, Tensor, Tensor, Tensor], Family]] = {
    Poisson: _poisson,
    Binomial: _binomial,
    Geometric: _geometric,
    NegativeBinomial: _negative_binomial,
}


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
