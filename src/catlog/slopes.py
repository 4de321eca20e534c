"""What a variable is worth, predicted by slopes of f and summed out exactly; and whose turn it is to be summed out."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from .evaluate import value_and_slope
from .factors import Factors
from .logits import by_category
from .surrogate import Function

LEAST = 0.1  # of the corrections are dealt to all variables alike


def predictions(
    probs: Float[Tensor, "*#lead k"], drawn: Float[Tensor, "*#lead k"], slope: Float[Tensor, "*lead k"]
) -> tuple[Float[Tensor, "*lead k"], Float[Tensor, "*lead k"]]:
    """What alpha and what beta multiply, as gradients in the logits, for the drawn (one-hot) value of every variable."""
    above = slope - (probs * slope).sum(-1, keepdim=True)
    straight = probs * above
    return straight, ((drawn - probs) * (drawn * above).sum(-1, keepdim=True) - straight) / 2


def chances(straight: Float[Tensor, "n *batch d k"]) -> Float[Tensor, "*batch d"]:
    """pi_i: in proportion to the size of the predictions over the draws, but for a tenth."""
    size = straight.square().sum(-1).mean(0).sqrt()
    total = size.sum(-1, keepdim=True)
    share = torch.where(total > 0, size / total, 1 / size.shape[-1])
    return torch.lerp(share, torch.full_like(share, 1 / size.shape[-1]), LEAST)


def systematic(often: Float[Tensor, "*batch d"], m: int, start: Float[Tensor, "1 *batch"]) -> Int64[Tensor, "m *batch"]:
    """m variables, each as often as given in expectation over the uniform ``start``, and never off by one or more.

    >>> systematic(torch.tensor([0.5, 1.0, 0.5]), 2, torch.tensor([0.75]))
    tensor([1, 2])
    """
    at = start.movedim(0, -1) + torch.arange(m, dtype=often.dtype, device=often.device)
    return torch.searchsorted(often.cumsum(-1), at, right=True).clamp(max=often.shape[-1] - 1).movedim(-1, 0)


def summed_out(
    f: Function, law: Factors, x: Tensor, fx: Tensor, slope: Tensor, variable: Int64[Tensor, "m *batch"], validate: bool
) -> tuple[Float[Tensor, "m *batch 3 k"], Float[Tensor, "m *batch 2 2"]]:
    """One variable of every turn summed out; turns go round the draws.

    First, gradients in its logits: of f, and the means of the two predictions over the variable. Second, the covariance of the
    predictions over the variable, which is noise.
    """
    m, k = variable.shape[0], law.k
    row = torch.arange(m, device=x.device) % x.shape[0]
    own = law.index(x)[row].gather(-1, variable.unsqueeze(-1)).squeeze(-1)
    at = variable[..., None, None].expand(*variable.shape, 1, k)
    probs = law.probs.detach().expand(m, *law.probs.shape).gather(-2, at).squeeze(-2)
    # The other categories, [k - 1, m, *batch]; in place of an impossible one the own.
    other = (own + torch.arange(1, k, device=x.device).view(-1, *[1] * own.dim())) % k
    other = torch.where(probs.movedim(-1, 0).gather(0, other) > 0, other, own)
    flat = law.flat(x.detach())[row].repeat(k - 1, *[1] * (law.flat(x).dim() - 1))
    points = law.assign(flat, variable.repeat(k - 1, *[1] * len(law.batch_shape)), other.flatten(0, 1))
    value, slopes = value_and_slope(f, law.shaped(points), law, validate=validate)
    # By the variable's category, in the first dimension: the change of f, and the slopes.
    change = (value.detach().unflatten(0, (k - 1, m)) - fx[row]).to(law.real)
    change = change.new_zeros((k, *variable.shape)).scatter(0, other, change)
    there = by_category(law, slopes).unflatten(0, (k - 1, m)).gather(-2, at.expand(k - 1, *at.shape)).squeeze(-2)
    here = slope[row].gather(-2, at).squeeze(-2).unsqueeze(0)
    slopes = there.new_zeros((k, *probs.shape)).scatter(0, own[None, ..., None].expand(here.shape), here)
    slopes = slopes.scatter(0, other.unsqueeze(-1).expand(there.shape), there)
    drawn = torch.eye(k, dtype=probs.dtype, device=x.device).view(k, *[1] * own.dim(), k)
    each = torch.stack(predictions(probs, drawn, slopes), -2)  # [k, m, *batch, 2, k]
    chance = probs.movedim(-1, 0)[..., None, None]
    mean = (chance * each).sum(0)
    noise = each - mean
    worth = change.movedim(0, -1)
    exact = probs * (worth - (probs * worth).sum(-1, keepdim=True))
    return torch.cat([exact.unsqueeze(-2), mean], -2), (chance * (noise @ noise.mT)).sum(0)
