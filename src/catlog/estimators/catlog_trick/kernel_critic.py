"""A critic from remembered evaluations of f: kernel ridge regression whose mean under independent variables is known.

The kernel of two points that differ in H variables is rho^H: a product over variables, so that its mean over x, and that mean's
gradient, are products too. Every function of x is a sum of such kernels; a rho near 1 prefers main effects and pairs. A second,
narrow kernel takes what the first leaves over at the remembered points themselves.

Points are one-hot, ``[critics, points, d k]``. Two parts of a critic, the smooth one and the narrow one, stay apart.
"""

from itertools import product
from math import exp

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.functional import pad

WIDTHS = (0.5, 2.0, 8.0)  # rho = exp(-width / d): about half as many variables act together
SHARES = (1e-6, 1e-3, 1e-1)  # the narrow kernel's share
NARROW = 1e-4  # its rho
RIDGE = 1e-7


def encoded(index: Int64[Tensor, "*lead d"], k: int) -> Float[Tensor, "*lead dk"]:
    """One-hot in float64; a category that is not among the k is nowhere."""
    return (index.unsqueeze(-1) == torch.arange(k, device=index.device)).flatten(-2).double()


def critic_values(
    x: Float[Tensor, "c n dk"],
    points: Float[Tensor, "c m dk"],
    weight: Float[Tensor, "c 2 m"],
    rho: Float[Tensor, "c 2"],
    d: int,
) -> Float[Tensor, "c 2 n"]:
    """Both parts of the critic at x."""
    differ = d - x @ points.mT
    return (rho[..., None, None] ** differ.unsqueeze(1) @ weight.unsqueeze(-1)).squeeze(-1)


def critic_means(
    probs: Float[Tensor, "c n dk"],
    points: Float[Tensor, "c m dk"],
    weight: Float[Tensor, "c 2 m"],
    rho: Float[Tensor, "c 2"],
    d: int,
) -> Float[Tensor, "c 2 n"]:
    """The means of both parts under independent variables, differentiable in ``probs``."""
    rho = rho[..., None, None]
    gain = (1 + (1 / rho - 1) * probs.unsqueeze(1)).log()
    return ((gain @ points.mT.unsqueeze(1) + d * rho.log()).exp() @ weight.unsqueeze(-1)).squeeze(
        -1
    )


def fit_critic(
    points: Float[Tensor, "c m dk"], value: Float[Tensor, "c m"], used: Bool[Tensor, "c m"], d: int
) -> tuple[Float[Tensor, "c 2 m"], Float[Tensor, "c 2"]]:
    """The weights and rho of the two kernels with the most evidence (marginal likelihood) among nine settings."""
    count = used.sum(-1).clamp(min=1)
    mean = (value * used).sum(-1) / count
    target = (value - mean.unsqueeze(-1)) * used
    # The kernels by H, looked up; 0 for places without a point, which have only their diagonal.
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
    """Normal equations of f at r = n b draws on both parts: the matrix, and the right-hand side less the matrix times (1, 1)."""
    b = on_average.shape[-1]
    n = value.shape[-1] // b
    feature = at_draws - on_average.repeat(1, 1, n)
    left = (value - at_draws.sum(1)).unflatten(-1, (n, b))
    left = (left - left.mean(1, keepdim=True)).flatten(1) * (n / (n - 1))
    return torch.einsum("cir,cjr->ij", feature, feature) / left.numel(), torch.einsum(
        "cir,cr->i", feature, left
    ) / left.numel()


def slots_for(
    new: Int64[Tensor, "c r l"], points: Int64[Tensor, "c m l"], age: Int64[Tensor, "c m"]
) -> Int64[Tensor, "c r"]:
    """Where to keep new points, r <= m of them: in the place of the same point, else in that of the least recently seen.

    Of equal new points, all but the first go to place m, which is nowhere.
    """
    same = (new.unsqueeze(-2) == points.unsqueeze(-3)).all(-1)
    known, where = same.any(-1), same.int().argmax(-1)
    again = (new.unsqueeze(-2) == new.unsqueeze(-3)).all(-1).tril(-1).any(-1)
    fresh = ~known & ~again
    oldest = age.masked_fill(same.any(-2), torch.iinfo(age.dtype).max).argsort(dim=-1, stable=True)
    free = oldest.gather(-1, (fresh.cumsum(-1) - 1).clamp(min=0))
    return torch.where(again, points.shape[-2], torch.where(known, where, free))


def write_slots(kept: Tensor, where: Int64[Tensor, "c r"], new: Tensor) -> Tensor:
    """``kept`` ``[c, m, ...]`` with ``new`` at these places, m being nowhere."""
    tail = new.dim() - 2
    at = where.view(*where.shape, *[1] * tail).expand(new.shape)
    return pad(kept, (0, 0) * tail + (0, 1)).scatter(1, at, new.to(kept.dtype))[:, :-1]
