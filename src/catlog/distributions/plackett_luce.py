"""Rankings of items, and the Gumbel top-k draws that make them."""

from itertools import permutations
from math import perm

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.functional import softplus

from ..core.checks import check_count, check_generator
from ..core.ordered import Ordered
from ..core.tracing import inside_functorch
from .items import check_items, read_items


class PlackettLuce(Ordered):
    r"""Rankings of all items, or of the first k: items are drawn one by one without replacement.

    .. math::
        q(x) = \prod_{j=1}^{k} \frac{e^{s_{x_j}}}{\sum_{i \notin \{x_1 \dots x_{j-1}\}} e^{s_i}}

    The event is an int64 vector of k different items, the best first. The largest k of the scores
    plus Gumbel noise, in decreasing order, are a draw (``catlog.distributions.gumbel_top_k``). The
    *set* of these items is not a draw of :class:`~catlog.distributions.Subset`: its probability is
    a sum over all its orders.

    Entropy and marginals are exact. They enumerate the d! / (d - k)! rankings, so they need few
    items.

    Cost: O(d log d) for a draw, O(d + k) for a log-probability, O(d k) for the conditionals that
    SCateR and others need.
    Reference: Plackett, "The analysis of permutations", 1975; Kool et al., "Stochastic beams and
    where to find them", 2019, for the draws.

    Args:
        scores: s, ``[*batch, d]``. An item of score -inf is never ranked.
        k: how many items are ranked, from 1 to d; None: all of them.
        mask: bools ``[*batch, d]``; False marks padding, which is never ranked.
        validate_args: False skips the checks that read numbers (which wait for a GPU).

    >>> q = PlackettLuce(torch.tensor([2.0, 1.0, 0.0]).log(), k=2)
    >>> q.log_prob(torch.tensor([0, 1])).exp()
    tensor(0.6667)
    >>> q.bits(torch.tensor([1, 0]))
    tensor([1, 1, 0])
    """

    def __init__(
        self,
        scores: Float[Tensor, "*#batch d"],
        k: int | None = None,
        mask: Bool[Tensor, "*#batch d"] | None = None,
        validate_args: bool | None = None,
    ) -> None:
        check_items("PlackettLuce", "scores", scores, mask, validate_args)
        d = scores.shape[-1]
        if k is None:
            k = d
        check_count("PlackettLuce", "k", k, most=d)
        scores, _, count = read_items("PlackettLuce", "scores", scores, k, mask, validate_args)
        batch = count.shape
        self.scores = scores
        self.k = k
        self.cardinalities = (d,) * k
        self.real = scores.dtype
        self.device = scores.device
        super().__init__(batch, torch.Size([k]), validate_args=validate_args)

    def conditional(self, x: Tensor, block: int) -> Tensor:
        scores = self.scores.expand(x.shape[:-1] + self.scores.shape[-1:])
        return scores.scatter(-1, x[..., :block], -torch.inf).unsqueeze(-2)

    def log_conditionals(self, x: Tensor, validate: bool = True) -> Tensor:
        item = torch.arange(self.scores.shape[-1], device=x.device)
        chosen = (x.unsqueeze(-1) == item).long()  # unlike one_hot, vmap maps it
        is_taken = (chosen.cumsum(-2) - chosen) > 0
        scores = self.scores.unsqueeze(-2).masked_fill(is_taken, -torch.inf)
        return scores.log_softmax(-1)

    def log_prob_of_rows(self, x: Tensor, validate: bool = True) -> Tensor:
        scores = self.scores.expand(x.shape[:-1] + self.scores.shape[-1:])
        ranked = scores.gather(-1, x)
        ordered = x.sort(-1).values
        is_possible = (ranked > -torch.inf).all(-1)
        is_possible = is_possible & (ordered[..., 1:] != ordered[..., :-1]).all(-1)
        ranked = torch.where(is_possible.unsqueeze(-1), ranked, 0.0)
        log_odds = _log_odds_of_places(ranked, scores.scatter(-1, x, -torch.inf))
        return log_odds.sum(-1).masked_fill(~is_possible, -torch.inf)

    def direct_draws(self, rows: int, generator: torch.Generator | None) -> Tensor | None:
        if inside_functorch():
            return None
        lead = torch.Size([rows, *self.batch_shape])
        scores = _narrowed(self.scores)
        return _largest(scores.expand(lead + scores.shape[-1:]), self.k, generator)

    def bits(self, x: Int64[Tensor, "*lead k"]) -> Int64[Tensor, "*lead d"]:
        """Return rankings as bits: 1 for every item that is ranked."""
        lead = x.shape[:-1]
        empty = torch.zeros(lead + self.scores.shape[-1:], dtype=torch.int64, device=x.device)
        return empty.scatter(-1, x, 1)

    @property
    def points(self) -> int:
        return perm(self.scores.shape[-1], self.k)

    def all_points(self) -> Tensor:
        """Return all rankings."""
        rankings = list(permutations(range(self.scores.shape[-1]), self.k))
        return torch.tensor(rankings, device=self.device)


def _log_odds_of_places(
    ranked: Float[Tensor, "*lead k"], unranked: Float[Tensor, "*lead d"]
) -> Float[Tensor, "*lead k"]:
    """Return every ranked score less the log-sum of this and all later ones and the unranked."""
    floor = torch.finfo(ranked.dtype).min
    level = unranked.detach().amax(-1, keepdim=True)
    is_none = level == -torch.inf
    level = level.clamp(min=floor)
    rest = (unranked - level).masked_fill(is_none, 0.0).logsumexp(-1, keepdim=True)
    levels = torch.cat([ranked.detach(), level], -1)
    logs = torch.cat([ranked - ranked.detach(), rest.masked_fill(is_none, floor)], -1)
    levels, logs = suffix_log_sums(levels, logs)
    return (ranked - levels[..., :-1]) - logs[..., :-1]


def suffix_log_sums(
    levels: Float[Tensor, "*lead d"], logs: Float[Tensor, "*lead d"]
) -> tuple[Float[Tensor, "*lead d"], Float[Tensor, "*lead d"]]:
    """Return the log-sums of each term and all later ones, as the sum of two parts, as the terms
    are given.

    One part, a constant, is the largest term, and the other one the logarithm of the rest, so that
    differences of terms survive whatever their size is. Sums of 1, 2, 4, ... terms are added up.
    """
    span = 1
    while span < levels.shape[-1]:
        first, second = levels[..., :-span], levels[..., span:]
        highest = torch.maximum(first, second)
        one, other = logs[..., :-span] + (first - highest), logs[..., span:] + (second - highest)
        # Unlike those of torch's logaddexp, its second derivatives are numbers beside any gap.
        is_more = one > other
        more, less = torch.where(is_more, one, other), torch.where(is_more, other, one)
        levels = torch.cat([highest, levels[..., -span:]], -1)
        logs = torch.cat([more + softplus(less - more), logs[..., -span:]], -1)
        span *= 2
    return levels, logs


def gumbel_top_k(
    scores: Float[Tensor, "*lead d"], k: int, generator: torch.Generator | None = None
) -> Int64[Tensor, "*lead k"]:
    """Return the k items of the largest score plus Gumbel noise, in decreasing order.

    This is a draw of :class:`PlackettLuce`, not of :class:`~catlog.distributions.Subset`: among
    three items with weights 2, 1 and 1, the first is in the set of two with probability 5/6, not
    4/5.

    >>> gumbel_top_k(torch.tensor([0.0, 99.0, 200.0]), k=2)
    tensor([2, 1])
    """
    check_items("gumbel_top_k", "scores", scores, None)
    check_count("gumbel_top_k", "k", k, most=scores.shape[-1])
    check_generator(generator, scores.device)
    scores, *_ = read_items("gumbel_top_k", "scores", scores, k)
    return _largest(_narrowed(scores), k, generator)


@torch.no_grad()
def _narrowed(scores: Float[Tensor, "*lead d"]) -> Float[Tensor, "*lead d"]:
    """Return scores with the same draws, all small enough that adding noise keeps its digits.

    No noise is as large as the widest gap that is left between scores that follow each other.
    """
    ordered, item = scores.sort(-1)
    # In float64, where many items make no ties.
    wide = ordered.to(torch.float32 if scores.device.type == "mps" else torch.float64)
    gaps = wide.diff(dim=-1, prepend=wide[..., :1]).nan_to_num(nan=0.0).clamp(max=1000.0)
    return torch.zeros_like(wide).scatter(-1, item, gaps.cumsum(-1))


def _largest(
    scores: Float[Tensor, "*lead d"], k: int, generator: torch.Generator | None
) -> Int64[Tensor, "*lead k"]:
    """Return the k items of the largest score plus Gumbel noise, in decreasing order."""
    exponential = torch.empty_like(scores, memory_format=torch.contiguous_format)
    if generator is None:  # torch.compile rejects None beside a symbolic size
        exponential.exponential_()
    else:
        exponential.exponential_(generator=generator)
    return (scores - exponential.log()).topk(k, -1).indices
