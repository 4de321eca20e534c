"""A set of points as a tree of their prefixes: the probability outside the set, and draws from it.

Two members stand in the same node at depth i if their first i variables agree. Members are sorted,
so that those of a node stand side by side. All numbers of m members, d variables and k categories
are O(m d k). Categories and members are the first dimensions: torch is slow on a last dimension of
size 2, and its amin and amax on the first ones.
"""

from dataclasses import dataclass
from functools import reduce
from math import log2

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor
from torch.nn.functional import pad

from ...core.categories import inverse_cdf
from ...core.tracing import inside_functorch

Members = Int64[Tensor, "m *batch d"]
Valid = Bool[Tensor, "m *batch"]
Depths = Float[Tensor, "m *batch depths"]


@dataclass(frozen=True)
class PrefixTree:
    """Sorted members, and the nodes in which they stand.

    Attributes:
        members: category numbers, in drawing order.
        valid: members that are in the set. An invalid one stands in nodes of its own.
        is_first: whether a member is the first one of its node at each depth, 0 to d.
        nodes: the number of this node, below m.
        branch: the place of a member's next category among those of its node, category * m + node.
        k: number of categories.
    """

    members: Int64[Tensor, "m *batch d"]
    valid: Bool[Tensor, "m *batch 1"]
    is_first: Bool[Tensor, "m *batch depths"]
    nodes: Int64[Tensor, "m *batch depths"]
    branch: Int64[Tensor, "m *batch d"]
    k: int

    @property
    def is_new(self) -> Bool[Tensor, "m *batch"]:
        """Whether a member is valid and no earlier valid member is the same point."""
        return self.valid.squeeze(-1) & self.is_first[..., -1]

    def by_branch(
        self, default: bool | int | float, values: Shaped[Tensor, "m *batch d"]
    ) -> Shaped[Tensor, "k m *batch d"]:
        """Return the members' values by category and node; a branch without members has the
        default."""
        m = len(self.members)
        table = values.new_full((self.k * m, *values.shape[1:]), default)
        put = table.scatter if inside_functorch() else table.scatter_
        return put(0, self.branch, values).unflatten(0, (self.k, m))

    def at_nodes(self, table: Shaped[Tensor, "k m *batch d"]) -> Shaped[Tensor, "k m *batch d"]:
        """Return the entries of such a table at the node of each member."""
        return table.gather(1, self.nodes[..., :-1].unsqueeze(0).expand(table.shape))

    def remaining(self, probs: Float[Tensor, "rows *batch d k"]) -> Depths:
        """Return the probability to be outside the set, given the first i variables of a member.

        ``probs`` are the conditionals along the members; all members may share one row. A node adds
        its categories that lead to no member, each node once, at its first member.
        """
        p = probs.movedim(-1, 0).contiguous()
        nodes = self.nodes[..., :-1]
        is_free = self.at_nodes(self.by_branch(True, (~self.valid).expand(nodes.shape)))
        free = torch.where(is_free, p, 0.0).sum(0)
        counts = self.valid & self.is_first[..., :-1]
        members = self.members.unsqueeze(0)
        step = p.expand(self.k, *members.shape[1:]).gather(0, members).squeeze(0)
        below = suffix_sums(torch.where(counts, free, 0.0), step)
        if len(below) > 1:
            below = torch.where(self.valid, below, 0.0)
            below = torch.zeros_like(below).scatter_add(0, nodes, below).gather(0, nodes)
        return pad(below, (0, 1))


def prefix_tree(members: Members, valid: Valid, k: int) -> PrefixTree:
    """Return the tree of members in the order of :func:`lexicographic_order`.

    >>> members = torch.tensor([[0, 1, 0], [0, 1, 1], [1, 1, 0]])
    >>> prefix_tree(members, torch.ones(3, dtype=torch.bool), 2).nodes
    tensor([[0, 0, 0, 0],
            [0, 0, 0, 1],
            [0, 1, 1, 2]])
    """
    valid = valid.unsqueeze(-1)
    differences = (members != members.roll(1, 0)).cumsum(-1, dtype=torch.int32)
    agrees = (pad(differences, (1, 0)) == 0) & valid  # with the member before it
    is_first = ~agrees | (row_numbers(members) == 0)
    nodes = is_first.cumsum(0, dtype=torch.int32).long() - 1
    branch = nodes[..., :-1].add(members, alpha=len(members))
    return PrefixTree(members, valid, is_first, nodes, branch, k)


def lexicographic_order(members: Members, valid: Valid, k: int) -> Int64[Tensor, "m *batch"]:
    """Return the rows of valid members in lexicographic order, then those of the others. Equal
    members stay in their order."""
    order = row_numbers(valid).expand(valid.shape)
    if len(members) == 1:
        return order
    words = as_words(members, k).masked_fill(~valid.unsqueeze(-1), 2**62)  # above all others
    for key in words.unbind(-1)[::-1]:  # a stable sort by the first word keeps the others' order
        order = order.gather(0, key.gather(0, order).argsort(dim=0, stable=True))
    return order


def row_numbers(members: Tensor) -> Int64[Tensor, "m *ones"]:
    """Return the number of every row, with as many dimensions as ``members`` has."""
    numbers = torch.arange(len(members), device=members.device)
    return numbers.view(-1, *[1] * (members.dim() - 1))


def _prefixes_agree(a: Tensor, b: Tensor) -> Bool[Tensor, "*rows d"]:
    """Return whether a and b agree in the variables up to each one."""
    return (a == b).cumprod(-1, dtype=torch.int8).bool()


def as_words(points: Int64[Tensor, "*lead d"], k: int) -> Int64[Tensor, "*lead words"]:
    """Return points as few numbers, in the same lexicographic order, to compare them quickly.

    A number holds as many variables as fit into 62 bits. Points with other categories than these k
    are not distinguished.

    >>> as_words(torch.tensor([[0, 1, 1], [0, 1, 0], [0, 1, 1]]), k=2).diff(dim=0).sign()
    tensor([[-1],
            [ 1]])
    """
    width = min(points.shape[-1], int(62 / log2(k + 1)))
    digits = pad((points + 1).clamp(0, k), (0, -points.shape[-1] % width))
    places = (k + 1) ** torch.arange(width - 1, -1, -1, device=points.device)
    return (digits.unflatten(-1, (-1, width)) * places).sum(-1)


def suffix_sums(term: Float[Tensor, "*batch d"], step: Tensor) -> Float[Tensor, "*batch d"]:
    """Return s_i = term_i + step_i s_{i+1} in log2(d) rounds, each of which doubles the range.

    >>> suffix_sums(torch.ones(3), torch.tensor([0.5, 2.0, 7.0]))
    tensor([2.5000, 3.0000, 1.0000])
    """
    d, shift = term.shape[-1], 1
    while shift < d:
        head = term[..., :-shift].addcmul(step[..., : d - shift], term[..., shift:])
        term = torch.cat([head, term[..., -shift:]], -1)
        step = step[..., :-shift] * step[..., shift:]
        shift *= 2
    return term


def _choices(
    probs: Float[Tensor, "k *shape"], share: Tensor, u: Tensor, dtype: torch.dtype = torch.int64
) -> Tensor:
    """Return categories by their share outside the set; by all of it if nothing is outside."""
    outside = probs * share
    total = outside.sum(0)
    outside = torch.where(total > 0, outside / total, probs)
    return inverse_cdf(outside.movedim(0, -1), u, dtype)


class Walk:
    """Draws from outside the set, along every member at once, all variables of a block together.

    The category that a draw takes after the prefix of a member does not depend on whether it has
    that prefix. So these categories are chosen for all members; the draw follows a member as long
    as they agree.
    """

    def __init__(self, tree: PrefixTree, remaining: Depths, draws: int) -> None:
        share = tree.by_branch(1.0, torch.where(tree.valid, remaining[..., 1:], 1.0))
        self.share = tree.at_nodes(share)
        # Small integers: pages of memory cost more here than arithmetic.
        self.dtype = torch.int8 if tree.k <= 128 else torch.int32
        self.members = tree.members.to(self.dtype)
        self.stays = tree.valid.expand(draws, *tree.valid.shape)
        self.depth = 0

    @property
    def is_inside(self) -> Bool[Tensor, "n *batch"]:
        """Whether the categories chosen so far are the first ones of a member."""
        return self.stays.squeeze(-1).any(1)

    def choose(
        self, probs: Float[Tensor, "rows *batch v k"], u: Float[Tensor, "n *batch v"]
    ) -> Int64[Tensor, "n *batch v"]:
        """Return the categories of the next variables; all draws may share one row of probs."""
        block = slice(self.depth, self.depth + u.shape[-1])
        self.depth = block.stop
        p = probs.movedim(-1, 0).contiguous()
        share = self.share[: len(p), ..., block].unsqueeze(1)
        along = _choices(p.unsqueeze(2), share, u.unsqueeze(1), self.dtype)  # [n, m, *batch, v]
        after = self.stays & _prefixes_agree(along, self.members[..., block])
        stays = torch.cat([self.stays.expand(after[..., :1].shape), after[..., :-1]], -1)
        self.stays = after[..., -1:]
        followed = reduce(torch.maximum, torch.where(stays, along, -1).unbind(1))
        return torch.where(followed >= 0, followed, inverse_cdf(probs, u))
