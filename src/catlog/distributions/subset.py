"""Subsets of exactly k items."""

from itertools import combinations
from math import comb, prod

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor
from torch.nn.functional import logsigmoid, one_hot

from ..core.checks import check_count, check_dense, check_together
from ..core.ordered import Ordered
from ..core.tracing import can_inspect
from .bit_counts import IMPOSSIBLE, LARGEST, marginals, suffix_counts
from .items import check_items, read_items

TILT_STEPS = 20  # bisections of an interval of 80: the tilt is known to 8e-5


class Subset(Ordered):
    r"""Exactly k of d items: independent bits, given that k of them are 1.

    .. math::
        q(x) = \frac{\exp \sum_i \theta_i x_i}{\sum_{|y| = k} \exp \sum_i \theta_i y_i},
        \qquad x \in \{0, 1\}^d,\ |x| = k

    The event is an int64 vector of d bits. Log-probability, marginals and entropy are exact. Given
    the bits before it, bit i depends only on the number of items that remain to be chosen. So a
    table of d (k + 1) numbers in log space holds all conditionals.

    Adding a number to all logits does not change the distribution. The table is made with the shift
    for which independent bits have k ones on average. Its entries are then moderate, and float32 is
    precise enough, also beside logits of any size, such as masks of -1e9.

    Draws by Gumbel top-k have another distribution, :class:`catlog.distributions.PlackettLuce`.

    Cost: O(d k) per batch element, in d steps.
    Reference: Chen and Liu, "Statistical applications of the Poisson-binomial and conditional
    Bernoulli distributions", 1997.

    Args:
        logits: :math:`\theta`, ``[*batch, d]``. An item of logit -inf is never chosen.
        k: the number of chosen items, from 0 to d: an int, or integers ``[*batch]``.
        mask: bools ``[*batch, d]``; False marks padding, which is never chosen.
        validate_args: False skips the checks that read numbers (which wait for a GPU).

    >>> q = Subset(torch.tensor([0.0, 0.0, 0.0, 9.0]), k=2)
    >>> q.mean
    tensor([0.3334, 0.3334, 0.3334, 0.9999])
    >>> q.log_prob(torch.tensor([1, 0, 0, 1])).exp()
    tensor(0.3333)
    >>> Subset(torch.zeros(3, 5), k=torch.tensor([0, 2, 5])).sample().sum(-1)
    tensor([0, 2, 5])
    """

    def __init__(
        self,
        logits: Float[Tensor, "*#batch d"],
        k: int | Int[Tensor, "*#batch"],
        mask: Bool[Tensor, "*#batch d"] | None = None,
        validate_args: bool | None = None,
    ) -> None:
        check_items("Subset", "logits", logits, mask, validate_args)
        d = logits.shape[-1]
        _check_k(k, d, logits.device)
        logits, is_item, to_choose = read_items("Subset", "logits", logits, k, mask, validate_args)
        batch = to_choose.shape
        centred = (logits - _pivot(logits, is_item, to_choose)).masked_fill(~is_item, 0.0)
        centred = centred.clamp(-LARGEST, LARGEST)
        shifted = centred + _tilt(centred.detach(), is_item, to_choose).unsqueeze(-1)
        self.k = k
        self.to_choose = to_choose
        self.is_item = is_item
        self.items_from = is_item.flip(-1).cumsum(-1).flip(-1)  # among bits i, i + 1, ..., d
        self.logits = logits
        self.log_on = logsigmoid(shifted).masked_fill(~is_item, IMPOSSIBLE).movedim(-1, 0)
        self.log_off = logsigmoid(-shifted).masked_fill(~is_item, 0.0).movedim(-1, 0)
        self.counts, self.totals = suffix_counts(self.log_on, self.log_off, _most(k, d) + 1)
        self.cardinalities = (2,) * d
        self.real = logits.dtype
        self.device = logits.device
        super().__init__(batch, torch.Size([d]), validate_args=validate_args)

    def _logits_given(
        self, remaining: Int64[Tensor, "*lead m"], bits: slice
    ) -> Float[Tensor, "*lead m 2"]:
        """Return the logits of these bits, given how many items remain to be chosen at each.

        A number that the bits cannot reach is replaced by the nearest one that they can. It follows
        a prefix of probability zero.
        """
        items, is_item = self.items_from[..., bits], self.is_item[..., bits]
        lead, m = remaining.shape[:-1], remaining.shape[-1]
        rows = prod(lead[: len(lead) - len(self.batch_shape)])
        remaining = remaining.reshape((rows, *self.batch_shape, m))
        remaining = torch.minimum(remaining.clamp(min=0), items)
        later = self.counts[1:][bits].movedim((0, 1), (-2, -1))
        later = later.expand(self.batch_shape + later.shape[-2:])
        index = remaining.movedim(0, -1)
        log_zero = later.gather(-1, index).movedim(-1, 0) + self.log_off[bits].movedim(0, -1)
        log_one = later.gather(-1, (index - 1).clamp(min=0)).movedim(-1, 0)
        log_one = log_one + self.log_on[bits].movedim(0, -1)
        log_zero = log_zero.masked_fill(remaining > items - is_item.long(), -torch.inf)
        log_one = log_one.masked_fill((remaining == 0) | ~is_item, -torch.inf)
        return torch.stack([log_zero, log_one], -1).reshape((*lead, m, 2))

    def conditional(self, x: Tensor, block: int) -> Tensor:
        remaining = self.to_choose - x[..., :block].sum(-1)
        return self._logits_given(remaining.unsqueeze(-1), slice(block, block + 1))

    def log_conditionals(self, x: Tensor, validate: bool = True) -> Tensor:
        before = x.cumsum(-1) - x
        remaining = self.to_choose.unsqueeze(-1) - before
        return self._logits_given(remaining, slice(None)).log_softmax(-1)

    def from_uniforms(self, u: Tensor, validate: bool = True) -> Tensor:
        # As Ordered does it, without the checks at every bit.
        with torch.no_grad():
            uniforms = self._rows(u).movedim(-1, 0)
            remaining = self.to_choose.expand(uniforms.shape[1:])
            length, width, *batch = self.counts.shape
            new = (1,) * (len(self.batch_shape) - len(batch))  # dimensions of `expand`
            table = self.counts.reshape(length, width, *new, *batch)
            counts = table.expand((-1, width, *self.batch_shape)).unbind(0)
            bits = []
            for i, uniform in enumerate(uniforms):
                log_zero = counts[i + 1].gather(0, remaining) - counts[i].gather(0, remaining)
                zero = (log_zero + self.log_off[i]).exp()
                bit = ((uniform >= zero) & (zero < 1)).long()
                remaining = remaining - bit
                bits.append(bit)
            return torch.stack(bits, -1).reshape(u.shape)

    def log_prob_of_rows(self, x: Tensor, validate: bool = True) -> Tensor:
        is_bit = (x == 0) | ((x == 1) & self.is_item)
        is_possible = (x.sum(-1) == self.to_choose) & is_bit.all(-1)
        bits = torch.where(x == 1, self.log_on.movedim(0, -1), self.log_off.movedim(0, -1)).sum(-1)
        total = self.totals.gather(0, self.to_choose.unsqueeze(0)).squeeze(0)
        return torch.where(is_possible, bits - total, -torch.inf)

    def _marginals(self) -> tuple[Float[Tensor, "d *batch"], Float[Tensor, "d *batch"]]:
        """Return the probabilities of a one and of a zero, each to its own precision."""
        start = one_hot(self.to_choose, self.counts.shape[1]).to(self.real).movedim(-1, 0)
        return marginals(self.log_on, self.log_off, self.counts, start)

    @property
    def mean(self) -> Float[Tensor, "*batch d"]:
        """The exact probability of every item to be chosen, differentiable."""
        return self._marginals()[0].movedim(0, -1).expand(self.batch_shape + self.event_shape)

    def marginals(self) -> Float[Tensor, "*batch d 2"]:
        """Return q(x_i = 0) and q(x_i = 1) of every bit, exactly; :attr:`mean` is the second."""
        ones, zeros = self._marginals()
        pairs = torch.stack([zeros, ones], -1).movedim(0, -2)
        return pairs.expand(self.batch_shape + self.event_shape + (2,))

    def entropy(self) -> Tensor:
        """Return the exact entropy, from the normaliser and the marginals."""
        ones, zeros = self._marginals()
        total = self.totals.gather(0, self.to_choose.unsqueeze(0)).squeeze(0)
        # The derivative of a probability of zero is zero, too, but it would be lost in the rounding
        # errors that come with a logarithm of any size.
        log_on = self.log_on.masked_fill(ones == 0, 0.0)
        log_off = self.log_off.masked_fill(zeros == 0, 0.0)
        return (total - (ones * log_on + zeros * log_off).sum(0)).expand(self.batch_shape)

    @property
    def points(self) -> int:
        return comb(self.event_shape[0], self.k) if isinstance(self.k, int) else super().points

    def all_points(self) -> Tensor:
        """Return all subsets of k items; with a tensor of several k, all vectors of d bits."""
        if not isinstance(self.k, int):
            return super().all_points()
        d = self.event_shape[0]
        chosen = torch.tensor(list(combinations(range(d), self.k)), device=self.device).long()
        bits = torch.zeros(self.points, d, dtype=torch.int64, device=self.device)
        return bits.scatter(-1, chosen.view(self.points, self.k), 1)


def _check_k(k: object, d: int, device: torch.device) -> None:
    """Raise unless ``k`` is an int from 0 to d or a tensor of integers."""
    if not isinstance(k, Tensor):
        hint = f"There are d = {d} items. A k per batch element is a tensor of integers."
        check_count("Subset", "k", k, least=0, most=d, hint=hint)
    elif k.is_floating_point() or k.is_complex() or k.dtype == torch.bool:
        raise TypeError(f"Subset: `k` must hold integers, but {k.dtype} was given.")
    else:
        check_dense("Subset: `k`", k)
        if k.is_meta:  # integers elsewhere are moved to the logits
            check_together("Subset", "k", k, "`logits`", device)


def _most(k: int | Tensor, d: int) -> int:
    """Return the largest k, or d where Python may not look at it."""
    if isinstance(k, int):
        return k
    if k.numel() == 0 or k.device.type == "meta" or not can_inspect(True, k):
        return d
    return min(max(int(k.max()), 0), d)


@torch.no_grad()
def _pivot(
    logits: Float[Tensor, "*batch d"], is_item: Bool[Tensor, "*batch d"], k: Int64[Tensor, "*batch"]
) -> Float[Tensor, "*batch 1"]:
    """Return the k-th largest logit of an item, around which the others are likely or unlikely."""
    ordered = logits.masked_fill(~is_item, -torch.inf).sort(-1, descending=True).values
    rank = torch.minimum(k, is_item.sum(-1)).clamp(min=1).unsqueeze(-1)
    return ordered.gather(-1, rank - 1).clamp(min=torch.finfo(logits.dtype).min)


@torch.no_grad()
def _tilt(
    logits: Float[Tensor, "*batch d"], is_item: Bool[Tensor, "*batch d"], k: Int64[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """Return the shift of the logits for which independent bits have about k ones on average."""
    # With the k-th largest logit at zero, the shift is at most this. For, shifted by 40, k items
    # are certain, and by -40 only k - 1 can be likely: sigmoid(-40) is 4e-18.
    margin = torch.full_like(logits[..., 0], 40.0)
    # The ends of the interval are one tensor. With two, paths through the graph multiply at every
    # step, and torch 2.6 follows all of them when it compiles the backward pass.
    ends = torch.stack([-margin, margin])
    for _ in range(TILT_STEPS):
        middle = ends.mean(0)
        expected = ((logits + middle.unsqueeze(-1)).sigmoid() * is_item).sum(-1)
        is_low = expected < k
        ends = torch.where(torch.stack([is_low, ~is_low]), middle, ends)
    return ends.mean(0)
