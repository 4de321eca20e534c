"""Distributions of dependent variables, with expectations by dynamic programming."""

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import one_hot

from ..distributions import Autoregressive, BayesianNetwork, MarkovChain, Node
from .problem import Problem, Size, normal, problem


@problem("chain", interactions=True, relaxable=False)
def chain(size: Size, seed: int) -> Problem:
    r"""A Markov chain with one transition for all steps: the effect of a choice fades.

    .. math:: f(z) = \sum_t r_t(z_t) + \sum_t J(z_t, z_{t+1})
    """
    length, k = {"small": (6, 3), "large": (40, 5)}[size]
    initial, transition, rewards, pairs = normal(seed, (k,), (k, k), (length, k), (k, k))

    def law(initial: Tensor, transition: Tensor) -> Distribution:
        return MarkovChain(initial, transition, length=length)

    def f(z: Tensor) -> Tensor:
        return rewards[torch.arange(length), z].sum(-1) + pairs[z[..., :-1], z[..., 1:]].sum(-1)

    def expectation(initial: Tensor, transition: Tensor) -> Tensor:
        marginal, step = initial.softmax(-1), transition.softmax(-1)
        total = marginal @ rewards[0]
        for t in range(1, length):
            joint = marginal.unsqueeze(-1) * step
            marginal = joint.sum(-2)
            total = total + (joint * pairs).sum((-1, -2)) + marginal @ rewards[t]
        return total

    return Problem(f, (initial, transition), law, expectation=expectation)


@problem("bayesian-network", interactions=True, relaxable=False)
def bayesian_network(size: Size, seed: int) -> Problem:
    r"""A ladder with two parents per node: independent within a rung, dependent along the rails.

    .. math:: q(a, b) = \prod_t q(a_t \mid a_{t-1}, b_{t-1})\, q(b_t \mid a_{t-1}, b_{t-1}), \qquad
        f(a, b) = \sum_t g_t(a_t, b_t)

    The event is :math:`a_1, b_1, a_2, b_2, \dots`
    """
    rungs, k = {"small": (4, 2), "large": (12, 4)}[size]
    roots, tables, costs = normal(seed, (2, k), (rungs - 1, 2, k, k, k), (rungs, k, k))

    def law(roots: Tensor, tables: Tensor) -> Distribution:
        nodes = {"a0": Node([], roots[..., 0, :]), "b0": Node([], roots[..., 1, :])}
        for t in range(1, rungs):
            parents = [f"a{t - 1}", f"b{t - 1}"]
            for side, name in enumerate("ab"):
                nodes[f"{name}{t}"] = Node(parents, tables[..., t - 1, side, :, :, :])
        return BayesianNetwork(nodes, roots.shape[:-2])

    def f(x: Tensor) -> Tensor:
        rung = x.unflatten(-1, (rungs, 2))
        return costs[torch.arange(rungs), rung[..., 0], rung[..., 1]].sum(-1)

    def expectation(roots: Tensor, tables: Tensor) -> Tensor:
        first, steps = roots.softmax(-1), tables.softmax(-1)
        joint = first[..., 0, :, None] * first[..., 1, None, :]
        total = (joint * costs[0]).sum((-1, -2))
        for t in range(1, rungs):
            a, b = steps[..., t - 1, 0, :, :, :], steps[..., t - 1, 1, :, :, :]
            joint = torch.einsum("...xy,...xya,...xyb->...ab", joint, a, b)
            total = total + (joint * costs[t]).sum((-1, -2))
        return total

    return Problem(f, (roots, tables), law, expectation=expectation)


class ByDepth:
    """A network that looks up the next token's logits by the number of open brackets.

    Args:
        table: ``[*batch, 2 * deepest + 1, 3]``.
    """

    def __init__(self, table: Tensor) -> None:
        self.table = table
        self.deepest = table.shape[-2] // 2

    def rows(self, depth: Tensor) -> Tensor:
        """Return the one-hot row of the table for a depth; larger depths share the last row."""
        row = depth.clamp(-self.deepest, self.deepest) + self.deepest
        return one_hot(row, self.table.shape[-2]).to(self.table.dtype)

    def all_logits(self, x: Tensor) -> Tensor:
        after = change(x).cumsum(-1)
        return self.rows(after - change(x)) @ self.table

    def start(self, lead: torch.Size) -> Tensor:
        return torch.zeros(lead, dtype=torch.int64)

    def step(self, depth: Tensor, i: int, previous: Tensor | None) -> tuple[Tensor, Tensor]:
        depth = depth if previous is None else depth + change(previous)
        return (self.rows(depth).unsqueeze(-2) @ self.table).squeeze(-2), depth


def change(token: Tensor) -> Tensor:
    """Return the change of depth: token 0 is a letter, 1 opens a bracket, 2 closes one."""
    return (token == 1).long() - (token == 2).long()


@problem("autoregressive", interactions=True, relaxable=False)
def autoregressive(size: Size, seed: int) -> Problem:
    r"""A sequence model with one reward at the end: every token depends on all earlier ones.

    .. math:: f(x) = \alpha^{\text{steps with more brackets closed than opened}}\;
        \beta^{|\text{brackets left open}|}

    Tokens are a letter, an opening and a closing bracket; the logits depend on the number of open
    brackets.
    """
    length, deepest = {"small": (6, 2), "large": (30, 5)}[size]
    below_zero, left_open = 0.7, 0.6
    (table,) = normal(seed, (2 * deepest + 1, 3))

    def law(table: Tensor) -> Distribution:
        return Autoregressive(ByDepth(table), [3] * length, table.shape[:-2], dtype=table.dtype)

    def f(x: Tensor) -> Tensor:
        depth = change(x).cumsum(-1)
        below, still_open = (depth < 0).sum(-1), depth[..., -1].abs()
        return below_zero ** below.double() * left_open ** still_open.double()

    depths = torch.arange(-length, length + 1)
    reward = below_zero ** (depths < 0).double()

    def expectation(table: Tensor) -> Tensor:
        steps = (ByDepth(table).rows(depths) @ table).softmax(-1)
        # The weight of a depth is its probability times the reward so far.
        weight = (depths == 0).to(table.dtype)
        for _ in range(length):
            letter, opens, closes = (weight.unsqueeze(-1) * steps).unbind(-1)
            weight = (letter + opens.roll(1, -1) + closes.roll(-1, -1)) * reward
        return weight @ left_open ** depths.abs().double()

    return Problem(f, (table,), law, expectation=expectation)
