"""Sum-and-sample: sum over likely points from a beam search, sample from the remaining mass."""

from itertools import chain

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ...core import Estimate, Evaluator, Randomness
from ...core.categories import as_index
from ...core.factors import Factors, IndependentFactors
from ...core.tracing import can_inspect
from ..score_function import leave_one_out
from .prefix_tree import Walk, lexicographic_order, prefix_tree, row_numbers

Rows = Int64[Tensor, "rows *batch d"]
Valid = Bool[Tensor, "rows *batch"]


@torch.no_grad()
def beam_search(q: Factors, count: int) -> tuple[Rows, Valid]:
    """Return likely points, best first, and which of them are possible (the others repeat the
    best).

    For independent variables they are the most probable points, else those that a beam of this
    width finds. Of a block of variables, only the ``count`` - 1 whose second-best category loses
    least can differ from their best category: a point with a larger loss is behind the best point
    and the ``count`` - 1 cheaper single changes. So a block takes at most ``count`` - 1 steps.
    """
    ordered = q.ordered
    points = torch.zeros((1, *q.batch_shape, q.d), dtype=torch.int64, device=q.device)
    score = torch.zeros(points.shape[:-1], dtype=ordered.real, device=q.device)
    for block, variables in enumerate(ordered.blocks):
        raw = ordered.conditional(points, block)
        log_probs = ordered.block_log_probs(raw, block, points.shape[:-1], q.validate)
        if count == 1:
            best, chosen = log_probs.max(-1)
            score = score + best.sum(-1)
        else:
            score, origin, chosen = _extend(log_probs, score, count)
            points = _rows(points, origin)
        points = points + torch.zeros_like(chosen[..., :1])  # mapped where q is
        points[..., as_index(variables)] = chosen
    return points, score > -torch.inf


def _extend(
    log_probs: Float[Tensor, "rows *batch v k"], score: Float[Tensor, "rows *batch"], count: int
) -> tuple[Float[Tensor, "m *batch"], Int64[Tensor, "m *batch"], Int64[Tensor, "m *batch v"]]:
    """Return the best extensions by a block: their scores, rows they extend, and categories."""
    k = log_probs.shape[-1]
    best, favourite = log_probs.max(-1)
    slots = min(count - 1, favourite.shape[-1])
    if slots == favourite.shape[-1]:
        open_to_change = torch.arange(slots, device=best.device).expand(best.shape)
    else:
        second = log_probs.scatter(-1, favourite.unsqueeze(-1), -torch.inf).amax(-1)
        open_to_change = (second - best).topk(slots, -1).indices
        score = score + best.scatter(-1, open_to_change, 0.0).sum(-1)
    origin = row_numbers(score).expand(score.shape)
    steps = []
    for slot in range(slots):
        variable = open_to_change[..., slot, None, None]
        local = log_probs.gather(-2, variable.expand(*variable.shape[:-1], k)).squeeze(-2)
        total = (score.unsqueeze(-1) + _rows(local, origin)).movedim(-1, 1).flatten(0, 1)
        score, leading = total.topk(min(count, len(total)), 0)
        parent = torch.where(score > -torch.inf, leading, leading[:1])
        steps.append((parent // k, parent % k))
        origin = origin.gather(0, parent // k)
    row = row_numbers(score).expand(score.shape)
    changes = []
    for parent, category in reversed(steps):
        changes.append(category.gather(0, row))
        row = parent.gather(0, row)
    change = torch.stack(changes[::-1], -1)
    chosen = _rows(favourite, origin).scatter(-1, _rows(open_to_change, origin), change)
    return score, origin, chosen


def _rows(table: Tensor, row: Int64[Tensor, "m *batch"]) -> Tensor:
    """Return rows of a table ``[rows, *batch, columns]``, other ones for every batch element."""
    return table.gather(0, row.unsqueeze(-1).expand(*row.shape, table.shape[-1]))


class Members:
    """A set S of points of q: the probability outside it, and draws from outside it.

    Attributes:
        q: the factors.
        points: the members, sorted; invalid ones are not in S.
        tree: of their prefixes, in drawing order.
        is_new: for the members as they were given, whether no earlier one is the same point.
        remaining: the probability that a draw is not in S, given that its first i variables are a
            member's, ``[m, *batch, d + 1]``. Probabilities of points outside are added up, never
            subtracted from 1, so that small ones are as precise as large ones. An invalid member
            has no meaningful number.
    """

    def __init__(self, q: Factors, points: Rows, valid: Valid | None = None) -> None:
        if valid is None:
            valid = torch.ones_like(points[..., 0], dtype=torch.bool)
        drawing_order = as_index(tuple(chain.from_iterable(q.ordered.blocks)))
        order = lexicographic_order(points[..., drawing_order], valid, q.k)
        self.q = q
        self.points = points.gather(0, order.unsqueeze(-1).expand(points.shape))
        self.tree = prefix_tree(self.points[..., drawing_order], valid.gather(0, order), q.k)
        self.is_new = torch.zeros_like(valid).scatter(0, order, self.tree.is_new)
        with torch.no_grad():
            probs = q.log_conditionals(self.points).exp()
            self.remaining = self.tree.remaining(probs[..., drawing_order, :])

    @property
    def probability_outside(self) -> Float[Tensor, "*batch"]:
        return torch.where(self.tree.valid, self.remaining[..., :1], 1.0).squeeze(-1).amin(0)

    def contain(self, x: Rows) -> Valid:
        """Return whether x is in S."""
        is_same = (x.unsqueeze(1) == self.points).all(-1)
        return (is_same & self.tree.valid.squeeze(-1)).any(1)

    def draw_outside(self, u: Float[Tensor, "n *batch d"]) -> tuple[Rows, Valid]:
        r"""Draw from :math:`q(x) / (1 - q(S))` outside S, in one ancestral pass; return the draws,
        and which of them are in S nevertheless.

        Nothing is rejected: a category has its conditional probability times the share of it
        outside S. If no point is outside S, a member is drawn.
        """
        q, ordered = self.q, self.q.ordered
        walk = Walk(self.tree, self.remaining, len(u))
        # Mapped where u or q is.
        x = torch.zeros_like(u + self.remaining[0, ..., :1], dtype=torch.int64)
        state = ordered.start(u.shape[:-1]) if ordered.incremental else None
        previous = None
        # Draws of independent variables share their conditionals.
        lead = (x[:1] if isinstance(q, IndependentFactors) else x).shape[:-1]
        with torch.no_grad():
            for block, variables in enumerate(ordered.blocks):
                raw, state = ordered.next_logits(block, x, state, previous)
                probs = ordered.block_log_probs(raw, block, lead, q.validate).exp()
                index = as_index(variables)
                x[..., index] = walk.choose(probs, u[..., index])
                previous = x[..., variables[0]]
        return x, walk.is_inside


def sum_and_sample(
    f: Evaluator,
    q: Factors,
    draw: Randomness,
    points: Rows,
    valid: Valid,
    samples: int,
    least: float = 0.0,
) -> tuple[Estimate, Float[Tensor, "m_n *sizes"], Int64[Tensor, "n *batch d"]]:
    """Return the estimate, f at the members and at the draws from the rest, and these draws.

    Members are different points; an invalid one is any possible point and has weight 0. ``least``
    is a lower bound on the weight of the members. Where it is above their probability, the estimate
    is biased.
    """
    m = len(points)
    members = Members(q, points, valid)
    remaining = members.probability_outside
    x = draw.given_points(samples)
    if x is None:
        u = draw.uniform(samples, *q.batch_shape, q.d, batch_from=1)
        drawn, inside = members.draw_outside(u)
    else:
        drawn = q.index(x)
        inside = members.contain(drawn)
        if can_inspect(q.validate, x) and bool((inside & (remaining > 0)).any()):
            bad = tuple((inside & (remaining > 0)).nonzero()[0].tolist())
            raise ValueError(
                f"x must hold points that are not summed already, but {drawn[bad].tolist()} at "
                f"index {bad} is. Give draws from the rest of q, or no x."
            )
    n = len(drawn)
    points = torch.cat([points, drawn])
    log_prob = q.log_prob(points)
    mass = torch.where(valid, log_prob[:m].exp(), 0.0)
    total = mass.detach().sum(0)
    weight = torch.where(total > 0, total.clamp(min=least, max=1.0), 0.0)
    mass = mass * (weight / total.clamp(min=torch.finfo(total.dtype).tiny))
    remaining = torch.where((total > 0) & (total < least), 1 - least, remaining)
    rest = torch.where(inside, 0.0, remaining) / n

    values = f(q.point(points))
    mean = (torch.cat([mass.detach(), rest]) * values).sum(0)
    fm, fx = values[:m].detach(), values[m:].detach()
    summed = (mass.detach() * fm).sum(0)
    if n > 1:  # the baseline of a draw is the estimate from the other draws
        baseline = summed + remaining * leave_one_out(fx)
    else:
        baseline = (summed / weight.clamp(min=torch.finfo(total.dtype).tiny)).unsqueeze(0)
    summed_out = (mass * (fm - baseline.mean(0))).sum(0)
    scored = (rest * (fx - baseline) * log_prob[m:]).sum(0)
    return Estimate(mean, mean + summed_out + scored), values.detach(), drawn
