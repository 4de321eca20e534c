"""A set of points as a tree of their prefixes: the probability outside the set, and draws from it.

Two members stand in the same node at depth i if their first i variables agree. The first valid
member of a node is its leader, and numbers of a node are kept in the leader's place. Nothing here
loops over pairs of a member and a variable: m members of d variables take O(m d k) numbers. Few
members are compared in pairs, all variables at once. Many are followed variable by variable.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.functional import pad

from ...distributions.inverse_cdf import inverse_cdf

FEW = 8  # members; pairs of more take longer than a loop over the variables


@dataclass(frozen=True)
class PrefixTree:
    """Members, their leaders, and which members count.

    Attributes:
        members: category numbers, in drawing order.
        valid: members that are in the set. An invalid one is its own leader, in no node.
        leaders: the leaders of the node at each depth, 0 to d.
        k: number of categories.
    """

    members: Int64[Tensor, "*batch d m"]
    valid: Bool[Tensor, "*batch 1 m"]
    leaders: Int64[Tensor, "*batch depths m"]
    k: int

    @property
    def branch(self) -> Int64[Tensor, "*batch d m"]:
        """The place of each member's next category among those of its node, leader * k + category."""
        return self.leaders[..., :-1, :] * self.k + self.members

    def remaining(self, probs: Float[Tensor, "m *batch d k"]) -> Float[Tensor, "m *batch depths"]:
        """Return the probability to be outside the set, given the first i variables of a member.

        ``probs`` are the conditionals along the members. A node adds its categories that lead to no
        member, each node once, at its leader.
        """
        p = probs.movedim(0, -2)
        leaders = self.leaders[..., :-1, :]
        taken = p.new_zeros(p.flatten(-2).shape).scatter(
            -1, self.branch, self.valid.expand(leaders.shape).to(p.dtype)
        )
        free = (p * (1 - taken.unflatten(-1, p.shape[-2:]))).sum(-1)
        is_leader = self.valid & (leaders == torch.arange(p.shape[-2], device=p.device))
        step = p.gather(-1, self.members.unsqueeze(-1)).squeeze(-1)
        below = suffix_sums(torch.where(is_leader, free, 0.0), step)
        if p.shape[-2] > 1:
            below = torch.zeros_like(below).scatter_add(
                -1, leaders, torch.where(self.valid, below, 0.0)
            )
            below = below.gather(-1, leaders)
        return pad(below, (0, 0, 0, 1)).movedim(-1, 0)

    def walk(self, remaining: Float[Tensor, "m *batch depths"], draws: int) -> "Walk | Steps":
        """Return what chooses categories outside the set, block after block."""
        outside = remaining.movedim(0, -1)[..., 1:, :]
        share = torch.ones_like(outside).repeat_interleave(self.k, -1)
        share = share.scatter(-1, self.branch, torch.where(self.valid, outside, 1.0))
        share = share.unflatten(-1, (-1, self.k))
        return (Walk if self.members.shape[-1] <= FEW else Steps)(self, share, draws)


def prefix_tree(
    members: Int64[Tensor, "m *batch d"],
    valid: Bool[Tensor, "m *batch"] | None,
    cardinalities: tuple[int, ...],
) -> PrefixTree:
    """Return the tree of the valid members (None: all).

    >>> members = torch.tensor([[0, 1, 1], [0, 1, 0], [1, 1, 0]])
    >>> prefix_tree(members, None, (2, 2, 2)).leaders.T
    tensor([[0, 0, 0, 0],
            [0, 0, 0, 1],
            [0, 2, 2, 2]])
    """
    if valid is None:
        valid = torch.ones_like(members[..., 0], dtype=torch.bool)
    members, valid = members.movedim(0, -1), valid.movedim(0, -1).unsqueeze(-2)
    k = max(cardinalities)
    find = _leaders_by_pairs if members.shape[-1] <= FEW else _leaders_by_steps
    return PrefixTree(members, valid, find(members, valid, k), k)


def _leaders_by_pairs(
    members: Int64[Tensor, "*batch d m"], valid: Bool[Tensor, "*batch 1 m"], k: int
) -> Int64[Tensor, "*batch depths m"]:
    """Return the leaders from the comparison of all pairs of members."""
    agree = (members.unsqueeze(-1) == members.unsqueeze(-2)).cumprod(-3)
    agree = pad(agree, (0, 0, 0, 0, 1, 0), value=1) * valid.unsqueeze(-2)
    own = torch.arange(members.shape[-1], device=members.device)
    return torch.where(valid, agree.argmax(-1), own)


def _leaders_by_steps(
    members: Int64[Tensor, "*batch d m"], valid: Bool[Tensor, "*batch 1 m"], k: int
) -> Int64[Tensor, "*batch depths m"]:
    """Return the leaders, variable by variable."""
    m = members.shape[-1]
    own = torch.arange(m, device=members.device)
    is_valid = valid.squeeze(-2)
    rank = torch.where(is_valid, own, m)
    leader = torch.where(is_valid, rank.amin(-1, keepdim=True), own)
    leaders = [leader]
    for category in members.unbind(-2):
        branch = leader * k + category
        first = torch.full((*leader.shape[:-1], m * k), m, device=members.device)
        first = first.scatter_reduce(-1, branch, rank, "amin").gather(-1, branch)
        leader = torch.where(is_valid, first, own)
        leaders.append(leader)
    return torch.stack(leaders, -2)


def suffix_sums(
    term: Float[Tensor, "*batch d m"], step: Float[Tensor, "*batch d m"]
) -> Float[Tensor, "*batch d m"]:
    """Return s_i = term_i + step_i s_{i+1} in log2(d) rounds, each of which doubles the range.

    >>> suffix_sums(torch.ones(3, 1), torch.tensor([[0.5], [2.0], [7.0]])).T
    tensor([[2.5000, 3.0000, 1.0000]])
    """
    shift = 1
    while shift < term.shape[-2]:
        after, further = (pad(part[..., shift:, :], (0, 0, 0, shift)) for part in (term, step))
        term, step = term + step * after, step * further
        shift *= 2
    return term


def _choices(probs: Tensor, share: Tensor | float, u: Tensor) -> Tensor:
    """Return categories by their share outside the set; by all of it if nothing is outside."""
    outside = probs * share
    total = outside.sum(-1, keepdim=True)
    outside = torch.where(total > 0, outside, probs)
    return inverse_cdf(outside, u * outside.sum(-1))


class Walk:
    """Draws along every member at once, all variables of a block together, for few members.

    The category that a draw takes after the prefix of a member does not depend on whether it has
    that prefix. So these categories are chosen for all members; the draw follows a member as long
    as they agree.
    """

    def __init__(self, tree: PrefixTree, share: Tensor, draws: int) -> None:
        row = tree.leaders[..., :-1, :].unsqueeze(-1)
        self.share = share.gather(-2, row.expand(share.shape))
        self.members = tree.members
        self.stays = tree.valid.expand(draws, *tree.valid.shape)
        self.depth = 0

    def choose(
        self, probs: Float[Tensor, "n *batch v k"], u: Float[Tensor, "n *batch v"]
    ) -> Int64[Tensor, "n *batch v"]:
        """Return the categories of the next variables."""
        block = slice(self.depth, self.depth + u.shape[-1])
        self.depth = block.stop
        k = probs.shape[-1]
        share = self.share[..., block, :, :k]
        along = _choices(probs.unsqueeze(-2), share, u.unsqueeze(-1))  # [n, *batch, v, m]
        agrees = (along == self.members[..., block, :]).cumprod(-2) > 0
        after = self.stays & agrees
        stays = torch.cat([self.stays.expand(after[..., :1, :].shape), after[..., :-1, :]], -2)
        self.stays = after[..., -1:, :]
        followed = torch.where(stays, along, -1).amax(-1)
        return torch.where(followed >= 0, followed, _choices(probs, 1.0, u))


class Steps:
    """Draws that step from node to node, variable by variable, for many members.

    A draw outside all nodes stands in node m.
    """

    def __init__(self, tree: PrefixTree, share: Tensor, draws: int) -> None:
        m, self.k = share.shape[-2:]
        self.share = pad(share, (0, 0, 0, 1), value=1.0)
        child = torch.full(
            (*share.shape[:-2], (m + 1) * self.k), m, dtype=torch.int64, device=share.device
        )
        below = torch.where(tree.valid, tree.leaders[..., 1:, :], m)
        self.child = child.scatter(-1, tree.branch, below)
        rank = torch.where(tree.valid, torch.arange(m, device=share.device), m)
        self.node = rank.squeeze(-2).amin(-1).expand(draws, *rank.shape[:-2])
        self.depth = 0

    def choose(
        self, probs: Float[Tensor, "n *batch v k"], u: Float[Tensor, "n *batch v"]
    ) -> Int64[Tensor, "n *batch v"]:
        """Return the categories of the next variables."""
        chosen = []
        for p, uniform in zip(probs.unbind(-2), u.unbind(-1), strict=True):
            share = self.share[..., self.depth, :, : p.shape[-1]].expand(len(u), *[-1] * (p.dim()))
            row = self.node[..., None, None].expand(*self.node.shape, 1, p.shape[-1])
            category = _choices(p, share.gather(-2, row).squeeze(-2), uniform)
            child = self.child[..., self.depth, :].expand(len(u), *[-1] * (p.dim() - 1))
            branch = (self.node * self.k + category).unsqueeze(-1)
            self.node = child.gather(-1, branch).squeeze(-1)
            self.depth += 1
            chosen.append(category)
        return torch.stack(chosen, -1)
