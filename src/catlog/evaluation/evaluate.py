"""The one place that calls f: shapes and values checked, inputs protected."""

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from ..checks import can_inspect, check_function, in_inference_mode, inside_functorch
from ..distributions.conditionals import Conditionals
from ..distributions.factors import Factors
from ..estimator import Function

NOT_DIFFERENTIABLE = (
    "f: its derivative in x is needed by this estimator, but f's value does not depend differentiably on x. Use a black-box "
    "estimator (RLOO, RELAX, IndeCateR without `variables`, or with control='none'), or make f differentiable."
)
FLAT = frozenset(  # their derivative is 0, or torch has none
    [
        *(f"{name}Backward0" for name in ("Ceil", "Floor", "Round", "Sgn", "Sign", "Trunc")),
        "RoundBackward1",
    ]
    + ["torch::autograd::NotImplemented"]
)


def evaluate(
    f: Function, x: Tensor, law: Factors | Conditionals, *, validate: bool = True
) -> Float[Tensor, "n *batch"]:
    """``f(x)`` for points ``[n, *batch, *event]``; f may write into its input without harm to the caller's."""
    check_function(f)
    return checked(f(x.clone()), x, law, validate=validate)


def evaluate_through(
    f: Function, points: Tensor, law: Factors | Conditionals, *, validate: bool = True
) -> Float[Tensor, "n *batch"]:
    """``f(points)``, whose derivative in the points is needed: an error (in eager mode, with ``validate``) where it has none.

    f may write into the points.
    """
    check_function(f)
    origin = (
        points.grad_fn
        if validate and not torch.compiler.is_compiling() and not inside_functorch()
        else None
    )
    fx = checked(f(points), points, law, validate=validate)
    if origin is not None and not depends(fx, origin):
        raise ValueError(NOT_DIFFERENTIABLE)
    return fx


def value_and_slope(
    f: Function,
    x: Tensor,
    law: Factors | Conditionals,
    *,
    validate: bool = True,
    learns: bool = False,
) -> tuple[Tensor, Tensor]:
    """``f(x)`` and its derivative in x at every point, by one batched backward pass.

    Where no gradient is wanted (``no_grad``, ``inference_mode``) nothing is differentiated, and the derivative is given as 0.
    With ``learns``, the estimator learns from it under ``no_grad``, too; under ``inference_mode`` torch has none to give.
    """
    if in_inference_mode() or not (torch.is_grad_enabled() or learns):
        return evaluate(f, x, law, validate=validate), torch.zeros_like(x)
    if torch.compiler.is_compiling() or inside_functorch():
        fx, pull = torch.func.vjp(f, x.clone())[:2]
        (slope,) = pull(torch.ones_like(fx))
        return checked(fx, x, law, validate=validate), slope.detach()
    check_function(f)
    with torch.enable_grad():
        leaf = x.detach().clone().requires_grad_()
        points = leaf.clone()
        origin = points.grad_fn
        fx = checked(f(points), x, law, validate=validate)
        some = origin is not None and depends(fx, origin)
        slope = (
            torch.autograd.grad(fx.sum(), leaf, retain_graph=True, allow_unused=True)[0]
            if some
            else None
        )
    if slope is None and torch.is_grad_enabled():
        raise ValueError(NOT_DIFFERENTIABLE)
    if slope is None:
        return fx, torch.zeros_like(x)
    check_finite(slope, "f's derivative in x must have", validate)
    return fx, slope


def depends(result: Tensor, origin: torch.autograd.graph.Node) -> bool:
    """Whether the node ``origin`` is among those behind ``result``, by a path on which not all derivatives are 0.

    >>> x = torch.ones(2, requires_grad=True).clone()
    >>> [depends(y, x.grad_fn) for y in (x.sum() * 0, x.round().sum(), x.round() + x, x.detach())]
    [True, False, True, False]
    """
    found, waiting = set(), [result.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is origin:
            return True
        if node is None or node in found or node.name() in FLAT:
            continue
        found.add(node)
        waiting.extend(each for each, _ in node.next_functions)
    return False


def checked(
    fx: object, x: Tensor, law: Factors | Conditionals, *, validate: bool
) -> Float[Tensor, "n *batch"]:
    """``fx`` if it is what the contract asks of f; else an error that says what f returned and what to do."""
    expected = x.shape[:1] + law.batch_shape
    if not isinstance(fx, Tensor):
        raise TypeError(
            f"f must return a tensor of shape {tuple(expected)}, but it returned {type(fx).__name__}."
        )
    if fx.shape != expected:
        raise ValueError(_wrong_shape(fx, x, law, expected))
    if fx.device != x.device:
        raise ValueError(
            f"f must return its values on {x.device}, where its input lies, but they lie on {fx.device}."
        )
    if fx.dtype == torch.bool:
        return fx.to(law.real)
    if not fx.is_floating_point():
        raise TypeError(
            f"f must return floats or bools, but it returned {fx.dtype}: end it with `.float()` (or `.double()`)."
        )
    check_finite(fx, "f must return", validate)
    return fx


def check_finite(values: Tensor, claim: str, validate: bool) -> None:
    """Raise where a value is NaN or infinite, where Python may look (see :func:`catlog.checks.may_look`)."""
    if can_inspect(validate, values) and not bool(values.isfinite().all()):
        bad = (~values.isfinite()).nonzero()
        first = tuple(bad[0].tolist())
        raise ValueError(
            f"{claim} finite numbers, but {len(bad)} of {values.numel()} are NaN or infinite, the first "
            f"({cast(float, values[first].item())}) at index {first}. Pass validate=False to the estimator to let them through."
        )


def _wrong_shape(fx: Tensor, x: Tensor, law: Factors | Conditionals, expected: torch.Size) -> str:
    message = (
        f"f must return one value per point: it was given x of shape {tuple(x.shape)} and must return shape {tuple(expected)} "
        f"([n, *batch]), but it returned {tuple(fx.shape)}."
    )
    for missing in range(1, len(law.batch_shape) + 1):
        if fx.shape == expected[:-missing]:
            return (
                f"{message} It seems to treat the last {missing} batch dimension{'s' * (missing > 1)} of q as variables of one "
                f"event: wrap the law as Independent(q, {missing})."
            )
    return (
        f"{message} Reduce the event dimensions {tuple(law.event_shape)} and keep the leading ones."
    )
