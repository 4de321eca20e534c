"""Gradients predicted from slopes of f, beside exact sums over the corrected variables."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from .corrections import corrected_variables, rows_in_turn, shares_of_points
from .slope_pairs import OneHotDraws, OneHotPairs, Pair, Three, make_pairs


@dataclass(frozen=True)
class Bits:
    """Draws of bits, x in {0, 1}. Gradients are those in the one logit, ``[..., 1]``.

    Attributes:
        x: the draws.
        p: the probabilities of 1.
        variable: the variables that are corrected.
        row: the draws in which they are corrected.
        is_one: whether the corrected bits were drawn as 1.
        corrected_p: their probabilities of 1.
    """

    x: Float[Tensor, "n *batch d"]
    p: Float[Tensor, "*batch d"]
    variable: Int64[Tensor, "m *batch"]
    row: Int64[Tensor, " m"]
    is_one: Bool[Tensor, "m *batch"]
    corrected_p: Float[Tensor, "m *batch"]

    def first_and_second_order(self, slope: Float[Tensor, "n *batch d"]) -> Pair:
        """Return what alpha and beta multiply, averaged over the draws, ``[*batch, d, 1]``."""
        straight = self.p * (1 - self.p) * slope.mean(0)
        curved = (0.5 - self.p) * (slope * (self.x - self.p)).mean(0)
        return straight.unsqueeze(-1), curved.unsqueeze(-1)

    def size2(self, slope: Float[Tensor, "n *batch d"]) -> Float[Tensor, "*batch d"]:
        """Return the mean squared norm of the straight prediction over both categories."""
        return 2 * (self.p * (1 - self.p)).square() * slope.square().mean(0)

    def corrected_points(self) -> Float[Tensor, "m *batch d"]:
        """Return the draws with the corrected bit flipped, unless that is impossible."""
        x = self.x[self.row]
        is_corrected = self.variable.unsqueeze(-1) == torch.arange(x.shape[-1], device=x.device)
        is_possible = torch.where(x > 0, 1 - self.p, self.p) > 0
        return torch.where(is_corrected & is_possible, 1 - x, x)

    def shares(self) -> Float[Tensor, "rows *batch"]:
        """Return the weights of all points in the value, in which corrected bits are summed out."""
        one, zero = self.corrected_p, 1 - self.corrected_p
        drawn = torch.where(self.is_one, one, zero)
        flipped = torch.where(self.is_one, zero, one)
        return shares_of_points(drawn, flipped[None], len(self.x))

    def exact(self, values: Float[Tensor, "rows *batch"]) -> Float[Tensor, "m *batch 1"]:
        """Return the gradient of f in the logit of the corrected bit.

        ``values`` are those at the draws and, after them, at :meth:`corrected_points`.
        """
        n, p = len(self.x), self.corrected_p
        change = (values[n:] - values[:n][self.row]).to(p.dtype)
        return (p * (1 - p) * torch.where(self.is_one, -change, change)).unsqueeze(-1)

    def predicted(self, slopes: Float[Tensor, "rows *batch d"]) -> tuple[Pair, Three]:
        """Return the predicted gradients in the logit of the corrected bit, and their noise.

        ``slopes`` are those at the draws and, after them, at :meth:`corrected_points`. The
        gradients, ``[m, *batch, 1]``, are the means of the two predictions over the bit. The noise,
        ``[m, *batch]``, is the variance of the first prediction over the bit, the covariance of
        both, and the variance of the second.
        """
        n, variable = len(self.x), self.variable.unsqueeze(-1)
        is_one, p = self.is_one, self.corrected_p
        at_draw = slopes[:n][self.row].gather(-1, variable).squeeze(-1)
        at_flip = slopes[n:].gather(-1, variable).squeeze(-1)
        at_0 = torch.where(is_one, at_flip, at_draw)
        at_1 = torch.where(is_one, at_draw, at_flip)
        variance = p * (1 - p)
        straight = variance * ((1 - p) * at_0 + p * at_1)
        curved = variance * (0.5 - p) * (at_1 - at_0)
        # The differences of both predictions between bit 1 and bit 0.
        s = variance * (at_1 - at_0)
        c = (0.5 - p) * ((1 - p) * at_1 + p * at_0)
        noise = variance * s * s, variance * s * c, variance * c * c
        return (straight[..., None], curved[..., None]), noise

    def in_log_probs(self, gradient: Float[Tensor, "*batch d 1"]) -> Float[Tensor, "*batch d 2"]:
        """Return the gradient in log p(0) and log p(1), whose difference is the logit."""
        possible = (self.p > 0) & (self.p < 1)
        gradient = torch.where(possible, gradient.squeeze(-1), 0.0)
        return torch.stack([-gradient, gradient], -1)


@dataclass(frozen=True)
class OneHots(OneHotDraws):
    """One-hot draws, in which a correction compares all categories. The methods are those of
    :class:`Bits`.

    Attributes:
        category: the categories of the corrected variable, that of the draw first.
    """

    category: Int64[Tensor, "k m *batch"]

    def first_and_second_order(self, slope: Float[Tensor, "n *batch d k"]) -> Pair:
        above = ((self.x - self.p) * slope).sum(-1, keepdim=True)
        mean = slope.mean(0)
        straight = self.p * (mean - (self.p * mean).sum(-1, keepdim=True))
        return straight, (((self.x - self.p) * above).mean(0) - straight) / 2

    def corrected_points(self) -> Float[Tensor, "km *batch d k"]:
        """Return the draws with every other possible category of the corrected variable."""
        (d, k), device = self.p.shape[-2:], self.x.device
        category = torch.where(self.chances() > 0, self.category, self.category[:1])[1:]
        is_corrected = self.variable.unsqueeze(-1) == torch.arange(d, device=device)
        value = (category[..., None, None] == torch.arange(k, device=device)).to(self.x.dtype)
        return torch.where(is_corrected.unsqueeze(-1), value, self.x[self.row]).flatten(0, 1)

    def chances(self) -> Float[Tensor, "k m *batch"]:
        """Return the probabilities of the categories, that of the draw first."""
        return self.corrected_p.movedim(-1, 0).gather(0, self.category)

    def shares(self) -> Float[Tensor, "rows *batch"]:
        chance = self.chances()
        return shares_of_points(chance[0], chance[1:], len(self.x))

    def exact(self, values: Float[Tensor, "rows *batch"]) -> Float[Tensor, "m *batch k"]:
        n, m, k, p = len(self.x), len(self.row), self.p.shape[-1], self.corrected_p
        change = (values[n:].unflatten(0, (k - 1, m)) - values[:n][self.row]).to(p.dtype)
        change = torch.cat([torch.zeros_like(change[:1]), change]).movedim(0, -1)
        number = torch.arange(k, device=p.device)
        position = (number - self.category[0].unsqueeze(-1)) % k
        effect = change.gather(-1, position.expand(change.shape))
        return p * (effect - (p * effect).sum(-1, keepdim=True))

    def predicted(self, slopes: Float[Tensor, "rows *batch d k"]) -> tuple[Pair, Three]:
        n, m, k, p = len(self.x), len(self.row), self.p.shape[-1], self.corrected_p
        index = self.variable[..., None, None].expand(*self.variable.shape, 1, k)
        at_draw = slopes[:n][self.row].gather(-2, index)
        at_changes = (
            slopes[n:].unflatten(0, (k - 1, m)).gather(-2, index.expand(k - 1, *index.shape))
        )
        slope = torch.cat([at_draw.unsqueeze(0), at_changes]).squeeze(-2)  # that of the draw first
        chance = self.chances().unsqueeze(-1)
        drawn = (self.category.unsqueeze(-1) == torch.arange(k, device=p.device)).to(p.dtype)
        above = slope - (p * slope).sum(-1, keepdim=True)
        straight = p * above
        curved = ((drawn - p) * (drawn * above).sum(-1, keepdim=True) - straight) / 2
        means = (chance * straight).sum(0), (chance * curved).sum(0)
        s, c = straight - means[0], curved - means[1]
        ss = (chance * s * s).sum((0, -1))
        sc = (chance * s * c).sum((0, -1))
        cc = (chance * c * c).sum((0, -1))
        return means, (ss, sc, cc)


def make_predictions(
    x: Float[Tensor, "n *event"],
    probs: Float[Tensor, "*batch d k"],
    variable: Int64[Tensor, "m *batch"],
    other: Int64[Tensor, "m *batch"] | None,
) -> Bits | OneHots | OneHotPairs:
    """Return the predictions for draws of bits or one-hot draws, corrected in turn.

    With ``other``, one-hot variables change to these categories, else to all others.
    """
    if other is not None:
        return make_pairs(x, probs, variable, other)
    row = rows_in_turn(variable, len(x))
    if x.dim() == probs.dim():
        p, index = probs[..., 1], variable.unsqueeze(-1)
        is_one = x[row].gather(-1, index).squeeze(-1) > 0
        corrected_p = p.expand(len(row), *p.shape).gather(-1, index).squeeze(-1)
        return Bits(x, p, variable, row, is_one, corrected_p)
    drawn, corrected_p = corrected_variables(x, probs, variable)
    number = torch.arange(probs.shape[-1], device=x.device).view(-1, *[1] * variable.dim())
    category = (drawn.argmax(-1) + number) % len(number)
    return OneHots(x, probs, variable, row, corrected_p, category)
