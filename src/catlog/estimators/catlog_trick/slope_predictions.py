"""What a variable is worth, predicted by slopes of f and summed out exactly; and whose turn it is to be summed out."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ...distributions.factors import Factors
from ...estimator import Kind

Pair = tuple[Tensor, Tensor]
Three = tuple[Tensor, Tensor, Tensor]
UNIFORM_SHARE = 0.1  # of the corrections are dealt to all variables alike


def gradient_scale(probs: Float[Tensor, "*batch d k"]) -> Float[Tensor, "*batch d"]:
    r"""How undecided a variable is: the size of a gradient in its logits for slopes that are independent with variance 1.

    That is :math:`\sum_k p_k^2 (1 - 2 p_k + \sum_j p_j^2)`, rooted; 2 p (1 - p) for a bit.
    """
    square = probs.square()
    return (square * (1 - 2 * probs + square.sum(-1, keepdim=True))).sum(-1).clamp(min=0).sqrt()


def selection_probabilities(size: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
    """pi_i: in proportion to the sizes, but for a tenth."""
    total = size.sum(-1, keepdim=True)
    share = torch.where(total > 0, size / total, 1 / size.shape[-1])
    return torch.lerp(share, torch.full_like(share, 1 / size.shape[-1]), UNIFORM_SHARE)


def systematic_sample(
    often: Float[Tensor, "*batch d"], m: int, start: Float[Tensor, "1 *batch"]
) -> Int64[Tensor, "m *batch"]:
    """m variables, each as often as given in expectation over the uniform ``start``, and never off by one or more.

    >>> systematic(torch.tensor([0.5, 1.0, 0.5]), 2, torch.tensor([0.75]))
    tensor([1, 2])
    """
    at, upto = (
        start.movedim(0, -1) + torch.arange(m, dtype=often.dtype, device=often.device),
        often.cumsum(-1),
    )
    if (
        torch.compiler.is_compiling()
    ):  # a search would be fused into, and repeated by, all that reads the variables; a sum is not
        found = (upto.unsqueeze(-2) <= at.unsqueeze(-1)).sum(-1)
    else:
        found = torch.searchsorted(upto, at, right=True)
    return found.clamp(max=often.shape[-1] - 1).movedim(-1, 0)


@dataclass(frozen=True)
class Bits:
    """Draws of a Bernoulli law, x in {0, 1}: gradients are those in the one logit, [..., 1]."""

    x: Float[Tensor, "n *batch d"]
    p: Float[Tensor, "*batch d"]
    variable: Int64[Tensor, "m *batch"]
    row: Int64[Tensor, " m"]

    def first_and_second_order(self, slope: Float[Tensor, "n *batch d"]) -> Pair:
        """What alpha and what beta multiply, averaged over the draws, [*batch, d, 1]."""
        straight = self.p * (1 - self.p) * slope.mean(0)
        curved = (0.5 - self.p) * (slope * (self.x - self.p)).mean(0)
        return straight.unsqueeze(-1), curved.unsqueeze(-1)

    def size2(self, slope: Float[Tensor, "n *batch d"]) -> Float[Tensor, "*batch d"]:
        """The squared norm of the straight prediction over both categories, averaged over the draws."""
        return 2 * (self.p * (1 - self.p)).square() * slope.square().mean(0)

    def corrected_points(self) -> Float[Tensor, "m *batch d"]:
        """The draws in their order, with the bit whose turn it is flipped, unless that is impossible."""
        x, here = (
            self.x[self.row],
            self.variable.unsqueeze(-1) == torch.arange(self.p.shape[-1], device=self.x.device),
        )
        return torch.where(here & (torch.where(x > 0, 1 - self.p, self.p) > 0), 1 - x, x)

    def exact_and_predicted(self, values: Tensor, slopes: Tensor) -> tuple[Three, Three]:
        """From values and slopes at the draws and, after them, at :meth:`turned`, for the bit whose turn it is.

        First, gradients in its logit, [m, *batch, 1]: of f, and the means of the two predictions over the bit. Second, the
        variances of the predictions over the bit, [m, *batch], which are noise, and in the middle their covariance.
        """
        n, row, at = self.x.shape[0], self.row, self.variable.unsqueeze(-1)
        one = self.x[row].gather(-1, at).squeeze(-1) > 0
        p = self.p.expand(len(row), *self.p.shape).gather(-1, at).squeeze(-1)
        here, there = (each.gather(-1, at).squeeze(-1) for each in (slopes[:n][row], slopes[n:]))
        at_0, at_1 = torch.where(one, there, here), torch.where(one, here, there)
        change = (values[n:] - values[:n][row]).to(p.dtype)
        undecided, curve = p * (1 - p), at_1 - at_0
        exact = undecided * torch.where(one, -change, change)
        straight, curved = undecided * ((1 - p) * at_0 + p * at_1), undecided * (0.5 - p) * curve
        s, c = undecided * curve, (0.5 - p) * ((1 - p) * at_1 + p * at_0)  # at one less at zero
        noise = undecided * s * s, undecided * s * c, undecided * c * c
        return (exact[..., None], straight[..., None], curved[..., None]), noise


@dataclass(frozen=True)
class OneHots:
    """Draws of a one-hot law: gradients are those in the logits of the k categories. The methods are those of :class:`Bits`.

    category, own: of the variable whose turn it is, the categories, that of the draw first, and their probabilities.
    """

    x: Float[Tensor, "n *batch d k"]
    p: Float[Tensor, "*batch d k"]
    variable: Int64[Tensor, "m *batch"]
    row: Int64[Tensor, " m"]
    category: Int64[Tensor, "k m *batch"]
    own: Float[Tensor, "m *batch k"]

    def first_and_second_order(self, slope: Float[Tensor, "n *batch d k"]) -> Pair:
        above, mean = ((self.x - self.p) * slope).sum(-1, keepdim=True), slope.mean(0)
        straight = self.p * (mean - (self.p * mean).sum(-1, keepdim=True))
        return straight, (((self.x - self.p) * above).mean(0) - straight) / 2

    def size2(self, slope: Float[Tensor, "n *batch d k"]) -> Float[Tensor, "*batch d"]:
        return (self.p * (slope - (self.p * slope).sum(-1, keepdim=True))).square().sum(-1).mean(0)

    def corrected_points(self) -> Float[Tensor, "km *batch d k"]:
        """Every other category in turn; in place of an impossible one, its own."""
        (d, k), device = self.p.shape[-2:], self.x.device
        other = torch.where(
            self.own.movedim(-1, 0).gather(0, self.category) > 0, self.category, self.category[:1]
        )[1:]
        here = self.variable.unsqueeze(-1) == torch.arange(d, device=device)
        value = other[..., None, None] == torch.arange(k, device=device)
        return torch.where(here.unsqueeze(-1), value.to(self.x.dtype), self.x[self.row]).flatten(
            0, 1
        )

    def exact_and_predicted(self, values: Tensor, slopes: Tensor) -> tuple[Three, Three]:
        variable, row, category, p = self.variable, self.row, self.category, self.own
        n, m, k = self.x.shape[0], len(row), self.p.shape[-1]
        number = torch.arange(k, device=p.device)
        # By category, the own one first.
        change = (values[n:].unflatten(0, (k - 1, m)) - values[:n][row]).to(p.dtype)
        change = torch.cat([change.new_zeros(1, *variable.shape), change])
        at = variable[..., None, None].expand(*variable.shape, 1, k)
        here, there = (
            slopes[:n][row].gather(-2, at),
            slopes[n:].unflatten(0, (k - 1, m)).gather(-2, at.expand(k - 1, *at.shape)),
        )
        slope = torch.cat([here.unsqueeze(0), there]).squeeze(-2)
        chance = p.movedim(-1, 0).gather(0, category).unsqueeze(-1)
        # By category as it is numbered.
        worth = change.movedim(0, -1).gather(-1, (number - category[0].unsqueeze(-1)) % k)
        exact = p * (worth - (p * worth).sum(-1, keepdim=True))
        drawn, above = (
            (category.unsqueeze(-1) == number).to(p.dtype),
            slope - (p * slope).sum(-1, keepdim=True),
        )
        straight = p * above
        curved = ((drawn - p) * (drawn * above).sum(-1, keepdim=True) - straight) / 2
        means = (chance * straight).sum(0), (chance * curved).sum(0)
        s, c = straight - means[0], curved - means[1]
        ss, sc, cc = ((chance * pair).sum((0, -1)) for pair in (s * s, s * c, c * c))
        return (exact, *means), (ss, sc, cc)


def make_predictions(
    law: Factors, x: Tensor, variable: Int64[Tensor, "m *batch"]
) -> Bits | OneHots:
    """The draws ``[n, *batch, *event]`` of a law, and the variables whose turn it is, which go round the draws."""
    probs, flat = law.probs.detach(), law.flat(x.detach()).to(law.real)
    m, k = variable.shape[0], law.k
    row = torch.arange(m, device=variable.device) % x.shape[0]
    if law.kind == Kind.BITS:
        return Bits(flat, probs[..., 1], variable, row)
    drawn = flat.argmax(-1)[row].gather(-1, variable.unsqueeze(-1)).squeeze(-1)
    category = (drawn + torch.arange(k, device=variable.device).view(-1, *[1] * drawn.dim())) % k
    own = (
        probs.expand(m, *probs.shape)
        .gather(-2, variable[..., None, None].expand(*variable.shape, 1, k))
        .squeeze(-2)
    )
    return OneHots(flat, probs, variable, row, category, own)
