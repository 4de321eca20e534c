"""Estimators that learn between calls, and a problem on which they do."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributions import Independent

import catlog
from catlog.estimators import MAPO, MemoryCateR, MovingAverageBaseline
from support.laws import bits

LEARNERS: dict[str, Callable[[], catlog.Estimator]] = {
    "MemoryCateR": lambda: MemoryCateR(samples=3, size=16),
    "MovingAverageBaseline": lambda: catlog.Reinforce(2, baseline=MovingAverageBaseline(decay=0.7)),
    "MovingAverageBaseline in float64": lambda: catlog.Reinforce(
        2, baseline=MovingAverageBaseline(decay=0.7).double()
    ),
    "SlopeCateR": lambda: catlog.SlopeCateR(samples=2, decay=0.7),
    "MAPO": lambda: MAPO(size=2, samples=2),
}
LOGITS = torch.tensor([0.3, -0.5, 0.8, -0.2], dtype=torch.float64)


def f(x: Tensor) -> Tensor:
    """Smooth, with interactions of all orders, and far from zero."""
    return 3 + (x @ x.new_tensor([1.0, 2.0, -1.0, 0.5])).exp()


def law(logits: Tensor) -> Independent:
    return bits(logits, validate_args=False)


def learner(E: catlog.Estimator) -> nn.Module:
    """Return the module whose buffers E writes: itself, or its baseline."""
    return E if isinstance(E, nn.Module) else E.baseline


def gradients(call: Callable[[Tensor], Tensor], calls: int, batch: int) -> Tensor:
    """Return the gradients of successive calls, [calls, batch, d]."""
    slopes = []
    for _ in range(calls):
        logits = LOGITS.expand(batch, -1).clone().requires_grad_()
        slopes.append(torch.autograd.grad(call(logits).sum(), logits)[0])
    return torch.stack(slopes)


def bias(estimates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the error of the mean of :func:`gradients`, its standard error and the exact gradient.

    Batch elements are independent given what was learned before.
    """
    logits = LOGITS.clone().requires_grad_()
    (exact,) = torch.autograd.grad(catlog.Exact()(f, law(logits)), logits)
    deviation = (estimates.var(1).sum(0) / estimates.shape[1]).sqrt() / len(estimates)
    return estimates.mean((0, 1)) - exact, deviation, exact
