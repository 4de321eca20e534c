"""Corrections of SlopeCateR that change a variable to one other category."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ...distributions.inverse_cdf import inverse_cdf
from ..logit_gradients import centred
from .corrections import corrected_variables, rows_in_turn, shares_of_points

Pair = tuple[Tensor, Tensor]
Three = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class OneHotDraws:
    """One-hot draws, some variables of which are corrected.

    Gradients are those in the logits of the k categories.

    Attributes:
        x: the draws.
        p: the probabilities.
        variable: the variables that are corrected.
        row: the draws in which they are corrected.
        corrected_p: the probabilities of the corrected variable.
    """

    x: Float[Tensor, "n *batch d k"]
    p: Float[Tensor, "*batch d k"]
    variable: Int64[Tensor, "m *batch"]
    row: Int64[Tensor, " m"]
    corrected_p: Float[Tensor, "m *batch k"]

    def size2(self, slope: Float[Tensor, "n *batch d k"]) -> Float[Tensor, "*batch d"]:
        """Return the mean squared norm of the straight prediction over the draws."""
        above = slope - (self.p * slope).sum(-1, keepdim=True)
        return (self.p * above).square().sum(-1).mean(0)

    def in_log_probs(self, gradient: Float[Tensor, "*batch d k"]) -> Float[Tensor, "*batch d k"]:
        return centred(gradient, self.p > 0)


@dataclass(frozen=True)
class OneHotPairs(OneHotDraws):
    r"""One-hot draws, in which a correction compares the drawn category a with one other, b.

    The methods are those of :class:`~catlog.estimators.catlog_trick.slope_predictions.Bits`. b is
    drawn from the rest. Given the pair, each of the two was drawn first with a probability
    :math:`w_a, w_b` that is proportional to the probability of all categories but the *other* one.
    The gradient of E[f] in the logits is the covariance of x and f, which is half of the mean of
    :math:`(f(a) - f(b)) (e_a - e_b)` over independent a and b. ReinMax puts :math:`\frac12 (G(a) +
    G(b)) \cdot (e_a - e_b)` in place of f(a) - f(b), so that it is compared with f pair by pair. It
    has one coefficient, alpha.

    Attributes:
        pair: the categories a and b of the corrected variable, one-hot.
    """

    pair: Float[Tensor, "2 m *batch k"]

    def first_and_second_order(self, slope: Float[Tensor, "n *batch d k"]) -> Pair:
        predicted = reinmax(self.x, self.p, slope).mean(0)
        return predicted, torch.zeros_like(predicted)

    def corrected_points(self) -> Float[Tensor, "m *batch d k"]:
        """Return the draws with the other category of the corrected variable."""
        number = torch.arange(self.p.shape[-2], device=self.x.device)
        is_corrected = (self.variable.unsqueeze(-1) == number).unsqueeze(-1)
        return torch.where(is_corrected, self.pair[1].unsqueeze(-2), self.x[self.row])

    def weights(self) -> tuple[Float[Tensor, "2 m *batch"], Float[Tensor, "m *batch"]]:
        """Return the probabilities of a and of b to be drawn first, and the weight of the pair."""
        rest = ((1 - self.pair) * self.corrected_p).sum(-1)  # added up, never subtracted from 1
        total = rest.sum(0)
        is_certain = total <= 0  # then a = b
        first = torch.where(is_certain, 0.5, rest.flip(0) / total)
        return first, torch.where(is_certain, 0.0, rest[0] * first[0])

    def shares(self) -> Float[Tensor, "rows *batch"]:
        first, _ = self.weights()
        return shares_of_points(first[0], first[1:], len(self.x))

    def exact(self, values: Float[Tensor, "rows *batch"]) -> Float[Tensor, "m *batch k"]:
        n, (a, b) = len(self.x), self.pair
        change = (values[:n][self.row] - values[n:]).to(a.dtype)
        return (self.weights()[1] * change).unsqueeze(-1) * (a - b)

    def predicted(self, slopes: Float[Tensor, "rows *batch d k"]) -> tuple[Pair, Three]:
        n, p, (a, b) = len(self.x), self.corrected_p, self.pair
        index = self.variable[..., None, None].expand(*self.variable.shape, 1, p.shape[-1])
        at_draw, at_change = slopes[:n][self.row].gather(-2, index), slopes[n:].gather(-2, index)
        at_pair = torch.stack([at_draw, at_change]).squeeze(-2)
        weight = self.weights()[1].unsqueeze(-1)
        change = (at_pair.mean(0) * (a - b)).sum(-1, keepdim=True)
        predicted = weight * change * (a - b)
        at_a, at_b = reinmax(self.pair, p, at_pair)
        noise = (weight * (at_a - at_b).square()).sum(-1)
        none = torch.zeros_like(noise)
        return (predicted, torch.zeros_like(predicted)), (noise, none, none)


def reinmax(
    x: Float[Tensor, "n *shape k"], p: Float[Tensor, "*shape k"], slope: Float[Tensor, "n *shape k"]
) -> Float[Tensor, "n *shape k"]:
    """Return the gradient in the logits that ReinMax predicts from f's slope at one-hot x."""
    above = slope - (p * slope).sum(-1, keepdim=True)
    return (p * above + (x - p) * (x * above).sum(-1, keepdim=True)) / 2


def other_categories(
    x: Float[Tensor, "n *batch d k"],
    probs: Float[Tensor, "*batch d k"],
    variable: Int64[Tensor, "m *batch"],
    start: Float[Tensor, "1 *batch"],
) -> Int64[Tensor, "m *batch"]:
    """Draw a category of each corrected variable that is not the one in its draw.

    It is drawn by its probability among the rest. If the drawn one is certain, it is returned.
    """
    m = len(variable)
    drawn, p = corrected_variables(x, probs, variable)
    rest = p * (1 - drawn)
    shift = torch.arange(m, dtype=start.dtype, device=start.device) / m
    u = (start + shift.view(-1, *[1] * (start.dim() - 1))) % 1
    total = rest.sum(-1)
    return torch.where(total > 0, inverse_cdf(rest, u * total), drawn.argmax(-1))


def make_pairs(
    x: Float[Tensor, "n *batch d k"],
    probs: Float[Tensor, "*batch d k"],
    variable: Int64[Tensor, "m *batch"],
    other: Int64[Tensor, "m *batch"],
) -> OneHotPairs:
    """Return the predictions for draws that are corrected in turn, to these other categories."""
    drawn, p = corrected_variables(x, probs, variable)
    changed = other.unsqueeze(-1) == torch.arange(probs.shape[-1], device=x.device)
    pair = torch.stack([drawn, changed.to(drawn.dtype)])
    return OneHotPairs(x, probs, variable, rows_in_turn(variable, len(x)), p, pair)
