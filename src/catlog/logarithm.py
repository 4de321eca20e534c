"""The logarithm of an expectation: defined where all draws score zero, and with less bias."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution

from .core.abilities import has_log_mean
from .core.checks import (
    check_count,
    check_function,
    check_generator,
    check_positive,
    is_checked,
)
from .core.estimator import Estimator, check_estimator, tie
from .core.evaluator import Function
from .core.randomness import seeded_from
from .core.tracing import can_inspect
from .core.view import converted, view

MOST_REPEATS = 2**20  # calls of E, whose results are held together


def log_expectation(
    E: Estimator,
    f: Function,
    q: Distribution,
    *,
    repeats: int = 1,
    floor: float | None = None,
    value: Estimator | None = None,
    outputs: int = 0,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "*batch_outputs"]:
    r"""Estimate :math:`\log \mathbb{E}_{x\sim q}[f(x)]` and its gradient, for :math:`f \ge 0`.

    E is called ``repeats`` times. With the mean :math:`\bar V` of the R estimates, their sample
    variance :math:`s^2` and a small constant :math:`\varepsilon` (``floor``), the value is

    .. math::
        \log(\bar V + \varepsilon) + \frac{s^2}{2 R\, (\bar V + \varepsilon)^2}

    and the gradient is that of the chain rule. The second term needs R of at least 2. It cancels
    the leading bias of the logarithm, :math:`-\operatorname{Var} \bar V / (2\, \mathbb{E}[f]^2)`,
    and that of its gradient: :math:`O(1/R^2)` remains instead of :math:`O(1/R)`. This helps if the
    relative variance :math:`\operatorname{Var} \bar V / \mathbb{E}[f]^2` is well below 1; otherwise
    only more draws help. It is not guaranteed to help: with very few draws, such as two calls of
    ``RLOO(2)``, the gradient's bias can be larger than that of ``RLOO(4)``. The term is at most 1/2
    if no estimate is negative. For estimators with a critic, whose values may be negative, it is
    limited to 1/2.

    **If the mean is not positive** (f is 0 at all draws), the value is :math:`\log \varepsilon` and
    the gradient is 0. Neither is infinite or NaN, so one such batch element does not harm the
    others. There is no warning, because looking at values would stall a GPU. Compare the value with
    ``log(floor)`` to count these elements. Prefer estimators that are seldom zero, such as
    ``IndeCateR(n, per_variable=True)``. If the mean is negative because f is, an error is raised on
    a CPU (in eager mode, unless q has ``validate_args=False``).

    **A second estimator for the value.** The gradient is that of E[f] divided by E[f], and a number
    of draws that is enough for the numerator may be too small for the denominator. With ``value``,
    an estimator that is cheap per draw, such as ``RLOO(1000)``, the value and the denominator are
    its estimate :math:`\bar V`, from separate draws, and E gives only the numerator. The remaining
    bias of the gradient is that of :math:`1 / (\bar V + \varepsilon)`.

    With Exact the logarithm is exact. If f has a method ``log_expectation(q)``, as
    :class:`catlog.functions.OfSum` has, Exact uses it, so that the result is right even if the mean
    is smaller than the smallest number of its dtype. VIMCO raises an error, because it estimates a
    bound of the logarithm from log-weights.

    Cost: ``repeats`` times that of E. Needs: f of at least 0, and differentiable if E needs that.
    Reference: the delta method; for importance-weighted bounds Nowozin, "Debiasing evidence
    approximations: On importance-weighted autoencoders and jackknife variational inference", 2018.

    Args:
        E: an estimator of expectations.
        f: the function, as for E.
        q: the distribution, as for E.
        repeats: number R of calls of E; 1: no correction. At equal cost, give E fewer draws.
        floor: the constant that is added to the estimate. None: the smallest normal number of the
            dtype, which changes nothing where the estimate is positive.
        value: an estimator of E[f] for the value and the denominator of the gradient; None: E.
        outputs: the number of output dimensions of f, as for E: a logarithm per output.
        generator: the source of randomness; torch's default generator if None.

    >>> from catlog import Exact, RLOO
    >>> logits = torch.zeros(2, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Bernoulli(logits=logits), 1)
    >>> log_expectation(Exact(), lambda x: x.prod(-1), q).exp()
    tensor(0.2500, grad_fn=<ExpBackward0>)
    >>> nothing = log_expectation(RLOO(4), lambda x: 0 * x[..., 0], q, repeats=2, floor=1e-8)
    >>> nothing.backward()
    >>> f"{nothing.item():.2f}", logits.grad
    ('-18.42', tensor([0., 0.]))
    """
    hint = "The bias falls with its square. For less noise, give E more draws."
    check_count("log_expectation", "repeats", repeats, most=MOST_REPEATS, hint=hint)
    check_function(f)
    check_generator(generator)
    if floor is not None:
        check_positive("log_expectation", "floor", floor)
    check_estimator("log_expectation: `E`", E, "The order is log_expectation(E, f, q).")
    check_estimator("log_expectation: `value`", E if value is None else value)
    if E.target == "bound":
        raise ValueError(
            f"log_expectation: `E` must estimate E[f], but {type(E).__name__} estimates a bound of "
            "its logarithm from log-weights. Call it with log f instead."
        )
    if value is not None and (repeats > 1 or value.target == "bound"):
        raise ValueError(
            "log_expectation: `value` must estimate E[f], and it excludes `repeats`, which "
            "correct the logarithm of E's own estimates. Give `value` more draws instead."
        )
    if value is None and not outputs and (log_mean := _known_logarithm(E, f, q)) is not None:
        lowest = log_mean.new_tensor(floor or torch.finfo(log_mean.dtype).tiny).log()
        if floor is None:
            return torch.where(log_mean == -torch.inf, lowest, log_mean)
        return log_mean.logaddexp(lowest)
    options: dict[str, Any] = {"generator": generator}
    if outputs:
        options["outputs"] = outputs
    estimates = [E(f, q, **options) for _ in range(repeats)]
    if value is not None:
        with torch.no_grad():
            level = value(f, q, **options)
        estimates = [tie(level, estimate) for estimate in estimates]
    stacked = torch.stack(estimates)
    if stacked.device.type == "cpu" and can_inspect(is_checked(q), stacked):
        _check_sign(stacked.mean(0), f, q)
    return log_of_mean(stacked, floor)


def _check_sign(mean: Float[Tensor, "*batch"], f: Function, q: Distribution) -> None:
    """Raise if a mean is negative because f is. A critic or rounding can make it so, too."""
    if not bool((mean < 0).any()):
        return
    with torch.no_grad(), seeded_from(torch.Generator().manual_seed(0)):
        known = q if isinstance(q, Distribution) else converted(q)
        lowest = f(known.sample(torch.Size([16]))).min().item()
    if lowest < 0:
        raise ValueError(
            f"log_expectation: `f` must be at least 0, but it is {lowest:.4g} at a draw of q, and "
            "the estimate is negative. If f returns log-probabilities, pass lambda x: f(x).exp()."
        )


def _known_logarithm(E: Estimator, f: Function, q: Distribution) -> Tensor | None:
    """Return the logarithm of the mean if E is exact and f knows it; None if not."""
    if not (E.is_exact and has_log_mean(f)):
        return None
    view(q)
    try:
        log_mean: Tensor = f.log_expectation(q)
    except NotImplementedError:
        return None
    return log_mean


def log_of_mean(
    estimates: Float[Tensor, "repeats *batch"], floor: float | None = None
) -> Float[Tensor, "*batch"]:
    """Return the corrected logarithm of a mean of estimates, see :func:`log_expectation`."""
    repeats = len(estimates)
    smallest = torch.finfo(estimates.dtype).tiny
    mean = estimates.mean(0)
    is_positive = mean > 0
    total = torch.where(is_positive, mean, 0.0) + max(floor or 0.0, smallest)
    value = total.log()
    if repeats == 1:
        return value
    # Divided first, because the square of a small mean underflows.
    relative = torch.where(is_positive, estimates, 0.0) / total
    # Without negative estimates the sum of their squares is at most the square of their sum, and so
    # the relative variance of the mean, s^2 / (R mean^2), is at most 1.
    return value + (relative.var(0) / repeats).clamp(max=1) / 2
