"""The gradient that a bias is measured against: exact, given, or pooled from other estimators."""

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from .gradient_samples import GradientSampler
from .moments import Moments

KnownGradient = tuple[Tensor, Tensor]  # a gradient, and the variance of each of its entries


@runtime_checkable
class MeasuredGradient(Protocol):
    """A gradient with standard errors, one tensor per parameter."""

    @property
    def gradient(self) -> Sequence[Tensor]: ...

    @property
    def error(self) -> Sequence[Tensor]: ...


GivenReference = Tensor | Sequence[Tensor] | MeasuredGradient


def given_gradient(task: GradientSampler, reference: GivenReference) -> KnownGradient:
    """Return the user's reference as one vector. Raise ValueError if the shapes do not fit."""
    error: Sequence[Tensor] | None = None
    gradient: Any = [reference] if isinstance(reference, Tensor) else reference
    if isinstance(reference, MeasuredGradient):
        gradient, error = reference.gradient, reference.error
    shapes = [tuple(parameter.shape) for parameter in task.parameters]
    is_list = isinstance(gradient, Sequence) and all(isinstance(part, Tensor) for part in gradient)
    received = [tuple(part.shape) for part in gradient] if is_list else repr(gradient)
    if received != shapes:
        raise ValueError(
            f"reference: one tensor per parameter is needed, of shapes {shapes}, but {received} "
            "was given."
        )
    vector = torch.cat([part.detach().flatten() for part in gradient]).double()
    if error is None:
        return vector, torch.zeros_like(vector)
    return vector, torch.cat([part.flatten() for part in error]).double().square()


def exact_gradient(task: GradientSampler) -> KnownGradient:
    """Return the exact gradient."""
    gradient = task.exact().double()
    return gradient, torch.zeros_like(gradient)


def pooled_gradient(unbiased: Mapping[str, Moments], without: str = "") -> KnownGradient | None:
    """Return the mean of unbiased estimators, weighted by their precision; None if there are none.

    `without` names the estimator that is judged, which is left out.
    """
    moments = [entry for name, entry in unbiased.items() if name != without]
    for entry in moments:
        if entry.variance == 0:
            return entry.mean, torch.zeros_like(entry.mean)
    if not moments:
        return None
    precisions = [1 / entry.mean_variance for entry in moments]
    weights = [precision / sum(precisions) for precision in precisions]
    pairs = list(zip(moments, weights, strict=True))
    mean = torch.stack([entry.mean * weight for entry, weight in pairs]).sum(0)
    parts = [entry.mean_variances * weight**2 for entry, weight in pairs]
    return mean, torch.stack(parts).sum(0)


def norm_of(gradient: KnownGradient) -> float:
    """Return the norm of the gradient, minus the noise in it."""
    mean, variances = gradient
    return sqrt(max(0.0, float(mean.square().sum() - variances.sum())))
