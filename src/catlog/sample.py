"""Draws in the middle of a network, with an estimator's gradient: `catlog.sample`."""

from math import isnan
from typing import Any, cast
from warnings import warn

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Bernoulli, Categorical
from torch.nn import functional

from .core.categories import Kind, logistics, widened
from .core.checks import (
    broadcasts,
    check_dense,
    check_flag,
    check_generator,
    check_temperature,
    check_tensor,
    refusal,
    with_known_arguments,
)
from .core.estimator import once
from .core.factors import Bits, OneHots, RelaxableFactors
from .core.randomness import Randomness, exponentials, rand
from .core.tracing import can_inspect, constant_result
from .estimators.straight_through import GumbelSoftmax, StraightThrough, Through

_torchs = functional.gumbel_softmax  # the function itself, whatever takes its place later
DROP_IN = (
    "For F.gumbel_softmax(logits, tau, hard) write catlog.gumbel_softmax(logits, tau, hard), or "
    "sample(logits, GumbelSoftmax(temperature=tau, hard=hard))."
)


SlopeEstimator = Through[Any]


@with_known_arguments(lambda unknown: DROP_IN)
def sample(
    logits: Float[Tensor, "*shape"],
    estimator: SlopeEstimator = StraightThrough(),
    *,
    dim: int = -1,
    bits: bool = False,
    x: Tensor | None = None,
    noise: Tensor | None = None,
    generator: torch.Generator | None = None,
    validate_args: bool = True,
) -> Float[Tensor, "*shape"]:
    r"""Draw one-hot vectors (or bits) that can be differentiated in the logits.

    What ``torch.nn.functional.gumbel_softmax(logits, tau, hard=True)`` does, with the gradient of
    ``estimator`` (:func:`catlog.gumbel_softmax` has torch's arguments, too):

    .. math:: y \sim \operatorname{Categorical}(\operatorname{softmax}(\text{logits})), \qquad
        \partial y := \partial m(\text{logits}, y)

    where m is what the estimator differentiates in place of the draw, such as
    :math:`\operatorname{softmax}(\text{logits})` for :class:`StraightThrough`. For a loss that is
    computed from y, this is the gradient of ``E(f, q)`` with the same draw. The values of y are
    exactly 0 and 1. Layers of a network may each draw, with different estimators.
    (:class:`DecoupledStraightThrough` and :class:`ReDGE` draw from probabilities of their own.)

    ``sample(logits, GumbelSoftmax(temperature=tau, hard=True))`` is ``F.gumbel_softmax``: after the
    same ``torch.manual_seed`` it has the same draw and the same gradient (with 16-bit logits up to
    rounding). Without ``hard`` it returns relaxed draws, as there. Logits that are NaN, or masked
    in every category, raise an error unless ``validate_args=False``. On a GPU, Gumbel-Softmax lets
    them through as ``F.gumbel_softmax`` does, because a look at them would wait for the device.

    Every estimator here is **biased**. :func:`catlog.compare_layers` measures how much. Estimators
    that need the values of f (RLOO, IndeCateR and most others) cannot be used without it: write the
    rest of the network as a function and call ``E(f, q)``.

    Cost: one draw and its derivative. Needs: a loss that is differentiable in y.

    Args:
        logits: the logits of the categories along ``dim``, of any normalisation; with ``bits``, one
            logit per bit.
        estimator: :class:`StraightThrough` (the default, the safest of a race on seven models),
            :class:`ReinMax` (better with a KL term, worse without), :class:`GumbelSoftmax`,
            :class:`GumbelRao`, :class:`DARN` (bits) or another with a method ``points``; with
            ``samples=1``. Expand the logits for more draws.
        dim: the dimension of the categories.
        bits: draw Bernoulli variables.
        x: a draw to use instead, in the shape of the logits.
        noise: uniforms to use, in the shape that the estimator states for one draw of
            ``OneHotCategorical(logits=logits)`` (``Bernoulli`` with ``bits``), with the categories
            last.
        generator: the source of randomness; by default torch's global generator.
        validate_args: False skips the look at the numbers of the logits (which waits for a GPU).

    >>> logits = torch.zeros(5, 3, requires_grad=True)
    >>> y = sample(logits, GumbelSoftmax(temperature=0.5, hard=True))
    >>> y.shape, y.sum(-1).tolist()
    (torch.Size([5, 3]), [1.0, 1.0, 1.0, 1.0, 1.0])
    >>> codes = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]])
    >>> (sample(logits) @ codes).sum().backward()
    >>> logits.grad.shape
    torch.Size([5, 3])
    """
    _check(logits, estimator, dim, bits)
    check_flag("sample", "validate_args", validate_args)
    if hasattr(estimator, "relax") and x is None and noise is None:
        relaxation = cast(GumbelSoftmax, estimator)
        return _gumbel_softmax(logits, relaxation, dim, bits, generator, validate_args)
    last = logits if bits or dim in (-1, logits.dim() - 1) else logits.movedim(dim, -1)
    factors = _factors(last, bits, validate_args)
    owner = type(estimator).__name__
    draw = Randomness(factors, _as_points(x, logits, last, dim), noise, generator, owner)
    points = estimator.points(factors, draw)[0]
    draw.check_used()
    draws = points if estimator.twice else once(points, points)
    return draws if last is logits else draws.movedim(-1, dim)


def gumbel_softmax(
    logits: Float[Tensor, "*shape"],
    tau: float | Tensor = 1,
    hard: bool = False,
    eps: float = 1e-10,
    dim: int = -1,
    estimator: SlopeEstimator | None = None,
) -> Float[Tensor, "*shape"]:
    """Draw like ``torch.nn.functional.gumbel_softmax``, or with the gradient of an estimator.

    A drop-in for torch's function, for search and replace and for patching a library, with the same
    arguments in the same order::

        torch.nn.functional.gumbel_softmax = partial(catlog.gumbel_softmax, estimator=ReinMax())

    Without ``estimator`` torch's own function is called. With one, the result is :func:`sample`,
    which is discrete whatever ``hard`` says, and raises an error where a variable has no category.

    Cost: one draw and its derivative. Needs: a loss that is differentiable in the draws.

    Args:
        logits: the logits of the categories along ``dim``, of any normalisation.
        tau: the temperature, positive; a tensor must broadcast to the logits. With ``estimator`` it
            has no effect: estimators have settings of their own.
        hard: return one-hot vectors, with the derivative of the relaxed draw. With ``estimator`` it
            has no effect.
        eps: deprecated and without effect, as in torch.
        dim: the dimension of the categories.
        estimator: one that :func:`sample` takes, such as ``ReinMax()``; None: torch's function.

    >>> from catlog import ReinMax
    >>> logits = torch.zeros(5, 3, requires_grad=True)
    >>> y = gumbel_softmax(logits, tau=0.5, hard=True, estimator=ReinMax())
    >>> y.shape, y.sum(-1).tolist()
    (torch.Size([5, 3]), [1.0, 1.0, 1.0, 1.0, 1.0])
    """
    _check_logits("gumbel_softmax", logits, dim)
    if not isinstance(tau, Tensor):
        check_temperature("gumbel_softmax", tau, "tau")
    elif not broadcasts(tau.shape, logits.shape):  # a look at its numbers would wait for the device
        claim = f"be a number or broadcast to the logits, {tuple(logits.shape)}"
        raise refusal("gumbel_softmax: `tau`", claim, f"its shape is {tuple(tau.shape)}")
    if not isinstance(eps, float) or eps != 1e-10:
        warn("`eps` parameter is deprecated and has no effect.", stacklevel=2)
    if estimator is not None:
        return sample(logits, estimator, dim=dim)
    return _torchs(logits, tau, hard, dim=dim)  # type: ignore[arg-type]  # tau


def _factors(logits: Tensor, bits: bool, validate: bool) -> RelaxableFactors:
    """Return Bernoulli variables or one-hot vectors with these logits."""
    if bits:
        bernoulli = Bernoulli(logits=logits, validate_args=False)
        return Bits(bernoulli, logits.shape, torch.Size(), validate=validate)
    # torch's OneHotCategorical would check the logits, whatever `validate_args` says.
    q = Categorical(logits=logits, validate_args=False)
    return OneHots(q, logits.shape[:-1], logits.shape[-1:], validate=validate)


def _gumbel_softmax(
    logits: Tensor,
    estimator: GumbelSoftmax,
    dim: int,
    bits: bool,
    generator: torch.Generator | None,
    validate: bool,
) -> Tensor:
    """Return Gumbel-Softmax's draws, which need neither probabilities nor normalised logits."""
    check_generator(generator, logits.device)
    wide = widened(logits)
    if bits:
        u = rand(wide.shape, wide.dtype, wide.device, generator)
        noise = logistics(u)
    else:
        noise = -exponentials(wide, generator=generator).log()
    temperature = estimator.temperature_for(logits.shape)
    draws = estimator.relax(wide, noise, temperature, bits=bits, dim=dim)
    # Numbers from 0 to 1 have a finite sum, which takes much less time than a look at each.
    if (
        logits.device.type == "cpu"
        and can_inspect(validate, draws)
        and isnan(draws.detach().sum().item())
    ):
        bad = tuple(draws.isnan().nonzero()[0].tolist())
        variable = bad if bits else bad[:dim] + bad[dim:][1:]
        values = logits[bad] if bits else logits.movedim(dim, -1)[variable]
        raise ValueError(
            f"sample: `logits` must leave each variable a category, but those at index {variable} "
            f"are {values.tolist()}, which holds NaN or inf, or has every category masked (-inf). "
            "Check what computes them."
        )
    return draws.to(logits.dtype)


def _as_points(x: Tensor | None, logits: Tensor, last: Tensor, dim: int) -> Tensor | None:
    """Return a draw as the one row of points that an estimator takes, with the categories last."""
    if x is None:
        return None
    x = check_tensor("sample: `x`", x, tuple(logits.shape), "that of the logits")
    return (x if last is logits else x.movedim(dim, -1)).unsqueeze(0)


def _check_logits(owner: str, logits: Tensor, dim: int | None) -> None:
    """Raise unless these are logits with categories along ``dim`` (None: of bits)."""
    subject = f"{owner}: `logits`"
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        but = f"{getattr(logits, 'dtype', type(logits).__name__)} was given"
        remedy = "Give unnormalised logits, as to F.gumbel_softmax; the logarithm of probabilities."
        raise refusal(subject, "be a tensor of floats", but, remedy, TypeError)
    check_dense(subject, logits)
    if dim is not None and (
        isinstance(dim, bool)
        or not isinstance(dim, int)
        or not -logits.dim() <= dim < logits.dim()
        or logits.shape[dim] == 0
    ):
        shape = tuple(logits.shape)
        claim = f"be a dimension of the logits, {shape}, that holds at least one category"
        remedy = "With bits=True every logit is a bit." if owner == "sample" else ""
        raise refusal(f"{owner}: `dim`", claim, f"{dim!r} was given", remedy)


def _check(logits: Tensor, estimator: SlopeEstimator, dim: int, bits: bool) -> None:
    """Raise unless the estimator can draw from these logits without f."""
    check_flag("sample", "bits", bits)
    _check_logits("sample", logits, None if bits else dim)
    if not isinstance(estimator, Through):
        claim = "be one that needs no f (ReinMax, StraightThrough, GumbelSoftmax, DARN, ...)"
        remedy = (
            "With any other estimator E, write the rest of the network as a function f of draws "
            "and call E(f, q) with q = OneHotCategorical(logits=logits)."
        )
        if isinstance(estimator, type):
            remedy = "Give an instance, as in ReinMax()."
        elif isinstance(estimator, int | float):
            remedy = DROP_IN
        raise _refused(estimator, claim, remedy, TypeError)
    if estimator.samples != 1:
        remedy = f"For more expand the logits: logits.expand({estimator.samples}, *logits.shape)."
        raise _refused(estimator, "draw once, with samples=1", remedy, ValueError)
    if not _is_supported(Kind.BITS if bits else Kind.ONE_HOT, type(estimator)):
        claim = f"draw {'bits' if bits else 'one-hot vectors'}"
        remedy = "Leave out bits=True." if bits else "Pass bits=True, with one logit per bit."
        raise _refused(estimator, claim, remedy, TypeError)


def _refused(
    estimator: object, claim: str, remedy: str, kind: type[ValueError] | type[TypeError]
) -> ValueError | TypeError:
    return refusal("sample: `estimator`", claim, f"{estimator!r} was given", remedy, kind)


@constant_result  # torch 2.6 cannot look into a frozenset
def _is_supported(kind: Kind, estimator: type[SlopeEstimator]) -> bool:
    return kind in estimator.supports
