"""Moments of gradient estimates, by `catlog.diagnostics`, and ratios of their variances."""

from collections.abc import Callable
from math import exp, hypot

import torch
from torch import Tensor
from torch.distributions import Distribution

import catlog
from catlog.core.evaluator import Function
from catlog.diagnostics.arms import Arm, learning_parts
from catlog.diagnostics.comparing import NORMAL as NORMAL
from catlog.diagnostics.moments import Moments
from catlog.diagnostics.task import Task
from catlog.functions import Known


def observe(task: Task, E: catlog.Estimator, repeats: int, generator: torch.Generator) -> Moments:
    """Return the moments of independent estimates."""
    arm = Arm(E, 0, generator)
    while arm.in_parameters.count < repeats:
        arm.observe(task)
    return arm.in_parameters


def observe_batched(
    E: catlog.Estimator,
    f: Function,
    make_q: Callable[[Tensor], Distribution],
    parameter: Tensor,
    repeats: int,
    generator: torch.Generator,
    together: int = 100,
) -> Moments:
    """Return the moments of gradients in a parameter of q, each repeat a batch element of q.

    It takes any distribution; `observe` needs one that `catlog.compare` takes.
    """
    moments = Moments()
    while moments.count < repeats:
        count = min(together, repeats - moments.count)
        leaf = parameter.expand(count, *parameter.shape).clone().requires_grad_()
        q = make_q(leaf)
        value = E(f.under(q) if isinstance(f, Known) else f, q, generator=generator)
        moments.add(torch.autograd.grad(value.sum(), leaf)[0].flatten(1))
    return moments


def moments_of(vectors: Tensor) -> Moments:
    """Return the moments of vectors, one per row."""
    moments = Moments()
    moments.add(vectors)
    return moments


def train(E: catlog.Estimator, task: Task, steps: int, generator: torch.Generator) -> int:
    """Let an estimator with parameters or a memory learn, freeze it, and return the steps made."""
    arm = Arm(E, 0, generator)
    arm.learn(task, steps)
    for part in learning_parts(E):
        part.eval().requires_grad_(False)
    return arm.trained


def backward_passes(E: catlog.Estimator, q: Distribution) -> int:
    """Return the number of evaluations at which f is differentiated in x."""
    if not E.differentiates_f:
        return 0
    return E.evaluations(q)


def variance_ratio(ours: Moments, theirs: Moments) -> tuple[float, float, float]:
    """Return the ratio of total variances and its 95 % interval (delta method on the logarithm)."""
    if ours is theirs:
        return 1.0, 1.0, 1.0
    ratio = ours.variance / theirs.variance
    factor = exp(NORMAL * hypot(ours.error, theirs.error))
    return ratio, ratio / factor, ratio * factor
