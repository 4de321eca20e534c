"""How estimators see counts: Poisson, Binomial, Geometric and NegativeBinomial."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import (
    Binomial,
    Distribution,
    Geometric,
    NegativeBinomial,
    Poisson,
)
from torch.nn.functional import logsigmoid

from .categories import Kind, safe_log, widened
from .checks import check_dense, is_checked
from .factors import Factors, base_distribution, given_form
from .tracing import can_inspect


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

    >>> from torch.distributions import Independent, Poisson
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
