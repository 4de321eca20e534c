"""A critic of f: kernel ridge regression on remembered evaluations, whose mean under independent
variables is known.

The kernel of two points that differ in H variables is rho^H. It is a product over variables, so its
mean over x, and the gradient of that mean, are products too. Every function of x is a sum of such
kernels; a rho near 1 prefers main effects and pairs. A second, narrow kernel fits the residual of
the first at the remembered points.

Points are one-hot, ``[critics, points, d k]``. The two parts of a critic, smooth and narrow, are
kept apart.
"""

from itertools import product
from math import exp

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.functional import pad

from ..logit_gradients import leave_one_out

WIDTHS = (0.5, 2.0, 8.0)  # rho = exp(-width / d): interactions of about width / 2 variables
SHARES = (1e-6, 1e-3, 1e-1)  # of the narrow kernel, relative to the smooth one
NARROW = 1e-4  # rho of the narrow kernel
RIDGE = 1e-7  # on a kernel diagonal of about 1, for the Cholesky factorisation


def encoded(index: Int64[Tensor, "*lead d"], k: int) -> Float[Tensor, "*lead dk"]:
    """Return one-hot points in float64; a category that is not among the k has zeros only."""
    return (index.unsqueeze(-1) == torch.arange(k, device=index.device)).flatten(-2).double()


def critic_values(
    x: Float[Tensor, "c n dk"],
    points: Float[Tensor, "c m dk"],
    weight: Float[Tensor, "c 2 m"],
    rho: Float[Tensor, "c 2"],
    d: int,
) -> Float[Tensor, "c 2 n"]:
    """Return both parts of the critic at x."""
    differ = d - x @ points.mT
    return (rho[..., None, None] ** differ.unsqueeze(1) @ weight.unsqueeze(-1)).squeeze(-1)


def critic_means(
    probs: Float[Tensor, "c n dk"],
    points: Float[Tensor, "c m dk"],
    weight: Float[Tensor, "c 2 m"],
    rho: Float[Tensor, "c 2"],
    d: int,
) -> Float[Tensor, "c 2 n"]:
    """Return the means of both parts under independent variables, differentiable in ``probs``."""
    rho = rho[..., None, None]
    gain = (1 + (1 / rho - 1) * probs.unsqueeze(1)).log()
    kernel_mean = (gain @ points.mT.unsqueeze(1) + d * rho.log()).exp()
    return (kernel_mean @ weight.unsqueeze(-1)).squeeze(-1)


def fit_critic(
    points: Float[Tensor, "c m dk"], value: Float[Tensor, "c m"], used: Bool[Tensor, "c m"], d: int
) -> tuple[Float[Tensor, "c 2 m"], Float[Tensor, "c 2"]]:
    """Return weights and rho of both kernels: of nine settings, those with the most evidence."""
    count = used.sum(-1).clamp(min=1)
    mean = (value * used).sum(-1) / count
    target = (value - mean.unsqueeze(-1)) * used
    # Kernels are looked up by H. Empty slots have H = d + 1, where the kernel is 0, and a diagonal
    # of 1.
    outside = ~(used.unsqueeze(-1) & used.unsqueeze(-2))
    differ = (d - points @ points.mT).masked_fill(outside, d + 1).int()
    h = torch.arange(d + 1, dtype=points.dtype, device=points.device)
    diagonal = torch.diag_embed(RIDGE + (~used).to(points.dtype))
    best = torch.full_like(mean, -torch.inf)
    weight = torch.zeros(
        (*mean.shape, 2, points.shape[-2]), dtype=points.dtype, device=points.device
    )
    rho = torch.ones_like(weight[..., 0])
    for width, share in product(WIDTHS, SHARES):
        smooth = exp(-width / d)
        kernel = pad(smooth**h + share * NARROW**h, (0, 1))
        root = torch.linalg.cholesky_ex(kernel[differ] + diagonal).L
        solved = torch.cholesky_solve(target.unsqueeze(-1), root).squeeze(-1)
        size = (target * solved).sum(-1).clamp(min=torch.finfo(mean.dtype).tiny)
        evidence = -count / 2 * (size / count).log() - root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        better = (evidence > best) & solved.isfinite().all(-1)
        best = torch.where(better, evidence, best)
        weight = torch.where(
            better[:, None, None], torch.stack([solved, share * solved], -2), weight
        )
        both = torch.stack([torch.full_like(best, smooth), torch.full_like(best, NARROW)], -1)
        rho = torch.where(better.unsqueeze(-1), both, rho)
    return weight, rho


def calibration_equations(
    value: Float[Tensor, "c r"],
    at_draws: Float[Tensor, "c 2 r"],
    on_average: Float[Tensor, "c 2 b"],
) -> tuple[Float[Tensor, "2 2"], Float[Tensor, "2"]]:
    """Return the normal equations of f on both parts of the critic, at r = n b draws of b batch
    elements.

    They are the matrix, and the right-hand side minus the matrix times (1, 1).
    """
    b = on_average.shape[-1]
    n = value.shape[-1] // b
    feature = at_draws - on_average.repeat(1, 1, n)
    residual = (value - at_draws.sum(1)).unflatten(-1, (n, b)).movedim(1, 0)
    residual = (residual - leave_one_out(residual)).movedim(0, 1).flatten(1)
    gram = torch.einsum("cir,cjr->ij", feature, feature) / residual.numel()
    return gram, torch.einsum("cir,cr->i", feature, residual) / residual.numel()


def slots_for(
    new: Int64[Tensor, "c r l"], points: Int64[Tensor, "c m l"], age: Int64[Tensor, "c m"]
) -> Int64[Tensor, "c r"]:
    """Return the slots for r <= m new points: that of the same point, else the least recently seen
    one.

    Of equal new points, all but the first get slot m, which is not stored.
    """
    same = (new.unsqueeze(-2) == points.unsqueeze(-3)).all(-1)
    is_known = same.any(-1)
    is_repeated = (new.unsqueeze(-2) == new.unsqueeze(-3)).all(-1).tril(-1).any(-1)
    needs_slot = ~is_known & ~is_repeated
    oldest = age.masked_fill(same.any(-2), torch.iinfo(age.dtype).max).argsort(dim=-1, stable=True)
    free = oldest.gather(-1, (needs_slot.cumsum(-1) - 1).clamp(min=0))
    slots = torch.where(is_known, same.int().argmax(-1), free)
    return torch.where(is_repeated, points.shape[-2], slots)


def write_slots(kept: Tensor, slots: Int64[Tensor, "c r"], new: Tensor) -> Tensor:
    """Return ``kept`` ``[c, m, ...]`` with ``new`` in these slots; slot m is not stored."""
    tail = new.dim() - 2
    index = slots.view(*slots.shape, *[1] * tail).expand(new.shape)
    return pad(kept, (0, 0) * tail + (0, 1)).scatter(1, index, new.to(kept.dtype))[:, :-1]
