"""What a variable is worth, predicted by slopes of f and summed out exactly; and whose turn it is to be summed out."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from .factors import Factors

LEAST = 0.1  # of the corrections are dealt to all variables alike


def chances(probs: Float[Tensor, "*batch d k"]) -> Float[Tensor, "*batch d"]:
    r"""pi_i: in proportion to the size of the gradient in the logits where all slopes are alike, but for a tenth.

    For slopes that are independent with variance 1 its mean square is :math:`\sum_k p_k^2 (1 - 2 p_k + \sum_j p_j^2)`; a bit
    has the size 2 p (1 - p).
    """
    square = probs.square()
    size = (square * (1 - 2 * probs + square.sum(-1, keepdim=True))).sum(-1).clamp(min=0).sqrt()
    total = size.sum(-1, keepdim=True)
    share = torch.where(total > 0, size / total, 1 / size.shape[-1])
    return torch.lerp(share, torch.full_like(share, 1 / size.shape[-1]), LEAST)


def systematic(often: Float[Tensor, "*batch d"], m: int, start: Float[Tensor, "1 *batch"]) -> Int64[Tensor, "m *batch"]:
    """m variables, each as often as given in expectation over the uniform ``start``, and never off by one or more.

    >>> systematic(torch.tensor([0.5, 1.0, 0.5]), 2, torch.tensor([0.75]))
    tensor([1, 2])
    """
    at, upto = start.movedim(0, -1) + torch.arange(m, dtype=often.dtype, device=often.device), often.cumsum(-1)
    if torch.compiler.is_compiling():  # a search would be fused into, and repeated by, all that reads the variables; a sum is not
        found = (upto.unsqueeze(-2) <= at.unsqueeze(-1)).sum(-1)
    else:
        found = torch.searchsorted(upto, at, right=True)
    return found.clamp(max=often.shape[-1] - 1).movedim(-1, 0)


def of_draws(law: Factors, x: Float[Tensor, "n *rest"], slope: Float[Tensor, "n *rest"]) -> Float[Tensor, "2 *batch d k"]:
    """What alpha and what beta multiply, as gradients in the logits, averaged over the draws; x and slope flat."""
    probs, x = law.probs.detach(), x.to(law.real)
    if law.kind == "bits":
        above = slope * (x - probs[..., 1])
        mean, ones = slope.mean(0), (x * above).mean(0)
        mean, total = torch.stack([torch.zeros_like(mean), mean], -1), above.mean(0).unsqueeze(-1)
        drawn = torch.cat([total - ones.unsqueeze(-1), ones.unsqueeze(-1)], -1)
    else:
        above = ((x - probs) * slope).sum(-1, keepdim=True)
        mean, total, drawn = slope.mean(0), above.mean(0), (x * above).mean(0)
    straight = probs * (mean - (probs * mean).sum(-1, keepdim=True))
    return torch.stack([straight, (drawn - probs * total - straight) / 2])


@dataclass(frozen=True)
class Turns:
    """Variables whose turn it is to be summed out, one at a time, at the draws in their order.

    variable: which. row: of the draws. probs: of its categories. category: its own one first, then the others in turn.
    """

    variable: Int64[Tensor, "m *batch"]
    row: Int64[Tensor, " m"]
    probs: Float[Tensor, "m *batch k"]
    category: Int64[Tensor, "k m *batch"]

    @classmethod
    def at(cls, law: Factors, x: Float[Tensor, "n *rest"], variable: Int64[Tensor, "m *batch"]) -> "Turns":
        m = variable.shape[0]
        row = torch.arange(m, device=x.device) % x.shape[0]
        own = law.index(x)[row].gather(-1, variable.unsqueeze(-1)).squeeze(-1)
        probs = law.probs.detach().expand(m, *law.probs.shape)
        probs = probs.gather(-2, variable[..., None, None].expand(*variable.shape, 1, law.k)).squeeze(-2)
        return cls(variable, row, probs, (own + torch.arange(law.k, device=x.device).view(-1, *[1] * own.dim())) % law.k)

    def points(self, law: Factors, x: Float[Tensor, "n *rest"]) -> Float[Tensor, "km *rest"]:
        """x (flat) at the draws, with the variable in each other category; in place of an impossible one, its own."""
        known = self.probs.movedim(-1, 0).gather(0, self.category) > 0
        other = torch.where(known, self.category, self.category[:1])[1:].unsqueeze(-1)
        here = self.variable.unsqueeze(-1) == torch.arange(law.d, device=x.device)
        if law.kind == "one-hot":
            other, here = other.unsqueeze(-1) == torch.arange(law.k, device=x.device), here.unsqueeze(-1)
        return torch.where(here, other.to(x.dtype), x[self.row]).flatten(0, 1)

    def summed_out(
        self, law: Factors, fx: Tensor, slope: Tensor, values: Tensor, slopes: Tensor
    ) -> tuple[Float[Tensor, "3 m *batch k"], Float[Tensor, "3 m *batch"]]:
        """From values and slopes at the draws and at :meth:`points`, by variable.

        First, gradients in its logits: of f, and the means of the two predictions over the variable. Second, the variances of
        the predictions over the variable, which are noise, and in the middle their covariance.
        """
        k, m = law.k, self.variable.shape[0]
        number = torch.arange(k, device=fx.device)
        change = values.unflatten(0, (k - 1, m)) - fx[self.row]
        change = torch.cat([torch.zeros_like(change[:1]), change]) if k > 1 else fx.new_zeros(self.category.shape)
        worth = change.to(law.real).movedim(0, -1).gather(-1, (number - self.category[0].unsqueeze(-1)) % k)
        exact = self.probs * (worth - (self.probs * worth).sum(-1, keepdim=True))
        here = self._own_slope(law, slope[self.row], self.variable).unsqueeze(0)
        there = self._own_slope(law, slopes.unflatten(0, (k - 1, m)), self.variable.expand(k - 1, *self.variable.shape))
        slopes = torch.cat([here, there])
        drawn = (self.category.unsqueeze(-1) == number).to(law.real)
        above = slopes - (self.probs * slopes).sum(-1, keepdim=True)
        straight = self.probs * above
        curved = ((drawn - self.probs) * (drawn * above).sum(-1, keepdim=True) - straight) / 2
        chance = self.probs.movedim(-1, 0).gather(0, self.category).unsqueeze(-1)
        means = (chance * straight).sum(0), (chance * curved).sum(0)
        s, c = straight - means[0], curved - means[1]
        noise = [(chance * pair).sum((0, -1)) for pair in (s * s, s * c, c * c)]
        return torch.stack([exact, *means]), torch.stack(noise)

    def _own_slope(self, law: Factors, slope: Float[Tensor, "*rest"], variable: Int64[Tensor, "*lead"]) -> Tensor:
        """The slope in the variable whose turn it is, per category."""
        if law.kind == "bits":
            own = slope.gather(-1, variable.unsqueeze(-1))
            return torch.cat([torch.zeros_like(own), own], -1)
        return slope.gather(-2, variable[..., None, None].expand(*variable.shape, 1, law.k)).squeeze(-2)
