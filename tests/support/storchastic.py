"""Gradients of storchastic. Rows of the parameters are separate expectations (its plate)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, OneHotCategorical

from catlog.testing import CASES
from catlog.testing.cases import normals

KINDS: dict[str, Callable[[Tensor], Distribution]] = {
    "bits": lambda logits: Bernoulli(logits=logits),
    "integers": lambda logits: Categorical(logits=logits),
    "one-hot": lambda logits: OneHotCategorical(logits=logits),
}


def own_parameters(kind: str, rows: int = 4) -> Tensor:
    """Return parameters that differ between rows."""
    theta = CASES[kind].theta
    return theta + 0.5 * normals(rows, *theta.shape, seed=9)


def ones() -> Tensor:
    """Return a parameter of f."""
    return torch.ones(6, dtype=torch.float64, requires_grad=True)


def storch_gradient(
    method: Any, kind: str, theta: Tensor, f: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the points, the sum of the values over rows, and its gradient."""
    import storch

    storch.reset()
    theta = theta.clone().requires_grad_()
    x = method(KINDS[kind](storch.denote_independent(theta, 0, "rows")))
    storch.add_cost(storch.deterministic(f)(x), "f")
    mean = storch.backward(update_estimator_params=False)
    return x._tensor.detach(), mean.detach() * len(theta), theta.grad.detach() * len(theta)
