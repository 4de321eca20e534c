"""Dependent variables and counts.

    python -m benchmarks.structured     # quality/structured_variance.csv, quality/counts.csv,
                                        # speed/structured_steps.csv

"variance": at the evaluations of SCateR with one and with four samples. `variance` is summed over
the parameters, `relative_to_rloo` is its ratio to RLOO's, with a 95 % interval by the delta method.

"counts": the variance of the gradient in the rates of 16 Poisson counts: differences, and
estimators of truncated counts. f is a weighted sum, the square of its distance from a target, or
the cross-entropy of a random decoder of the counts' square roots.

"steps": the time of `RLOO(4)` and its backward pass beside code by hand, which makes q, draws,
scores and evaluates in one forward pass: a VAE of two layers of bits, a GRU that writes 8 letters
for a prompt, and a tagger of 10 steps (a chain's CRF). Batch 32; one thread, in turns, `ratio` is
the median over the turns.
"""

import time
from collections.abc import Callable
from itertools import product
from math import exp, hypot
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Poisson
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot, softplus

import catlog
from catlog.distributions import (
    Autoregressive,
    BayesianNetwork,
    LinearChainCRF,
    MarkovChain,
    Node,
    lost_mass,
    truncated,
)  # fmt: skip
from catlog.problems.mlp import mlp

from .measuring import Args, Page, Row, Rows, Table, median_ratio, moments, randn, seconds_in_turns

page = Page(__doc__)
Problem = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Distribution], Tensor]


def scores(x: Tensor, table: Tensor) -> Tensor:
    """Return the sum over variables i of ``table[i, x_i]``."""
    return table[torch.arange(x.shape[-1]), x].sum(-1)


def additive_and_pairwise(x: Tensor) -> Tensor:
    pairs = randn(4, 4, seed=2)[x[..., :-1], x[..., 1:]].sum(-1)
    return scores(x, randn(5, 4, seed=1)) + pairs


def interactions(x: Tensor) -> Tensor:
    """Return a random number for every point: one point says nothing about another."""
    return randn(4**5, seed=3)[(x * 4 ** torch.arange(5)).sum(-1)]


def chain(theta: Tensor) -> Distribution:
    """Return five variables of four states, with a separate table for every step."""
    return MarkovChain(theta[..., :4], theta[..., 4:].unflatten(-1, (4, 4, 4)))


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


def dag(theta: Tensor) -> Distribution:
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


# Machine replacement. States are wear 0 (new) to 3 (broken), actions are keep and replace. A kept
# machine wears by 0, 1 or 2.
HORIZON, WEAR, DISCOUNT = 6, 4, 0.9
OPERATING, REPLACEMENT = torch.tensor([0.0, 0.5, 1.5, 4.0]), 2.5
KEEP = torch.tensor(
    [[0.5, 0.4, 0.1, 0.0], [0.0, 0.5, 0.4, 0.1], [0.0, 0.0, 0.5, 0.5], [0.0, 0.0, 0.0, 1.0]]
)
WEARS = torch.stack([KEEP, KEEP[:1].expand(4, 4)], 1).log()  # [state, action, next state]


def mdp(theta: Tensor) -> Distribution:
    """Return a_1, s_2, a_2, ..., s_7 from a new machine; all steps share the action logits."""
    policy, batch = theta.unflatten(-1, (WEAR, 2)), theta.shape[:-1]
    nodes = {"a1": Node([], policy[..., 0, :])}
    nodes["s2"] = Node(["a1"], WEARS[0].expand(*batch, 2, WEAR))
    for t in range(2, HORIZON + 1):
        nodes[f"a{t}"] = Node([f"s{t}"], policy)
        nodes[f"s{t + 1}"] = Node([f"s{t}", f"a{t}"], WEARS.expand(*batch, WEAR, 2, WEAR))
    return BayesianNetwork(nodes, batch)


def discounted_return(x: Tensor) -> Tensor:
    """Return minus the discounted costs: a replacement or the operation in a step's state."""
    action, state = x[..., ::2], torch.cat([torch.zeros_like(x[..., :1]), x[..., 1::2]], -1)
    cost = torch.where(action == 1, REPLACEMENT, OPERATING[state[..., :-1]])
    cost = torch.cat([cost, OPERATING[state[..., -1:]]], -1)
    return -(cost * DISCOUNT ** torch.arange(HORIZON + 1)).sum(-1)


PROBLEMS: dict[str, Problem] = {
    "chain": (additive_and_pairwise, chain, randn(68, seed=10)),
    "chain, interactions": (interactions, chain, randn(68, seed=10)),
    "dag": (nonlinear, dag, randn(sum(TABLE_SIZES), seed=11)),
    "mdp": (discounted_return, mdp, randn(8, seed=30)),
}


@page.section("quality/structured_variance.csv", "problem", "budget", "method")
def variance(args: Args, table: Table) -> Rows:
    repeats = 40 if args.quick else 1000
    for (problem, (f, law, theta)), samples in product(PROBLEMS.items(), (1, 4)[: 2 - args.quick]):
        n = catlog.SCateR(samples).evaluations(law(theta))
        methods: dict[str, Any] = {
            "RLOO": catlog.RLOO(n),
            "Reinforce": catlog.Reinforce(n),
            "LEG": catlog.estimators.LEG(samples),
            "RAM": catlog.estimators.RAM(samples),
            "SCateR": catlog.SCateR(samples),
            "SCateR, common": catlog.SCateR(samples, suffix="common"),
            "CritiCateR": catlog.CritiCateR(n),
        }
        found = {name: moments(E, f, law, [theta], repeats) for name, E in methods.items()}
        rloo, rows = found["RLOO"], []
        for name, ours in found.items():
            ratio = ours.variance / rloo.variance
            factor = exp(1.96 * hypot(ours.error, rloo.error)) if name != "RLOO" else 1.0
            row: Row = {"problem": problem, "method": name, "budget": samples, "evaluations": n}
            row |= {"variance": ours.variance, "relative_to_rloo": ratio}
            row |= {"low_95": ratio / factor, "high_95": ratio * factor, "repeats": repeats}
            rows.append(row)
        yield rows


@page.section("quality/counts.csv", "function", "estimator")
def counts(args: Args, table: Table) -> Rows:
    d, k, repeats = 16, 24, 20 if args.quick else 2000
    torch.manual_seed(0)
    weights, network = torch.randn(d), mlp(d, 64, 64)
    bits, rate = torch.randint(0, 2, (64,)).float(), torch.linspace(0.5, 4.0, d)

    def decoder(z: Tensor) -> Tensor:
        logits = 3 * network(z.float().sqrt())
        return (softplus(logits) - bits * logits).sum(-1)

    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "linear": lambda z: z.float() @ weights,
        "quadratic": lambda z: (z.float() @ weights - 3).square(),
        "decoder": decoder,
    }

    def poisson(rate: Tensor) -> Distribution:
        return Independent(Poisson(rate, validate_args=False), 1)

    def cut(rate: Tensor) -> Distribution:
        return truncated(poisson(rate), categories=k)

    sides: dict[str, tuple[Any, Callable[[Tensor], Distribution]]] = {
        "CountDifferences(1)": (catlog.estimators.CountDifferences(1), poisson),
        "RLOO(17), truncated": (catlog.RLOO(1 + d), cut),
        "CritiCateR(17), truncated": (catlog.CritiCateR(1 + d), cut),
        "IndeCateR(1), truncated": (catlog.IndeCateR(1), cut),
    }
    for (name, f), (label, (E, make_q)) in product(functions.items(), sides.items()):
        found = moments(E, f, make_q, [rate], repeats)
        row: Row = {"function": name, "estimator": label, "repeats": repeats}
        row |= {"evaluations": E.evaluations(make_q(rate)), "variance": found.variance}
        row |= {"error": found.error * found.variance}
        row["squared_norm"] = float(found.mean.square().sum())
        yield [
            row | {"lost_mass": 0.0 if make_q is poisson else float(lost_mass(poisson(rate), k))}
        ]


DRAWS, BATCH = 4, 32
E = catlog.RLOO(DRAWS)  # made once, as in training
Step = Callable[[], Tensor]


def rloo(fx: Tensor, log_prob: Tensor) -> Tensor:
    """Return the mean of f, with the gradient of RLOO, as one writes it by hand."""
    advantage = (fx.detach() - fx.detach().mean(0)) * (len(fx) / (len(fx) - 1))
    surrogate = fx + advantage * log_prob
    return surrogate.mean(0) - (surrogate - fx).detach().mean(0)


def cross_entropy(logits: Tensor, bits: Tensor) -> Tensor:
    logits, bits = torch.broadcast_tensors(logits, bits)
    return binary_cross_entropy_with_logits(logits, bits, reduction="none").sum(-1)


def choose(logits: Tensor) -> Tensor:
    """Return a category of each row of logits."""
    probs = logits.detach().softmax(-1)
    return probs.flatten(0, -2).multinomial(1).view(probs.shape[:-1])


def vae() -> tuple[Step, Step]:
    """The bound of a VAE with two layers, 8 and 24 bits, for images of 14 x 14 pixels."""
    batch = 100
    images = (torch.rand(batch, 196) < 0.3).float()
    encoder, middle, prior, decoder = (
        mlp(*sizes) for sizes in ((196, 128, 8), (8, 128, 24), (8, 128, 24), (24, 128, 196))
    )

    def bound(z2: Tensor, z1: Tensor, log_q: Tensor) -> Tensor:
        return cross_entropy(decoder(z1), images) + cross_entropy(prior(z2), z1) + log_q.detach()

    def ours() -> Tensor:
        nodes = {
            "z2": Node([], encoder(images), size=8, bits=True),
            "z1": Node(["z2"], lambda z: middle(z.float()), size=24, bits=True),
        }
        q = BayesianNetwork(nodes, [batch])
        return E(lambda z: bound(z[..., :8].float(), z[..., 8:].float(), q.log_prob(z)), q)

    def by_hand() -> Tensor:
        first = encoder(images)
        z2 = (torch.rand(DRAWS, *first.shape) < first.sigmoid()).float()
        second = middle(z2)
        z1 = (torch.rand(second.shape) < second.sigmoid()).float()
        log_q = -cross_entropy(first, z2) - cross_entropy(second, z1)
        return rloo(bound(z2, z1, log_q), log_q)

    return ours, by_hand


class Policy(nn.Module):
    """A GRU that writes letters for a prompt."""

    def __init__(self, prompts: Tensor) -> None:
        super().__init__()
        self.prompts, self.read = prompts, nn.Linear(10, 32)
        self.cell, self.out = nn.GRUCell(6, 32), nn.Linear(32, 6)

    def start(self, lead: torch.Size) -> Tensor:
        return self.read(self.prompts).expand(*lead, -1)

    def step(self, state: Tensor, i: int, previous: Tensor | None) -> tuple[Tensor, Tensor]:
        if previous is not None:
            letters = one_hot(previous, 6).float()
            state = self.cell(letters.flatten(0, -2), state.flatten(0, -2)).view(state.shape)
        return self.out(state), state


def gru() -> tuple[Step, Step]:
    policy, goal = Policy(torch.randn(BATCH, 10)), torch.randint(6, (BATCH, 8))

    def f(x: Tensor) -> Tensor:
        return (x != goal).float().mean(-1)

    def ours() -> Tensor:
        return E(f, Autoregressive(policy, [6] * 8, [BATCH]))

    def by_hand() -> Tensor:
        state, letter, x, log_probs = policy.start(torch.Size([DRAWS, BATCH])), None, [], []
        for i in range(8):
            logits, state = policy.step(state, i, letter)
            letter = choose(logits)
            x.append(letter)
            log_probs.append(logits.log_softmax(-1).gather(-1, letter.unsqueeze(-1)))
        return rloo(f(torch.stack(x, -1)), torch.cat(log_probs, -1).sum(-1))

    return ours, by_hand


def crf() -> tuple[Step, Step]:
    words, tags = torch.randn(BATCH, 10, 16), torch.randint(5, (BATCH, 10))
    read, pairwise = nn.Linear(16, 5), torch.randn(5, 5, requires_grad=True)

    def f(x: Tensor) -> Tensor:
        return (x != tags).float().mean(-1)

    def ours() -> Tensor:
        return E(f, LinearChainCRF(read(words), pairwise))

    def by_hand() -> Tensor:
        unary = read(words)
        ahead = [unary[:, -1]]  # the weight of a state and of all that may follow it
        for t in range(8, -1, -1):
            ahead.append(unary[:, t] + (pairwise + ahead[-1].unsqueeze(-2)).logsumexp(-1))
        log_partition = ahead[-1].logsumexp(-1)
        with torch.no_grad():
            states = [choose(ahead[-1].expand(DRAWS, -1, -1))]
            for weight in ahead[-2::-1]:
                states.append(choose(pairwise[states[-1]] + weight))
            x = torch.stack(states, -1)
        weight = unary.expand(DRAWS, -1, -1, -1).gather(-1, x.unsqueeze(-1)).sum((-1, -2))
        log_prob = weight + pairwise[x[..., :-1], x[..., 1:]].sum(-1) - log_partition
        return rloo(f(x), log_prob)

    return ours, by_hand


STEPS = {"BayesianNetwork": vae, "Autoregressive": gru, "LinearChainCRF": crf}


@page.section("speed/structured_steps.csv", "q")
def steps(args: Args, table: Table) -> Rows:
    for name, make in STEPS.items():
        torch.manual_seed(0)
        ours, by_hand = make()
        calls: dict[str, Step] = {"catlog": ours, "by hand": by_hand}
        backward = {how: lambda call=call: call().sum().backward() for how, call in calls.items()}
        rounds = 2 if args.quick else 400
        took = seconds_in_turns(backward, rounds, warm_up=20, clock=time.process_time)
        row: Row = {"q": name, "hand_us": 1e6 * median(took["by hand"])}
        yield [row | {"ratio": median_ratio(took["catlog"], took["by hand"])}]


if __name__ == "__main__":
    page.run()
