"""Five problems with dependent variables: chains, a graph, a transformer, a decision process.

They are not in `catlog.problems`, where every problem has a reference gradient at two sizes.
"""

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from catlog.distributions import Autoregressive, BayesianNetwork, MarkovChain, Node, Ordered
from catlog.problems import Problem


def randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def scores(x: Tensor, table: Tensor) -> Tensor:
    """Return the sum over variables i of ``table[i, x_i]``."""
    return table[torch.arange(x.shape[-1]), x].sum(-1)


def bigrams(x: Tensor, table: Tensor) -> Tensor:
    """Return the sum over neighbours of ``table[x_i, x_{i+1}]``."""
    return table[x[..., :-1], x[..., 1:]].sum(-1)


def chain(theta: Tensor) -> Ordered:
    """Return five variables of four states, with a separate table for every step."""
    return MarkovChain(theta[..., :4], theta[..., 4:].unflatten(-1, (4, 4, 4)))


def additive_and_pairwise(x: Tensor) -> Tensor:
    return scores(x, randn(5, 4, seed=1)) + bigrams(x, randn(4, 4, seed=2))


def interactions(x: Tensor) -> Tensor:
    """Return a random number for every point: one point says nothing about another."""
    return randn(4**5, seed=3)[(x * 4 ** torch.arange(5)).sum(-1)]


# Nodes with their parents, the shape of their table and the size of their block.
DAG: dict[str, tuple[list[str], tuple[int, ...], int]] = {
    "a": ([], (3,), 1),
    "b": ([], (2,), 1),
    "c": (["a", "b"], (3, 2, 4), 1),
    "d": (["c"], (4, 2), 1),
    "e": (["c"], (4, 2, 3), 2),
    "f": (["d", "e"], (2, 3, 3, 3), 1),
    "g": (["a"], (3, 5), 1),
    "h": (["f", "g"], (3, 5, 2), 1),
}
TABLE_SIZES = [torch.Size(shape).numel() for _, shape, _ in DAG.values()]


def dag(theta: Tensor) -> Ordered:
    """Return eight nodes with two to five categories; e is a block of two variables."""
    tables = theta.split(TABLE_SIZES, -1)
    nodes = {
        name: Node(parents, table.unflatten(-1, shape), size=size)
        for (name, (parents, shape, size)), table in zip(DAG.items(), tables, strict=True)
    }
    return BayesianNetwork(nodes, theta.shape[:-1])


def nonlinear(x: Tensor) -> Tensor:
    bounded = scores(x, randn(9, 5, seed=4)).mul(0.5).tanh()
    return 3 * bounded + 0.1 * scores(x, randn(9, 5, seed=5)).square()


class Transformer:
    """A causal transformer whose weights are all entries of the flat ``theta``.

    It gives all conditionals in one teacher-forced call, or token by token with a cache of keys and
    values.
    """

    width, heads, layers, vocabulary, length = 16, 2, 2, 8, 12
    shapes = (
        (vocabulary + 1, width),  # the last token is the start
        (length, width),
        *((width, 3 * width), (width, width), (width, 2 * width), (2 * width, width)) * layers,
        (width, vocabulary),
    )

    def __init__(self, theta: Tensor) -> None:
        parts = theta.split([rows * columns for rows, columns in self.shapes])
        weights = [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        self.token = weights[0]
        self.position = weights[1]
        self.out = weights[-1]
        self.blocks = [weights[2 + 4 * layer : 6 + 4 * layer] for layer in range(self.layers)]

    @classmethod
    def random(cls, seed: int) -> Tensor:
        """Draw embeddings of scale 1, weights that keep the scale, and logits of scale 1.5."""
        scales = [
            1.0,
            0.5,
            *[shape[0] ** -0.5 for shape in cls.shapes[2:-1]],
            1.5 * cls.width**-0.5,
        ]
        pairs = enumerate(zip(scales, cls.shapes, strict=True))
        return torch.cat(
            [scale * randn(rows * columns, seed=seed + i) for i, (scale, (rows, columns)) in pairs]
        )

    def normal(self, h: Tensor) -> Tensor:
        return layer_norm(h, (self.width,))

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        query, key, value = (
            t.unflatten(-1, (self.heads, -1)).transpose(-2, -3) for t in (query, key, value)
        )
        weight = query @ key.mT * (self.width / self.heads) ** -0.5
        weight = weight if mask is None else weight.masked_fill(mask, -torch.inf)
        return (weight.softmax(-1) @ value).transpose(-2, -3).flatten(-2)

    def all_logits(self, x: Tensor) -> Tensor:
        start = torch.full_like(x[..., :1], self.vocabulary)
        h = self.token[torch.cat([start, x[..., :-1]], -1)] + self.position
        mask = torch.ones(self.length, self.length, dtype=torch.bool).triu(1)
        for qkv, project, up, down in self.blocks:
            h = h + self.attend(*(self.normal(h) @ qkv).chunk(3, -1), mask) @ project
            h = h + (self.normal(h) @ up).relu() @ down
        return self.normal(h) @ self.out

    def start(self, lead: torch.Size) -> Tensor:
        return self.token.new_zeros((*lead, self.layers, 0, 2 * self.width))

    def step(self, state: Tensor, i: int, previous: Tensor | None) -> tuple[Tensor, Tensor]:
        token = (
            self.token[self.vocabulary].expand(*state.shape[:-3], -1)
            if previous is None
            else self.token[previous]
        )
        h = (token + self.position[i]).unsqueeze(-2)
        caches = []
        for layer, (qkv, project, up, down) in enumerate(self.blocks):
            query, *pair = (self.normal(h) @ qkv).chunk(3, -1)
            caches.append(torch.cat([state[..., layer, :, :], torch.cat(pair, -1)], -2))
            h = h + self.attend(query, *caches[-1].chunk(2, -1)) @ project
            h = h + (self.normal(h) @ up).relu() @ down
        return (self.normal(h) @ self.out).squeeze(-2), torch.stack(caches, -3)


def transformer(theta: Tensor) -> Ordered:
    return Autoregressive(Transformer(theta), [Transformer.vocabulary] * Transformer.length)


def sequence_score(x: Tensor) -> Tensor:
    total = scores(x, randn(12, 8, seed=6)) + 0.5 * bigrams(x, randn(8, 8, seed=7))
    return 8 * (total / 8).tanh()


# Machine replacement. States are wear 0 (new) to 3 (broken), actions are keep and replace. A kept
# machine wears by 0, 1 or 2.
HORIZON, WEAR, DISCOUNT = 6, 4, 0.9
OPERATING, REPLACEMENT = torch.tensor([0.0, 0.5, 1.5, 4.0]), 2.5
KEEP = torch.tensor(
    [[0.5, 0.4, 0.1, 0.0], [0.0, 0.5, 0.4, 0.1], [0.0, 0.0, 0.5, 0.5], [0.0, 0.0, 0.0, 1.0]]
)
WEARS = torch.stack([KEEP, KEEP[:1].expand(4, 4)], 1).log()  # [state, action, next state]


def mdp(theta: Tensor) -> Ordered:
    """Return a_1, s_2, a_2, ..., s_7 from a new machine; all steps share the action logits."""
    policy = theta.unflatten(-1, (WEAR, 2))
    batch = theta.shape[:-1]
    nodes = {
        "a1": Node([], policy[..., 0, :]),
        "s2": Node(["a1"], WEARS[0].expand(*batch, 2, WEAR)),
    }
    for t in range(2, HORIZON + 1):
        nodes[f"a{t}"] = Node([f"s{t}"], policy)
        nodes[f"s{t + 1}"] = Node([f"s{t}", f"a{t}"], WEARS.expand(*batch, WEAR, 2, WEAR))
    return BayesianNetwork(nodes, batch)


def discounted_return(x: Tensor) -> Tensor:
    """Return minus the discounted costs.

    Every step costs a replacement or the operation in its state; the last state costs its
    operation.
    """
    action, state = x[..., ::2], torch.cat([torch.zeros_like(x[..., :1]), x[..., 1::2]], -1)
    cost = torch.where(action == 1, REPLACEMENT, OPERATING[state[..., :-1]])
    cost = torch.cat([cost, OPERATING[state[..., -1:]]], -1)
    return -(cost * DISCOUNT ** torch.arange(HORIZON + 1)).sum(-1)


PROBLEMS = [
    Problem(f, (theta.requires_grad_(),), law, name=name)
    for name, f, theta, law in (
        ("chain", additive_and_pairwise, randn(68, seed=10), chain),
        ("chain, interactions", interactions, randn(68, seed=10), chain),
        ("dag", nonlinear, randn(sum(TABLE_SIZES), seed=11), dag),
        ("transformer", sequence_score, Transformer.random(seed=12), transformer),
        ("mdp", discounted_return, randn(8, seed=30), mdp),
    )
]
