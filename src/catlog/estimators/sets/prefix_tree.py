"""A set of points as a tree of their prefixes: the probability outside the set, and draws from it.

Two members stand in the same node at depth i if their first i variables agree. The first valid
member of a node is its leader, and numbers of a node are kept in the leader's place. All numbers of
m members, d variables and k categories are O(m d k). Few members are compared in pairs, all
variables at once; many are followed variable by variable. Categories and members are the first
dimensions: torch is slow on a last dimension of size 2, and its amin and amax on the first ones.
"""

from dataclasses import dataclass
from functools import reduce

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor
from torch.nn.functional import pad

from ...core.categories import inverse_cdf
from ...core.tracing import inside_functorch

Members = Int64[Tensor, "m *batch d"]
Valid = Bool[Tensor, "m *batch"]
Depths = Float[Tensor, "m *batch depths"]

FEW = 16  # members; pairs of more take longer than a loop over the variables


@dataclass(frozen=True)
class PrefixTree:
    """Members, their leaders, and which members count.

    Attributes:
        members: category numbers, in drawing order.
        valid: members that are in the set. An invalid one is its own leader, in no node.
        leaders: the leaders of the nodes at each depth, 0 to d.
        branch: the place of a member's next category among those of its node, category * m +
            leader.
        k: number of categories.
    """

    members: Int64[Tensor, "m *batch d"]
    valid: Bool[Tensor, "m *batch 1"]
    leaders: Int64[Tensor, "m *batch depths"]
    branch: Int64[Tensor, "m *batch d"]
    k: int

    @property
    def is_new(self) -> Bool[Tensor, "m *batch"]:
        """Whether a member is valid and no earlier valid member is the same point."""
        return self.valid.squeeze(-1) & self.is_leader[..., -1]

    @property
    def is_leader(self) -> Bool[Tensor, "m *batch depths"]:
        return self.leaders == row_numbers(self.leaders)

    def by_branch(
        self, default: bool | int | float, values: Shaped[Tensor, "m *batch d"]
    ) -> Shaped[Tensor, "k m *batch d"]:
        """Return the members' values by category and leader; a branch without members has the
        default."""
        m = len(self.members)
        table = values.new_full((self.k * m, *values.shape[1:]), default)
        put = table.scatter if inside_functorch() else table.scatter_
        return put(0, self.branch, values).unflatten(0, (self.k, m))

    def remaining(self, probs: Float[Tensor, "rows *batch d k"]) -> Depths:
        """Return the probability to be outside the set, given the first i variables of a member.

        ``probs`` are the conditionals along the members; all members may share one row. A node adds
        its categories that lead to no member, each node once, at its leader.
        """
        p = probs.movedim(-1, 0).contiguous()
        leaders = self.leaders[..., :-1]
        is_free = self.by_branch(True, (~self.valid).expand(leaders.shape))
        free = torch.where(is_free, p, 0.0).sum(0)
        counts = self.valid & self.is_leader[..., :-1]
        members = self.members.unsqueeze(0)
        step = p.expand(self.k, *members.shape[1:]).gather(0, members).squeeze(0)
        below = suffix_sums(torch.where(counts, free, 0.0), step)
        if len(below) > 1:
            below = torch.where(self.valid, below, 0.0)
            below = torch.zeros_like(below).scatter_add(0, leaders, below).gather(0, leaders)
        return pad(below, (0, 1))

    def walk(self, remaining: Depths, draws: int) -> "Walk | Steps":
        """Return what chooses categories outside the set, block after block."""
        share = self.by_branch(1.0, torch.where(self.valid, remaining[..., 1:], 1.0))
        return (Walk if len(self.members) <= FEW else Steps)(self, share, draws)


def prefix_tree(members: Members, valid: Valid | None, sizes: tuple[int, ...]) -> PrefixTree:
    """Return the tree of the valid members (None: all).

    >>> members = torch.tensor([[0, 1, 1], [0, 1, 0], [1, 1, 0]])
    >>> prefix_tree(members, None, (2, 2, 2)).leaders
    tensor([[0, 0, 0, 0],
            [0, 0, 0, 1],
            [0, 2, 2, 2]])
    """
    if valid is None:
        valid = torch.ones_like(members[..., 0], dtype=torch.bool)
    k = max(sizes)
    find = _leaders_by_pairs if len(members) <= FEW else _leaders_by_steps
    leaders = find(members, valid, k)
    branch = leaders[..., :-1].add(members, alpha=len(members))
    return PrefixTree(members, valid.unsqueeze(-1), leaders, branch, k)


def row_numbers(members: Tensor) -> Int64[Tensor, "m *ones"]:
    """Return the number of every row, with as many dimensions as ``members`` has."""
    numbers = torch.arange(len(members), device=members.device)
    return numbers.view(-1, *[1] * (members.dim() - 1))


def _leaders_by_pairs(members: Members, valid: Valid, k: int) -> Int64[Tensor, "m *batch depths"]:
    """Return the leaders from the comparison of every member with the earlier ones."""
    number = row_numbers(members).to(torch.int8)
    invalid = ~valid.unsqueeze(-1)
    shape = (*members.shape[1:-1], members.shape[-1] + 1)
    leaders = [torch.zeros(shape, dtype=torch.int8, device=members.device)]
    for m in range(1, len(members)):
        agrees = pad(_prefixes_agree(members[m], members[:m]), (1, 0), value=True)
        is_other = ~agrees | invalid[:m] | invalid[m]
        leaders.append(reduce(torch.minimum, torch.where(is_other, number[m], number[:m])))
    return torch.stack(leaders).long()


def _prefixes_agree(a: Tensor, b: Tensor) -> Bool[Tensor, "*rows d"]:
    """Return whether a and b agree in the variables up to each one."""
    return (a == b).cumprod(-1, dtype=torch.int8).bool()


def _leaders_by_steps(members: Members, valid: Valid, k: int) -> Int64[Tensor, "m *batch depths"]:
    """Return the leaders, variable by variable."""
    m = len(members)
    number = row_numbers(valid)
    rank = torch.where(valid, number, m)
    leader = torch.where(valid, rank.amin(0), number)
    leaders = [leader]
    for category in members.unbind(-1):
        branch = category * m + leader
        first = torch.full((k * m, *leader.shape[1:]), m, device=members.device)
        first = first.scatter_reduce(0, branch, rank, "amin").gather(0, branch)
        leader = torch.where(valid, first, number)
        leaders.append(leader)
    return torch.stack(leaders, -1)


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
    """Draws along every member at once, all variables of a block together, for few members.

    The category that a draw takes after the prefix of a member does not depend on whether it has
    that prefix. So these categories are chosen for all members; the draw follows a member as long
    as they agree.
    """

    def __init__(self, tree: PrefixTree, share: Float[Tensor, "k m *batch d"], draws: int) -> None:
        row = tree.leaders[..., :-1].unsqueeze(0)
        self.share = share.gather(1, row.expand(share.shape))
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


class Steps:
    """Draws that step from node to node, variable by variable, for many members.

    A draw outside all nodes stands in node m.
    """

    def __init__(self, tree: PrefixTree, share: Float[Tensor, "k m *batch d"], draws: int) -> None:
        self.outside = m = share.shape[1]
        beyond = torch.ones_like(share[:, :1])
        self.share = torch.cat([share, beyond], 1).movedim(-1, 0).contiguous()
        below = tree.by_branch(m, torch.where(tree.valid, tree.leaders[..., 1:], m))
        child = torch.cat([below, torch.full_like(below[:, :1], m)], 1)
        self.child = child.flatten(0, 1).movedim(-1, 0).contiguous()
        first = torch.where(tree.valid, row_numbers(tree.members), m).squeeze(-1).amin(0)
        self.node = first.expand(draws, *first.shape)
        self.depth = 0

    @property
    def is_inside(self) -> Bool[Tensor, "n *batch"]:
        """Whether the categories chosen so far are the first ones of a member."""
        return self.node != self.outside

    def choose(
        self, probs: Float[Tensor, "rows *batch v k"], u: Float[Tensor, "n *batch v"]
    ) -> Int64[Tensor, "n *batch v"]:
        """Return the categories of the next variables; all draws may share one row of probs."""
        p = probs.movedim(-1, 0)
        chosen = []
        for position in range(u.shape[-1]):
            share = self.share[self.depth, : len(p)]
            share = share.gather(1, self.node.expand(len(p), *self.node.shape))
            category = _choices(p[..., position], share, u[..., position])
            branch = category * (self.outside + 1) + self.node
            self.node = self.child[self.depth].gather(0, branch)
            self.depth += 1
            chosen.append(category)
        return torch.stack(chosen, -1)
