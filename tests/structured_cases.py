"""Small distributions of dependent variables, with their probabilities by definition.

Every family is judged alone and, where it is small, as independent copies with different
parameters. The definitions list all points in Python and share no code with the distributions.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations, product
from math import factorial, prod

import torch
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Categorical,
    Distribution,
    Independent,
    MixtureSameFamily,
    Multinomial,
    OneHotCategorical,
)

import catlog
from catlog.distributions import Node


@dataclass(frozen=True)
class StructuredCase:
    """A distribution, and its possible points with their probabilities by definition.

    Attributes:
        name: what it is.
        theta: the parameters ``[*copies, size]``.
        distribution: makes q from them, with the dimensions before the last as batch.
        points: all possible points ``[points, *event]``, as q draws them.
        probabilities: makes their probabilities ``[points]`` from parameters ``[size]``.
        has_copies: whether copies of it are few enough points.
    """

    name: str
    theta: Tensor
    distribution: Callable[[Tensor], Distribution]
    points: Tensor
    probabilities: Callable[[Tensor], Tensor]
    has_copies: bool = True


def normals(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def every(*sizes: int) -> Tensor:
    return torch.tensor(list(product(*(range(size) for size in sizes))))


def copies(case: StructuredCase, dims: int = 1) -> StructuredCase:
    """Return two copies, the second with other parameters, as torch's Independent."""
    theta = torch.stack([case.theta, 0.7 * case.theta.flip(-1)])
    lead = (1,) * (dims - 1) + (2,)
    rows = list(product(range(len(case.points)), repeat=2))
    points = case.points[torch.tensor(rows)]

    def probabilities(theta: Tensor) -> Tensor:
        first, second = (case.probabilities(row) for row in theta)
        return torch.outer(first, second).flatten()

    def distribution(theta: Tensor) -> Distribution:
        apart = theta.reshape(*theta.shape[:-2], *lead, theta.shape[-1])
        return Independent(case.distribution(apart), dims)

    return StructuredCase(
        f"copies of {case.name}" + ("" if dims == 1 else ", two dimensions"),
        theta,
        distribution,
        points.view(len(rows), *lead, *case.points.shape[1:]),
        probabilities,
    )


# Subsets, rankings, chains given evidence


def subset(name: str, d: int, k: int, mask: tuple[int, ...] = ()) -> StructuredCase:
    points = every(*[2] * d)
    points = points[(points.sum(-1) == k) & (points[:, list(mask)].sum(-1) == 0)]
    kept = torch.tensor([i not in mask for i in range(d)])
    return StructuredCase(
        name,
        normals(d),
        lambda theta: catlog.Subset(theta, k, kept if mask else None),
        points,
        lambda theta: (points * theta).sum(-1).softmax(0),
    )


def ranking(name: str, d: int, k: int, mask: tuple[int, ...] = ()) -> StructuredCase:
    items = [i for i in range(d) if i not in mask]
    points = list(permutations(items, k))
    kept = torch.tensor([i not in mask for i in range(d)])

    def probability(theta: Tensor, point: tuple[int, ...]) -> Tensor:
        weight = theta.exp()
        rest = [weight[[i for i in items if i not in point[:place]]].sum() for place in range(k)]
        return prod(weight[item] / total for item, total in zip(point, rest, strict=True))

    return StructuredCase(
        name,
        normals(d, seed=1),
        lambda theta: catlog.PlackettLuce(theta, k, kept if mask else None),
        torch.tensor(points),
        lambda theta: torch.stack([probability(theta, point) for point in points]),
        has_copies=len(points) < 10,
    )


def crf(name: str, steps: int, forbidden: tuple[tuple[int, int], ...] = ()) -> StructuredCase:
    points = [
        path
        for path in product(range(2), repeat=steps)
        if not any((path[t - 1], path[t]) in forbidden for t in range(1, steps))
    ]
    rule = torch.zeros(2, 2, dtype=torch.float64)
    for a, b in forbidden:
        rule[a, b] = -torch.inf

    def parts(theta: Tensor) -> tuple[Tensor, Tensor]:
        return theta[..., :-4].unflatten(-1, (steps, 2)), theta[..., -4:].unflatten(-1, (2, 2))

    def probabilities(theta: Tensor) -> Tensor:
        unary, pairwise = parts(theta)
        weights = [
            sum(unary[t, z] for t, z in enumerate(path))
            + sum(pairwise[path[t - 1], path[t]] for t in range(1, steps))
            for path in points
        ]
        return torch.stack(weights).softmax(0)

    def distribution(theta: Tensor) -> Distribution:
        unary, pairwise = parts(theta)
        return catlog.LinearChainCRF(unary, pairwise + rule.to(theta.dtype))

    theta = normals(2 * steps + 4, seed=2)
    few = len(points) < 5
    return StructuredCase(name, theta, distribution, torch.tensor(points), probabilities, few)


# Chains and networks


def chain(name: str, k: int, length: int, emission: int = 0) -> StructuredCase:
    points = every(*[k] * length, *[emission] * (length if emission else 0))
    sizes = [k, k * k, k * emission]

    def parts(theta: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        initial, step, seen = theta.split(sizes, -1)
        return (
            initial,
            step.unflatten(-1, (k, k)),
            seen.unflatten(-1, (k, -1)) if emission else None,
        )

    def probabilities(theta: Tensor) -> Tensor:
        initial, step, seen = parts(theta)
        result = initial.softmax(-1)[points[:, 0]]
        for t in range(1, length):
            result = result * step.softmax(-1)[points[:, t - 1], points[:, t]]
        for t in range(length if seen is not None else 0):
            result = result * seen.softmax(-1)[points[:, t], points[:, length + t]]
        return result

    def distribution(theta: Tensor) -> Distribution:
        initial, step, seen = parts(theta)
        return catlog.MarkovChain(initial, step, length=length, emission=seen)

    few = len(points) < 5
    return StructuredCase(name, normals(sum(sizes)), distribution, points, probabilities, few)


def block_network(theta: Tensor) -> Distribution:
    """Return a three-way root and two leaves in one block, which is listed first."""
    leaves = theta[..., :12].unflatten(-1, (3, 2, 2))
    nodes = {"leaves": Node(["root"], leaves, size=2), "root": Node([], theta[..., 12:])}
    return catlog.BayesianNetwork(nodes, theta.shape[:-1])


def block_probabilities(theta: Tensor) -> Tensor:
    leaves, root = theta[:12].view(3, 2, 2).softmax(-1), theta[12:].softmax(-1)
    a, b, z = every(2, 2, 3).T
    return root[z] * leaves[z, 0, a] * leaves[z, 1, b]


WEATHER = normals(2, seed=7)


def known_environment(theta: Tensor) -> Distribution:
    """Return a fixed root, whose table is not learned, and a leaf of three categories."""
    nodes = {
        "weather": Node([], WEATHER.to(theta.dtype).expand(*theta.shape[:-1], 2), fixed=True),
        "choice": Node(["weather"], theta.unflatten(-1, (2, 3))),
    }
    return catlog.BayesianNetwork(nodes, theta.shape[:-1])


def environment_probabilities(theta: Tensor) -> Tensor:
    return (WEATHER.softmax(-1)[:, None] * theta.view(2, 3).softmax(-1)).flatten()


# Sequences of a network


class Counting:
    """A network whose logits depend on the sum of the earlier tokens, in several forms."""

    def __init__(self, theta: Tensor, sizes: tuple[int, ...], form: str) -> None:
        self.theta = theta.unflatten(-1, (3, 3))
        self.sizes = sizes
        if form == "all_logits":
            self.all_logits = self._all_logits
        elif form != "network(x, i)":
            self.start, self.step = self._start, self._step
            self.context_in_state = form == "context in the state"

    def _logits(self, theta: Tensor, i: int, total: Tensor) -> Tensor:
        logits = theta[..., i, :] + total.unsqueeze(-1) * theta[..., (i + 1) % 3, :]
        return logits[..., : self.sizes[i]]

    def _start(self, lead: torch.Size) -> object:
        total = torch.zeros(lead, dtype=self.theta.dtype)
        return (total, self.theta.expand(*lead, 3, 3)) if self.context_in_state else total

    def _step(self, state: object, i: int, previous: Tensor | None) -> tuple[Tensor, object]:
        total, theta = state if self.context_in_state else (state, self.theta)
        total = total if previous is None else total + previous
        return self._logits(theta, i, total), (total, theta) if self.context_in_state else total

    def _all_logits(self, x: Tensor) -> Tensor:
        k = max(self.sizes)
        rows = [self(x, i) for i in range(x.shape[-1])]
        rows = [torch.nn.functional.pad(row, (0, k - row.shape[-1])) for row in rows]
        return torch.stack(rows, -2)

    def __call__(self, x: Tensor, i: int) -> Tensor:
        return self._logits(self.theta, i, x[..., :i].sum(-1).to(self.theta.dtype))


def sequence(name: str, sizes: tuple[int, ...], end: int | None, form: str) -> StructuredCase:
    points = [
        row
        for row in product(*(range(size) for size in sizes))
        if end not in row or set(row[row.index(end) :]) == {end}
    ]

    def probability(theta: Tensor, row: tuple[int, ...]) -> Tensor:
        result = theta.new_ones(())
        for i, token in enumerate(row):
            logits = theta[i] + sum(row[:i]) * theta[(i + 1) % 3]
            result = result * logits[: sizes[i]].softmax(-1)[token]
            if token == end:
                break
        return result

    return StructuredCase(
        f"{name}, {form}",
        normals(9, seed=3),
        lambda theta: catlog.Autoregressive(
            Counting(theta, sizes, form), sizes, theta.shape[:-1], end=end, dtype=theta.dtype
        ),
        torch.tensor(points),
        lambda theta: torch.stack([probability(theta.view(3, 3), row) for row in points]),
        has_copies=len(points) < 5,
    )


def sequences() -> Iterator[StructuredCase]:
    for form in ("network(x, i)", "all_logits", "step"):
        yield sequence("sequence", (2, 2), None, form)
        yield sequence("sequence of different sizes", (2, 3, 2), None, form)
        yield sequence("sequence that ends", (2, 2, 2), 1, form)
        yield sequence("sequence of different sizes that ends", (2, 3, 2), 0, form)
    yield sequence("sequence that ends", (2, 2, 2), 1, "context in the state")


# Mixtures and multinomials of torch


def mixture(
    name: str,
    shape: tuple[int, ...],
    points: Tensor,
    components: Callable[[Tensor], Distribution],
    probabilities: Callable[[Tensor], Tensor],
    weights: Callable[[Tensor], Distribution] = lambda logits: Categorical(logits=logits),
    has_copies: bool = False,
) -> StructuredCase:
    """Return a mixture of ``components``, whose probabilities ``[components, points]`` are given.

    ``shape`` is that of the components' parameters, components first.
    """
    count = shape[0]

    def distribution(theta: Tensor) -> Distribution:
        inside = theta[..., count:].unflatten(-1, shape)
        return MixtureSameFamily(weights(theta[..., :count]), components(inside))

    def of_points(theta: Tensor) -> Tensor:
        return weights(theta[:count]).probs @ probabilities(theta[count:].view(shape))

    size = count + prod(shape)
    probs = of_points(normals(size, seed=4))
    is_possible = probs > 0
    return StructuredCase(
        name,
        normals(size, seed=4),
        distribution,
        points[is_possible],
        lambda theta: of_points(theta)[is_possible],
        has_copies,
    )


def of_numbers(x: Tensor, probs: Tensor) -> Tensor:
    """Return the products of ``probs`` ``[components, d, k]`` at points x ``[points, d]``."""
    return torch.stack([probs[:, i, x[:, i]] for i in range(x.shape[-1])]).prod(0)


def of_bits(logits: Tensor) -> Tensor:
    """Return the products for all points of bits ``[components, d]``."""
    probs = torch.stack([(-logits).sigmoid(), logits.sigmoid()], -1)
    return of_numbers(every(*[2] * logits.shape[-1]), probs)


def of_bits_by_probs(probs: Tensor) -> Tensor:
    return of_numbers(every(*[2] * probs.shape[-1]), torch.stack([1 - probs, probs], -1))


EDGE = torch.tensor([[True, False, False], [False, False, True]])
MASK = torch.zeros(3, 2, 3, dtype=torch.bool)
MASK[:, 0, 2] = MASK[1, 1, 0] = True


def edged(logits: Tensor) -> Tensor:
    """Return probabilities of bits, one of which is certain in each component."""
    certain = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    return torch.where(EDGE, certain, logits.sigmoid())


def masked(logits: Tensor) -> Tensor:
    return logits.masked_fill(MASK, -torch.inf)


def shorter(logits: Tensor) -> Tensor:
    """Return the logits of two variables, the second without its last category."""
    mask = torch.tensor([[False, False, False], [False, False, True]])
    return logits.masked_fill(mask, -torch.inf)


def without_last(logits: Tensor) -> Distribution:
    """Return weights of three components, the last of which is impossible."""
    mask = torch.tensor([False, False, True])
    return Categorical(logits=logits.masked_fill(mask, -torch.inf))


def mixtures() -> Iterator[StructuredCase]:
    bits = every(2, 2, 2).double()
    yield mixture(
        "mixture of bits",
        (2, 3),
        bits,
        lambda logits: Independent(Bernoulli(logits=logits), 1),
        of_bits,
    )
    yield mixture(
        "mixture of two bits",
        (2, 2),
        every(2, 2).double(),
        lambda logits: Independent(Bernoulli(logits=logits), 1),
        of_bits,
        has_copies=True,
    )
    yield mixture(
        "mixture of bits by probabilities",
        (2, 3),
        bits,
        lambda logits: Independent(Bernoulli(probs=edged(logits)), 1),
        lambda logits: of_bits_by_probs(edged(logits)),
        lambda numbers: Categorical(probs=numbers.exp()),
    )
    yield mixture(
        "mixture of numbers",
        (2, 2, 3),
        every(3, 3),
        lambda logits: Independent(Categorical(logits=logits), 1),
        lambda logits: of_numbers(every(3, 3), logits.softmax(-1)),
    )
    yield mixture(
        "mixture of numbers by probabilities",
        (2, 2, 2),
        every(2, 2),
        lambda numbers: Independent(Categorical(probs=numbers.exp()), 1),
        lambda numbers: of_numbers(every(2, 2), numbers.softmax(-1)),
        lambda numbers: Categorical(probs=numbers.exp()),
        has_copies=True,
    )
    yield mixture(
        "masked mixture",
        (3, 2, 3),
        every(3, 3),
        lambda logits: Independent(Categorical(logits=masked(logits)), 1),
        lambda logits: of_numbers(every(3, 3), masked(logits).softmax(-1)),
        without_last,
    )
    yield mixture(
        "mixture of single numbers",
        (2, 3),
        torch.arange(3),
        lambda logits: Categorical(logits=logits),
        lambda logits: logits.softmax(-1),
        has_copies=True,
    )
    yield mixture(
        "mixture of one-hot vectors",
        (2, 2, 3),
        torch.eye(3).double()[every(3, 3)],
        lambda logits: Independent(OneHotCategorical(logits=logits), 1),
        lambda logits: of_numbers(every(3, 3), logits.softmax(-1)),
    )
    yield mixture(
        "mixture of one-hot vectors by probabilities",
        (2, 2, 2),
        torch.eye(2).double()[every(2, 2)],
        lambda numbers: Independent(OneHotCategorical(probs=numbers.exp()), 1),
        lambda numbers: of_numbers(every(2, 2), numbers.softmax(-1)),
        has_copies=True,
    )
    yield mixture(
        "mixture of different cardinalities",
        (2, 2, 3),
        every(3, 2),
        lambda logits: catlog.Categoricals(logits, (3, 2)),
        lambda logits: of_numbers(every(3, 2), shorter(logits).softmax(-1)),
    )


def multinomial(name: str, n: int, k: int, zeros: tuple[int, ...] = ()) -> StructuredCase:
    """Return a Multinomial, in which the categories ``zeros`` are impossible."""
    points = every(*[n + 1] * k)
    points = points[(points.sum(-1) == n) & (points[:, list(zeros)].sum(-1) == 0)]
    coefficient = torch.tensor(
        [factorial(n) / prod(map(factorial, row)) for row in points.tolist()], dtype=torch.float64
    )
    kept = torch.tensor([0.0 if i in zeros else 1.0 for i in range(k)], dtype=torch.float64)

    def distribution(theta: Tensor) -> Distribution:
        if not zeros:
            return Multinomial(n, logits=theta)
        return Multinomial(n, logits=theta.masked_fill(kept == 0, -torch.inf))

    def probabilities(theta: Tensor) -> Tensor:
        probs = theta.exp() * kept / (theta.exp() * kept).sum()
        return coefficient * probs.pow(points).prod(-1)

    few = len(points) < 4
    theta = normals(k, seed=5)
    return StructuredCase(name, theta, distribution, points.double(), probabilities, few)


ALONE = [
    subset("subset", 4, 2),
    subset("subset of one", 3, 1),
    subset("subset of none", 2, 0),
    subset("subset of all", 2, 2),
    subset("masked subset", 4, 2, mask=(1,)),
    ranking("ranking", 3, 3),
    ranking("ranking of the first two", 3, 2),
    ranking("ranking of the first", 3, 1),
    ranking("masked ranking", 3, 2, mask=(0,)),
    crf("crf", 3),
    crf("short crf", 2),
    crf("crf of one step", 1),
    crf("crf with a rule", 3, forbidden=((1, 0),)),
    chain("chain", 2, 3),
    chain("short chain", 2, 2),
    chain("chain of three states", 3, 2),
    chain("chain with observations", 2, 2, emission=2),
    StructuredCase(
        "network with a block",
        normals(15),
        block_network,
        every(2, 2, 3),
        block_probabilities,
        False,
    ),
    StructuredCase(
        "network with a known root",
        normals(6),
        known_environment,
        every(2, 3),
        environment_probabilities,
    ),
    *sequences(),
    *mixtures(),
    multinomial("multinomial", 2, 3),
    multinomial("multinomial of two categories", 2, 2),
    multinomial("multinomial with impossible categories", 2, 4, zeros=(1, 3)),
    multinomial("multinomial of no draws", 0, 2),
]
COPIES = [
    *(copies(case) for case in ALONE if case.has_copies),
    copies(next(case for case in ALONE if case.name == "mixture of two bits"), dims=2),
    copies(next(case for case in ALONE if case.name == "short chain"), dims=2),
]
STRUCTURED_CASES = {case.name: case for case in [*ALONE, *COPIES]}
