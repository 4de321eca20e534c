"""The one place that calls f: shapes and values checked, inputs protected."""

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from .checks import may_look, transformed
from .conditionals import Conditionals
from .factors import Factors
from .surrogate import Function


def evaluate(f: Function, x: Tensor, law: Factors | Conditionals, *, validate: bool = True) -> Float[Tensor, "n *batch"]:
    """``f(x)`` for points ``[n, *batch, *event]``; f may write into its input without harm to the caller's."""
    return checked(f(x.clone()), x, law, validate=validate)


def value_and_slope(f: Function, x: Tensor, law: Factors | Conditionals, *, validate: bool = True) -> tuple[Tensor, Tensor]:
    """``f(x)`` and its derivative in x at every point, by one batched backward pass."""
    if torch.compiler.is_compiling() or transformed():
        fx, pull = torch.func.vjp(f, x.clone())[:2]
        (slope,) = pull(torch.ones_like(fx))
        return checked(fx, x, law, validate=validate), slope.detach()
    with torch.enable_grad():
        leaf = x.detach().clone().requires_grad_()
        fx = checked(f(leaf.clone()), x, law, validate=validate)
        total = fx.sum()
        slope = torch.autograd.grad(total, leaf, retain_graph=True, allow_unused=True)[0] if total.requires_grad else None
    if slope is None:
        raise ValueError(
            "f: its derivative in x is needed by this estimator, but f's value does not depend differentiably on x. Use a "
            "black-box estimator (IndeCateR without `variables`, or with control='none'), or make f differentiable."
        )
    check_finite(slope, "f's derivative in x must have", validate)
    return fx, slope


def checked(fx: object, x: Tensor, law: Factors | Conditionals, *, validate: bool) -> Float[Tensor, "n *batch"]:
    """``fx`` if it is what the contract asks of f; else an error that says what f returned and what to do."""
    expected = x.shape[:1] + law.batch_shape
    if not isinstance(fx, Tensor):
        raise TypeError(f"f must return a tensor of shape {tuple(expected)}, but it returned {type(fx).__name__}.")
    if fx.shape != expected:
        raise ValueError(_wrong_shape(fx, x, law, expected))
    if fx.device != x.device:
        raise ValueError(f"f must return its values on {x.device}, where its input lies, but they lie on {fx.device}.")
    if fx.dtype == torch.bool:
        return fx.to(law.real)
    if not fx.is_floating_point():
        raise TypeError(f"f must return floats or bools, but it returned {fx.dtype}: end it with `.float()` (or `.double()`).")
    check_finite(fx, "f must return", validate)
    return fx


def check_finite(values: Tensor, claim: str, validate: bool) -> None:
    """Raise where a value is NaN or infinite, where Python may look (see :func:`catlog.checks.may_look`)."""
    if may_look(validate, values) and not bool(values.isfinite().all()):
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
    return f"{message} Reduce the event dimensions {tuple(law.event_shape)} and keep the leading ones."
