"""The problems of the benchmark of advice: small models to train, on synthetic data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, OneHotCategorical
from torch.distributions import kl_divergence as kl
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy_of_bits
from torch.nn.functional import cross_entropy, one_hot

from catlog.distributions import Autoregressive, MarkovChain, PlackettLuce, Subset

Function = Callable[[Tensor], Tensor]

INDEPENDENT = [
    *("IndeCateR(1)", "IndeCateR(2, sampling='latin')", "CritiCateR(8)", "ARMS(2)", "ARMS(4)"),
    *("SlopeCateR(1)", "SlopeCateR(1, every=4)", "SlopeCateR(2, every=4)"),
]
DEPENDENT = ["SCateR(1)", "RAM(1)", "CritiCateR(8)"]


@dataclass
class Problem:
    """A model to train.

    Attributes:
        trained: its parameters.
        question: returns f and q of a new minibatch of some size.
        target: the level to reach.
        table: the estimator that the page "Choose an estimator" starts with.
        rate: of Adam.
        draws: per element of the evaluation.
        penalty: what the loss adds, as a function of q.
        point: seconds that f takes per point, on the virtual clock.
        racers: the estimators besides RLOO.
    """

    trained: Sequence[Tensor]
    question: Callable[[int], tuple[Function, Distribution]]
    target: float
    table: str = "RLOO(4)"
    rate: float = 0.01
    draws: int = 8
    penalty: Callable[[Distribution], Tensor] | None = None
    point: float = 0.0
    racers: Sequence[str] = tuple(INDEPENDENT)


def bits(logits: Tensor) -> Distribution:
    return Independent(Bernoulli(logits=logits), 1)


def numbers(logits: Tensor) -> Distribution:
    return Independent(Categorical(logits=logits), 1)


def vectors(logits: Tensor) -> Distribution:
    return Independent(OneHotCategorical(logits=logits), 1)


def network(*sizes: int) -> nn.Sequential:
    layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*layers[:-1])


def images(pixels: int = 64, strokes: int = 10) -> Tensor:
    """Return black and white images, each a few strokes and noise."""
    codes = torch.bernoulli(torch.full((4000, strokes), 0.3))
    return (codes @ torch.randn(strokes, pixels) + 0.3 * torch.randn(4000, pixels) > 0.3).float()


def batch(data: Tensor, size: int) -> Tensor:
    return data[torch.randint(len(data), (size,))]


def spins() -> Problem:
    """40 bits in a field, with weaker interactions: a black box that costs nothing."""
    field, pairs = torch.randn(40), torch.randn(40, 40).triu(1) / 10
    logits = torch.zeros(40, requires_grad=True)

    def f(x: Tensor) -> Tensor:
        s = 2 * x.detach() - 1
        return (s @ pairs * s).sum(-1) + s @ field

    s = torch.randn(100, 40).sign()
    for i in [*range(40)] * 10:  # the lowest energy, by changes of single spins
        s[:, i] = -(field[i] + s @ (pairs + pairs.T)[i]).sign()
    best = f((s + 1) / 2).min().item()
    return Problem([logits], lambda _: (f, bits(logits)), 0.95 * best, "RLOO(16)", 0.03, 512)


def features() -> Problem:
    """Which of 16 features explain y? A fit takes 5 ms."""
    inputs = torch.randn(80, 16)
    y = inputs[:, :6].sum(1) + 0.5 * torch.randn(80)
    gram, moment = inputs.T @ inputs, inputs.T @ y / y.norm()
    logits = torch.zeros(16, requires_grad=True)

    def f(x: Tensor) -> Tensor:
        x = x.detach()
        system = gram * x.unsqueeze(-1) * x.unsqueeze(-2) + torch.eye(16)
        fit = torch.linalg.solve(system, (moment * x).unsqueeze(-1)).squeeze(-1)
        return 1 - (moment * x * fit).sum(-1) + 0.02 * x.sum(-1)

    ask = lambda _: (f, bits(logits))  # noqa: E731
    return Problem([logits], ask, 0.25, rate=0.05, draws=512, point=0.005)


def coded(
    law: Callable[[Tensor], Distribution], *shape: int, target: float, **penalty: Any
) -> Problem:
    """A code of this shape for an image of 64 pixels."""
    width = prod(shape)
    data, encoder, decoder = images(), network(64, 64, width), network(width, 64, 64)

    def question(size: int) -> tuple[Function, Distribution]:
        x = batch(data, size)

        def f(z: Tensor) -> Tensor:
            pixels = decoder(z.flatten(-len(shape)))
            return cross_entropy_of_bits(pixels, x.expand_as(pixels), reduction="none").sum(-1)

        return f, law(encoder(x).unflatten(-1, shape))

    trained = [*encoder.parameters(), *decoder.parameters()]
    return Problem(trained, question, target, rate=0.003, **penalty)


def autoencoder() -> Problem:
    """16 bits for an image."""
    return coded(bits, 16, target=18.0)


def codebook() -> Problem:
    """Eight one-hot codes with a prior."""
    penalty = lambda q: kl(q, vectors(torch.zeros_like(q.base_dist.logits)))  # noqa: E731
    return coded(vectors, 8, 8, target=30.0, penalty=penalty)


def colouring() -> Problem:
    """Four colours for 30 nodes, neighbours unlike."""
    ends = torch.rand(90, 30).argsort(1)[:, :2].T
    logits = torch.zeros(30, 4, requires_grad=True)

    def f(x: Tensor) -> Tensor:
        return (x[..., ends[0]] == x[..., ends[1]]).float().sum(-1)

    ask = lambda _: (f, numbers(logits))  # noqa: E731
    return Problem([logits], ask, 4.0, "RLOO(16)", rate=0.02, draws=512)


def assignment() -> Problem:
    """A network assigns six workers to six jobs, at new costs in every step."""
    policy = network(36, 64, 36)

    def question(size: int) -> tuple[Function, Distribution]:
        costs = torch.rand(size, 6, 6)

        def f(x: Tensor) -> Tensor:
            return (costs * x).sum((-1, -2)) + 0.5 * (x.sum(-2) - 1).square().sum(-1)

        return f, vectors(policy(4 * costs.flatten(1) - 2).unflatten(-1, (6, 6)))

    return Problem([*policy.parameters()], question, 2.7, rate=0.003)


def chain(**clock: float) -> Problem:
    """A policy that moves eight times among six states, to a pair of states that the goal names."""
    policy, goals = network(12, 64, 6 + 36), torch.arange(36)

    def question(size: int) -> tuple[Function, Distribution]:
        goal = batch(goals, size)
        pair = torch.stack([goal // 6, goal % 6], -1)
        logits = policy(one_hot(pair, 6).flatten(-2).float())
        table = logits[..., 6:].unflatten(-1, (6, 6))

        def f(x: Tensor) -> Tensor:
            jumps = (x.diff(dim=-1).abs() > 1).float().sum(-1)
            return (x[..., -2:] != pair).float().sum(-1) + 0.1 * jumps

        return f, MarkovChain(logits[..., :6], table, length=8)

    trained = [*policy.parameters()]
    return Problem(trained, question, 0.9, rate=0.003, racers=DEPENDENT, **clock)


class Reverser(nn.Module):
    """A recurrent network that has read prompts, and writes as many letters."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.cell = nn.Linear(20, 32), nn.GRUCell(4, 32)
        self.out = nn.Linear(32, 4)
        self.prompts = torch.zeros(1, 5, dtype=torch.long)

    def start(self, lead: torch.Size) -> Tensor:
        state = self.read(one_hot(self.prompts, 4).flatten(-2).float()).tanh()
        return state.expand(*lead, 32)

    def step(self, state: Tensor, i: int, previous: Tensor | None) -> tuple[Tensor, Tensor]:
        if previous is None:
            letters = torch.zeros(*state.shape[:-1], 4)
        else:
            letters = one_hot(previous, 4).float()
        state = self.cell(letters.flatten(0, -2), state.flatten(0, -2)).view_as(state)
        return self.out(state), state


def reversal() -> Problem:
    """A recurrent policy reverses prompts of five letters, and gets a reward at the end."""
    policy = Reverser()

    def question(size: int) -> tuple[Function, Distribution]:
        policy.prompts = prompts = torch.randint(4, (size, 5))
        q = Autoregressive(policy, [4] * 5, batch_shape=[size], validate_args=False)
        return lambda x: (x != prompts.flip(-1)).float().mean(-1), q

    return Problem([*policy.parameters()], question, 0.35, racers=DEPENDENT)


def blocks() -> Problem:
    """18 bits; f is 0 unless one of three blocks is right."""
    right, logits = torch.bernoulli(torch.full((3, 6), 0.5)), torch.zeros(18, requires_grad=True)

    def f(x: Tensor) -> Tensor:
        return -(x.unflatten(-1, (3, 6)) == right).all(-1).float().sum(-1)

    ask = lambda _: (f, bits(logits))  # noqa: E731
    return Problem([logits], ask, -2.8, "RLOO(64)", draws=512)


def widths() -> Problem:
    """2, 4 or 8 bits for the weights of each of four layers, which are trained at the same time."""
    inputs, teacher = torch.randn(2000, 8), network(8, 16, 4)
    labels = (3 * teacher(inputs)).argmax(-1)
    sizes = (8, 16, 16, 16, 4)
    weights = [(torch.randn(a, b) / a**0.5).requires_grad_() for a, b in pairwise(sizes)]
    logits = torch.zeros(4, 3, requires_grad=True)

    def rounded(weight: Tensor, width: int) -> Tensor:
        scale = weight.detach().abs().max() / (2 ** (width - 1) - 1)
        return weight + ((weight / scale).round() * scale - weight).detach()

    def question(size: int) -> tuple[Function, Distribution]:
        rows = torch.randint(2000, (size,))

        def f(x: Tensor) -> Tensor:
            h = inputs[rows]
            for i, weight in enumerate(weights):
                tables = torch.stack([rounded(weight, width) for width in (2, 4, 8)])
                h = (h if i == 0 else h.tanh()) @ tables[x[:, i]]
            losses = cross_entropy(
                h.movedim(-1, 1), labels[rows].expand(len(x), -1), reduction="none"
            )
            return losses.mean(-1) + 0.02 * 2.0 ** (x + 1).float().sum(-1) / 4

        return f, numbers(logits)

    return Problem([*weights, logits], question, 1.4, rate=0.005)


def glimpses() -> Problem:
    """A classifier sees two of 16 places, and a policy says which, from a thumbnail."""
    classes, policy, reader = torch.randn(5, 6), network(16, 32), network(2 * 22, 32, 5)

    def question(size: int) -> tuple[Function, Distribution]:
        labels, places = torch.randint(5, (size,)), torch.randint(16, (size,))
        scene = torch.randn(size, 16, 6)
        scene[torch.arange(size), places] = 2 * classes[labels]
        seen = torch.cat([scene, torch.eye(16).expand(size, 16, 16)], -1)
        thumbnail = scene.square().mean(-1)

        def f(x: Tensor) -> Tensor:
            scores = reader(seen[torch.arange(size).unsqueeze(-1), x].flatten(-2))
            return cross_entropy(scores.movedim(-1, 1), labels.expand(len(x), -1), reduction="none")

        return f, numbers(policy(thumbnail).unflatten(-1, (2, 16)))

    return Problem([*policy.parameters(), *reader.parameters()], question, 0.85)


def simulator() -> Problem:
    """The chain of moves again, but a trajectory takes 2 ms to judge."""
    return chain(point=0.002)


def routing() -> Problem:
    """A router sends each input to one of eight small experts, which learn with it."""
    inputs, router = torch.randn(4000, 8), network(8, 32, 8)
    teachers = torch.randn(8, 8, 4) / 2
    outputs = torch.einsum("ni,nij->nj", inputs, teachers[(inputs @ torch.randn(8, 8)).argmax(-1)])
    experts = (0.1 * torch.randn(8, 8, 4)).requires_grad_()

    def question(size: int) -> tuple[Function, Distribution]:
        rows = torch.randint(4000, (size,))

        def f(x: Tensor) -> Tensor:
            made = torch.einsum("bi,eij->ebj", inputs[rows], experts)
            errors = (made - outputs[rows]).square().sum(-1)
            return errors.gather(0, x.squeeze(-1))

        return f, numbers(router(inputs[rows]).unsqueeze(-2))

    trained = [*router.parameters(), experts]
    return Problem(trained, question, 4.0, rate=0.003, racers=(*INDEPENDENT, "Exact()"))


def ranking() -> Problem:
    """A network orders six items by the scores that it gives to their descriptions."""
    scorer, taste = network(5, 32, 1), torch.randn(5)

    def question(size: int) -> tuple[Function, Distribution]:
        items = torch.randn(size, 6, 5)
        values = items @ taste

        def f(x: Tensor) -> Tensor:
            ordered = values.expand(*x.shape[:-1], 6).gather(-1, x)
            return (ordered.unsqueeze(-2) > ordered.unsqueeze(-1)).triu(1).float().mean((-1, -2))

        return f, PlackettLuce(scorer(items).squeeze(-1), validate_args=False)

    return Problem([*scorer.parameters()], question, 0.025, rate=0.003, racers=DEPENDENT)


def surrogate() -> Problem:
    """24 bits that minimise a wide network, whose evaluation takes most of a step."""
    judge, logits = network(24, 512, 512, 1), torch.zeros(24, requires_grad=True)
    for parameter in judge.parameters():
        parameter.requires_grad_(False).mul_(3)

    def f(x: Tensor) -> Tensor:
        return judge(x).squeeze(-1) + 0.05 * x.sum(-1)

    x = torch.rand(100, 24).round()
    for i in [*range(24)] * 4:  # the lowest value, by changes of single bits
        other = x.clone()
        other[:, i] = 1 - x[:, i]
        x = torch.where((f(other) < f(x)).unsqueeze(-1), other, x)
    ask = lambda _: (f, bits(logits))  # noqa: E731
    return Problem([logits], ask, 0.95 * f(x).min().item(), rate=0.05, draws=256)


def knapsack() -> Problem:
    """Which of 32 things have the largest value, at a limited weight? A black box."""
    values, weights = torch.rand(32), torch.rand(32)
    logits = torch.zeros(32, requires_grad=True)

    def f(x: Tensor) -> Tensor:
        x = x.detach()
        return 4 * (x @ weights - 6).clamp(min=0) - x @ values

    order = (values / weights).argsort(descending=True)
    fits = weights[order].cumsum(0) <= 6
    best = values[order][fits].sum().item()
    ask = lambda _: (f, bits(logits))  # noqa: E731
    return Problem([logits], ask, -0.95 * best, "RLOO(16)", 0.05, 512)


def sensors() -> Problem:
    """A network chooses three of ten sensors; the mean of their readings tells a signal."""
    chooser, quality = network(10, 32, 10), torch.randn(10, 10)

    def question(size: int) -> tuple[Function, Distribution]:
        context, noise = torch.randn(size, 10), torch.randn(size, 10)
        errors = noise * (context @ quality / 3).exp()

        def f(x: Tensor) -> Tensor:
            return ((x * errors).sum(-1) / 3).square().log1p()

        return f, Subset(chooser(context), 3, validate_args=False)

    trained = [*chooser.parameters()]
    return Problem(trained, question, 0.2, rate=0.003, racers=DEPENDENT)


def labels() -> Problem:
    """A network labels twelve places with one of five classes, and is paid for whole runs."""
    reader, prototypes = network(48, 64, 60), torch.randn(5, 4)

    def question(size: int) -> tuple[Function, Distribution]:
        classes = torch.randint(5, (size, 4)).repeat_interleave(3, -1)
        seen = prototypes[classes] + 0.5 * torch.randn(size, 12, 4)

        def f(x: Tensor) -> Tensor:
            right = (x == classes).float().unflatten(-1, (4, 3))
            return 1 - (right.mean(-1) + right.prod(-1)).mean(-1) / 2

        return f, numbers(reader(seen.flatten(1)).unflatten(-1, (12, 5)))

    return Problem([*reader.parameters()], question, 0.3, rate=0.003)


MADE = (
    *(spins, features, autoencoder, codebook, colouring, assignment),
    *(chain, simulator, reversal, blocks, widths, glimpses),
    *(routing, ranking, surrogate, knapsack, sensors, labels),
)
PROBLEMS: dict[str, Callable[[], Problem]] = {make.__name__: make for make in MADE}
