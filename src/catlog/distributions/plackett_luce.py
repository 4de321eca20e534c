"""Rankings of items, and the Gumbel top-k draws that make them."""

from itertools import permutations
from math import perm

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ..core.categories import widened
from ..core.checks import check_count
from ..core.ordered import Ordered
from ..core.tracing import can_inspect, inside_functorch
from .items import batch_shape, check_enough, check_items, check_scores


class PlackettLuce(Ordered):
    r"""Rankings of all items, or of the first k: items are drawn one by one without replacement.

    .. math::
        q(x) = \prod_{j=1}^{k} \frac{e^{s_{x_j}}}{\sum_{i \notin \{x_1 \dots x_{j-1}\}} e^{s_i}}

    The event is an int64 vector of k different items, the best first. The largest k of the scores
    plus Gumbel noise, in decreasing order, are a draw (``catlog.distributions.gumbel_top_k``). The
    *set* of these items is not a draw of :class:`catlog.distributions.Subset`: its probability is a sum over all
    its orders.

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
        check_items("PlackettLuce", "scores", scores, mask)
        d = scores.shape[-1]
        if k is None:
            k = d
        check_count("PlackettLuce", "k", k, most=d)
        shapes = {} if mask is None else {"mask": mask.shape[:-1]}
        batch = batch_shape("PlackettLuce", scores=scores.shape[:-1], **shapes)
        scores = widened(scores).expand(batch + (d,))
        is_item = scores > -torch.inf if mask is None else (scores > -torch.inf) & mask
        if can_inspect(validate_args is not False, scores):
            check_scores("PlackettLuce", "scores", scores, mask)
            items = is_item.sum(-1)
            check_enough("PlackettLuce", torch.full_like(items, k), items)
        self.scores = scores.masked_fill(~is_item, -torch.inf)
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
        # What is left after j items: the later ones, and those that are not ranked.
        floor = torch.finfo(self.real).min / 4  # finite, for the derivative; its exponential is 0
        scores = (self.scores - _offset(self.scores)).expand(x.shape[:-1] + self.scores.shape[-1:])
        ranked = scores.gather(-1, x)
        ordered = x.sort(-1).values
        is_possible = (ranked > -torch.inf).all(-1)
        is_possible = is_possible & (ordered[..., 1:] != ordered[..., :-1]).all(-1)
        ranked = torch.where(is_possible.unsqueeze(-1), ranked, 0.0)
        unranked = scores.scatter(-1, x, -torch.inf)
        unranked = unranked.masked_fill(unranked == -torch.inf, floor).logsumexp(-1, keepdim=True)
        remaining = torch.cat([ranked, unranked], -1).flip(-1).logcumsumexp(-1).flip(-1)[..., :-1]
        return (ranked - remaining).sum(-1).masked_fill(~is_possible, -torch.inf)

    def direct_draws(self, rows: int, generator: torch.Generator | None) -> Tensor | None:
        if inside_functorch():
            return None
        lead = torch.Size([rows, *self.batch_shape])
        return gumbel_top_k(self.scores.expand(lead + self.scores.shape[-1:]), self.k, generator)

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


def _offset(scores: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch 1"]:
    """Return what all finite scores have in common: the nearest to zero, if all have its sign.

    A common offset changes no probability, but its rounding errors would.

    >>> _offset(torch.tensor([[8.0, 6.0, 7.0], [-5.0, -torch.inf, -6.0], [-1.0, 2.0, 9.0]]))
    tensor([[ 6.],
            [-5.],
            [ 0.]])
    """
    scores = scores.detach()
    least = scores.masked_fill(scores == -torch.inf, torch.inf).amin(-1, keepdim=True)
    return least.clamp(min=0) + scores.amax(-1, keepdim=True).clamp(max=0)


def gumbel_top_k(
    scores: Float[Tensor, "*lead d"], k: int, generator: torch.Generator | None = None
) -> Int64[Tensor, "*lead k"]:
    """Return the k items of the largest score plus Gumbel noise, in decreasing order.

    This is a draw of :class:`catlog.distributions.PlackettLuce`, not of :class:`catlog.distributions.Subset`: among three items
    with weights 2, 1 and 1, the first is in the set of two with probability 5/6, not 4/5.

    >>> gumbel_top_k(torch.tensor([0.0, 99.0, 200.0]), k=2)
    tensor([2, 1])
    """
    check_count("gumbel_top_k", "k", k, most=scores.shape[-1])
    # In float64, where neither large scores nor many items make ties.
    dtype = torch.float32 if scores.device.type == "mps" else torch.float64
    exponential = torch.empty(scores.shape, dtype=dtype, device=scores.device)
    if generator is None:  # torch.compile rejects None beside a symbolic size
        exponential.exponential_()
    else:
        exponential.exponential_(generator=generator)
    return (scores.detach().to(dtype) - exponential.log()).topk(k, -1).indices
