"""Small distributions of dependent variables, with their probabilities by definition.

Every family is judged alone and, where it is small, as independent copies with different
parameters. The definitions list all points in Python and share no code with the distributions.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, permutations, product
from math import prod
from typing import Any

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
from catlog.distributions import BayesianNetwork, LinearChainCRF, Node, Subset
from catlog.testing.cases import grid as every
from catlog.testing.cases import normals
from support.laws import bits, integers, one_hots


def close(got: Any, wanted: Any, atol: float = 1e-12) -> None:
    """Check that numbers, or tuples of them, are equal but for rounding in float64."""
    torch.testing.assert_close(got, wanted, rtol=1e-13, atol=atol)


@dataclass(frozen=True)
class StructuredCase:
    """A distribution, and its possible points with their probabilities by definition.

    Attributes:
        name: what it is.
        theta: the parameters ``[*copies, size]``.
        distribution: makes q from them, with the dimensions before the last as batch.
        points: all possible points ``[points, *event]``, as q draws them.
        log_probs: makes their log-probabilities ``[points]`` from parameters ``[size]``.
        has_copies: whether copies of it are few enough points.
    """

    name: str
    theta: Tensor
    distribution: Callable[[Tensor], Distribution]
    points: Tensor
    log_probs: Callable[[Tensor], Tensor]
    has_copies: bool = True

    def probabilities(self, theta: Tensor) -> Tensor:
        return self.log_probs(theta).exp()


def copies(case: StructuredCase, dims: int = 1) -> StructuredCase:
    """Return two copies, the second with other parameters, as torch's Independent."""
    theta = torch.stack([case.theta, 0.7 * case.theta.flip(-1)])
    lead = (1,) * (dims - 1) + (2,)
    rows = list(product(range(len(case.points)), repeat=2))
    points = case.points[torch.tensor(rows)]

    def log_probs(theta: Tensor) -> Tensor:
        first, second = (case.log_probs(row) for row in theta)
        return (first.unsqueeze(-1) + second).flatten()

    def distribution(theta: Tensor) -> Distribution:
        apart = theta.reshape(*theta.shape[:-2], *lead, theta.shape[-1])
        return Independent(case.distribution(apart), dims)

    return StructuredCase(
        f"copies of {case.name}" + ("" if dims == 1 else ", two dimensions"),
        theta,
        distribution,
        points.view(len(rows), *lead, *case.points.shape[1:]),
        log_probs,
    )


def extreme(case: StructuredCase, dtype: torch.dtype = torch.float64) -> StructuredCase:
    """Return the case with parameters of 80 times numbers in [-1, 1], half of which are +-1."""
    return replace(case, theta=(80 * (1.5 * case.theta).clamp(-1, 1)).to(dtype))


# Subsets, rankings, chains given evidence


def subset(
    name: str, d: int, k: int, mask: tuple[int, ...] = (), has_copies: bool = True
) -> StructuredCase:
    points = every(*[2] * d)
    points = points[(points.sum(-1) == k) & (points[:, list(mask)].sum(-1) == 0)]
    kept = torch.tensor([i not in mask for i in range(d)])
    return StructuredCase(
        name,
        normals(d),
        lambda theta: Subset(theta, k, kept if mask else None),
        points,
        lambda theta: (points * theta).sum(-1).log_softmax(0),
        has_copies,
    )


def subset_by_logits(name: str, d: int, k: int, mask: tuple[int, ...]) -> StructuredCase:
    """Return a subset whose masked items have logits of -inf."""
    case = subset(name, d, k, mask)
    is_masked = torch.tensor([i in mask for i in range(d)])
    return replace(
        case,
        distribution=lambda theta: Subset(theta.masked_fill(is_masked, -torch.inf), k),
    )


def ranking(name: str, d: int, k: int, mask: tuple[int, ...] = ()) -> StructuredCase:
    items = [i for i in range(d) if i not in mask]
    points = list(permutations(items, k))
    kept = torch.tensor([i not in mask for i in range(d)])

    def log_prob(theta: Tensor, point: tuple[int, ...]) -> Tensor:
        rest = [theta[[i for i in items if i not in point[:place]]] for place in range(k)]
        return sum(theta[point[place]] - rest[place].logsumexp(0) for place in range(k))

    return StructuredCase(
        name,
        normals(d, seed=1),
        lambda theta: catlog.distributions.PlackettLuce(theta, k, kept if mask else None),
        torch.tensor(points),
        lambda theta: torch.stack([log_prob(theta, point) for point in points]),
        has_copies=len(points) < 10,
    )


def crf(
    name: str,
    k: int,
    steps: int,
    forbidden: tuple[tuple[int, int], ...] = (),
    excluded: tuple[tuple[int, int], ...] = (),
    by_step: bool = False,
) -> StructuredCase:
    """Return a chain given evidence.

    ``forbidden`` are pairs of states that never follow each other, ``excluded`` pairs of a step and
    a state that is impossible there.
    """
    points = [
        path
        for path in product(range(k), repeat=steps)
        if not any(pair in forbidden for pair in pairwise(path))
        and not any(pair in excluded for pair in enumerate(path))
    ]
    rule, evidence = torch.zeros(k, k).double(), torch.zeros(steps, k).double()
    for pair in forbidden:
        rule[pair] = -torch.inf
    for pair in excluded:
        evidence[pair] = -torch.inf
    shape = (steps - 1, k, k) if by_step else (k, k)

    def parts(theta: Tensor) -> tuple[Tensor, Tensor]:
        unary, tables = theta.split([steps * k, prod(shape)], -1)
        return unary.unflatten(-1, (steps, k)), tables.unflatten(-1, shape)

    def log_probs(theta: Tensor) -> Tensor:
        unary, tables = parts(theta)
        tables = tables if by_step else tables.expand(steps - 1, k, k)
        weights = [
            sum(unary[t, z] for t, z in enumerate(path))
            + sum(table[pair] for table, pair in zip(tables, pairwise(path), strict=True))
            for path in points
        ]
        return torch.stack(weights).log_softmax(0)

    def distribution(theta: Tensor) -> Distribution:
        unary, tables = parts(theta)
        return LinearChainCRF(unary + evidence.to(theta), tables + rule.to(theta))

    theta = normals(steps * k + prod(shape), seed=2)
    few = len(points) < 5 and k == 2
    return StructuredCase(name, theta, distribution, torch.tensor(points), log_probs, few)


# Chains and networks


def chain(name: str, k: int, length: int, emission: int = 0) -> StructuredCase:
    points = every(*[k] * length, *[emission] * (length if emission else 0))
    sizes = [k, k * k, k * emission]

    def parts(theta: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        initial, step, seen = theta.split(sizes, -1)
        seen = seen.unflatten(-1, (k, -1)) if emission else None
        return initial, step.unflatten(-1, (k, k)), seen

    def log_probs(theta: Tensor) -> Tensor:
        initial, step, seen = parts(theta)
        result = initial.log_softmax(-1)[points[:, 0]]
        for t in range(1, length):
            result = result + step.log_softmax(-1)[points[:, t - 1], points[:, t]]
        for t in range(length if seen is not None else 0):
            result = result + seen.log_softmax(-1)[points[:, t], points[:, length + t]]
        return result

    def distribution(theta: Tensor) -> Distribution:
        initial, step, seen = parts(theta)
        return catlog.distributions.MarkovChain(initial, step, length=length, emission=seen)

    few = len(points) < 5
    return StructuredCase(name, normals(sum(sizes)), distribution, points, log_probs, few)


WEATHER = normals(2, 3, seed=7)


def block_network(theta: Tensor) -> dict[str, Node]:
    """Return a three-way root, two leaves in one block, which is listed first, and a lonely bit."""
    return {
        "leaves": Node(["root"], theta[..., :12].unflatten(-1, (3, 2, 2)), size=2),
        "root": Node([], theta[..., 12:15]),
        "lonely": Node([], theta[..., 15:]),
    }


def network_of_bits(theta: Tensor) -> dict[str, Node]:
    """Return bits by their log-odds: a table, a table given two bits, and a network."""

    def odds(parents: Tensor) -> Tensor:
        return theta[..., 6] * parents[..., 0] - theta[..., 7] * parents[..., 1]

    return {
        "c": Node(["a"], odds, bits=True),
        "a": Node([], theta[..., :2], size=2, bits=True),
        "b": Node(["a"], theta[..., 2:6].unflatten(-1, (2, 2)), bits=True),
    }


def network_of_networks(theta: Tensor) -> dict[str, Node]:
    """Return three cardinalities, a network as a node, and parameters that nodes share."""

    def logits(parents: Tensor) -> Tensor:
        a, b = parents.unbind(-1)
        return torch.stack([theta[..., 5] * a - theta[..., 6] * b, theta[..., 0] * b], -1)

    return {
        "a": Node([], theta[..., :2]),
        "b": Node(["a"], theta[..., :6].unflatten(-1, (2, 3))),
        "c": Node(["a", "b"], logits, cardinality=2),
    }


def known_root(theta: Tensor) -> dict[str, Node]:
    """Return a fixed root, whose table is not learned, and a leaf of three categories."""
    weather = WEATHER[:, 0].to(theta.dtype).expand(*theta.shape[:-1], 2)
    choice = Node(["weather"], theta.unflatten(-1, (2, 3)))
    return {"weather": Node([], weather, fixed=True), "choice": choice}


def choices(theta: Tensor, fixed: bool = True) -> dict[str, Node]:
    """Return a known environment between learned choices."""
    weather = WEATHER.to(theta.dtype).expand(*theta.shape[:-1], 2, 3)
    return {
        "choice": Node([], theta[..., :2]),
        "weather": Node(["choice"], weather, fixed=fixed),
        "next": Node(["weather"], theta[..., 2:].unflatten(-1, (3, 2))),
    }


def network(
    name: str,
    parameters: int,
    nodes: Callable[[Tensor], dict[str, Node]],
    sizes: tuple[int, ...],
    has_copies: bool = False,
) -> StructuredCase:
    """Return a network whose definition looks up every point's logits, node by node."""

    def log_prob(theta: Tensor, point: list[int]) -> Tensor:
        values, result, first = {}, torch.zeros((), dtype=theta.dtype), 0
        for key, node in nodes(theta).items():
            values[key] = point[first : first + node.size]
            first += node.size
        for key, node in nodes(theta).items():
            parents = [value for parent in node.parents for value in values[parent]]
            is_table = isinstance(node.logits, Tensor)
            logits = node.logits[tuple(parents)] if is_table else node.logits(torch.tensor(parents))
            if node.bits:
                logits = torch.stack([torch.zeros_like(logits), logits], -1)
            rows = logits.reshape(node.size, -1).log_softmax(-1)
            result = result + sum(row[value] for row, value in zip(rows, values[key], strict=True))
        return result

    points = every(*sizes)
    return StructuredCase(
        f"network {name}",
        normals(parameters),
        lambda theta: BayesianNetwork(nodes(theta), theta.shape[:-1], dtype=theta.dtype),
        points,
        lambda theta: torch.stack([log_prob(theta, point) for point in points.tolist()]),
        has_copies,
    )


# Sequences of a network


class Counting:
    """A network whose logits depend on the sum of the earlier tokens, in several forms."""

    parameters = 9

    def __init__(self, theta: Tensor, sizes: tuple[int, ...], form: str) -> None:
        self.theta = theta.unflatten(-1, (3, 3))
        self.sizes = sizes
        if "all_logits" in form:
            self.all_logits = self._all_logits
        if "step" in form or "state" in form:
            self.start, self.step = self._start, self._step
            self.context_in_state = form == "context in the state"

    def _logits(self, theta: Tensor, i: int, total: Tensor) -> Tensor:
        logits = theta[..., i % 3, :] + total.unsqueeze(-1) * theta[..., (i + 1) % 3, :]
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


class Recurrent:
    """A tiny recurrent network with all its parameters shared between positions."""

    parameters = 6

    def __init__(self, theta: Tensor, sizes: tuple[int, ...], form: str) -> None:
        self.theta = theta
        if form == "step":
            self.start, self.step = self._start, self._step

    def _start(self, lead: torch.Size) -> tuple[Tensor, Tensor]:
        return self.theta[..., 0].expand(lead), torch.zeros(lead, dtype=self.theta.dtype)

    def _step(
        self, state: tuple[Tensor, Tensor], i: int, previous: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        hidden, count = state
        _, decay, new, first, second, slope = self.theta.unbind(-1)
        if previous is not None:
            hidden = (hidden * decay + new * previous + 0.3 * count).tanh()
            count = count + previous
        return torch.stack([first * hidden, second - hidden * slope], -1), (hidden, count)

    def __call__(self, x: Tensor, i: int) -> Tensor:
        state, logits = self._start(x.shape[:-1]), torch.empty(0)
        for j in range(i + 1):
            logits, state = self._step(state, j, None if j == 0 else x[..., j - 1])
        return logits


def sequence(
    name: str,
    sizes: tuple[int, ...],
    end: int | None,
    form: str,
    network: type[Counting] | type[Recurrent] = Counting,
    temperature: float = 1.0,
) -> StructuredCase:
    points = [
        row
        for row in product(*(range(size) for size in sizes))
        if end not in row or set(row[row.index(end) :]) == {end}
    ]

    def log_prob(theta: Tensor, row: tuple[int, ...]) -> Tensor:
        logits_of = network(theta, sizes, "network(x, i)")
        result = theta.new_zeros(())
        for i, token in enumerate(row):
            logits = logits_of(torch.tensor(row), i) / temperature
            result = result + logits.log_softmax(-1)[token]
            if token == end:
                break
        return result

    return StructuredCase(
        f"{name}, {form}",
        normals(network.parameters, seed=3),
        lambda theta: catlog.distributions.Autoregressive(
            network(theta, sizes, form),
            sizes,
            theta.shape[:-1],
            end=end,
            temperature=temperature,
            dtype=theta.dtype,
        ),
        torch.tensor(points),
        lambda theta: torch.stack([log_prob(theta, row) for row in points]),
        has_copies=len(points) < 5 and network is Counting,
    )


FORMS = ("network(x, i)", "all_logits", "step", "step and all_logits")


def sequences() -> Iterator[StructuredCase]:
    for form in FORMS:
        yield sequence("sequence", (2, 2), None, form)
        yield sequence("sequence of different sizes", (2, 3, 2), None, form)
        yield sequence("sequence that ends", (2, 2, 2), 1, form)
        yield sequence("sequence of different sizes that ends", (2, 3, 2), 0, form)
    yield sequence("sequence that ends", (2, 2, 2), 1, "context in the state")
    for form in ("network(x, i)", "step"):
        yield sequence("recurrent", (2, 2, 2), None, form, Recurrent)
    yield sequence("recurrent that ends", (2, 2, 2), 1, "network(x, i)", Recurrent)
    yield sequence("recurrent that ends", (2, 2, 2), 0, "step", Recurrent, temperature=0.7)


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
        lambda theta: of_points(theta)[is_possible].log(),
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


def by_probs(numbers: Tensor) -> Distribution:
    return Categorical(probs=numbers.exp())


def softmax_of(*sizes: int) -> Callable[[Tensor], Tensor]:
    """Return the probabilities of all points from logits of independent numbers."""
    return lambda logits: of_numbers(every(*sizes), logits.softmax(-1))


def mixtures() -> Iterator[StructuredCase]:
    yield mixture("mixture of bits", (2, 3), every(2, 2, 2).double(), bits, of_bits)
    pairs = every(2, 2).double()
    yield mixture("mixture of two bits", (2, 2), pairs, bits, of_bits, has_copies=True)
    yield mixture(
        "mixture of bits by probabilities",
        (2, 3),
        every(2, 2, 2).double(),
        lambda logits: Independent(Bernoulli(probs=edged(logits)), 1),
        lambda logits: of_bits_by_probs(edged(logits)),
        by_probs,
    )
    yield mixture("mixture of numbers", (2, 2, 3), every(3, 3), integers, softmax_of(3, 3))
    yield mixture(
        "mixture of numbers by probabilities",
        (2, 2, 2),
        every(2, 2),
        lambda numbers: Independent(by_probs(numbers), 1),
        softmax_of(2, 2),
        by_probs,
        has_copies=True,
    )
    for name, weights in (
        ("masked mixture", without_last),
        ("mixture of masked numbers", lambda logits: Categorical(logits=logits)),
    ):
        yield mixture(
            name,
            (3, 2, 3),
            every(3, 3),
            lambda logits: integers(masked(logits)),
            lambda logits: softmax_of(3, 3)(masked(logits)),
            weights,
        )
    yield mixture(
        "mixture of single numbers",
        (2, 3),
        torch.arange(3),
        lambda logits: Categorical(logits=logits),
        lambda logits: logits.softmax(-1),
        has_copies=True,
    )
    vectors = torch.eye(3).double()[every(3, 3)]
    yield mixture("mixture of one-hot vectors", (2, 2, 3), vectors, one_hots, softmax_of(3, 3))
    yield mixture(
        "mixture of one-hot vectors by probabilities",
        (2, 2, 2),
        torch.eye(2).double()[every(2, 2)],
        lambda numbers: Independent(OneHotCategorical(probs=numbers.exp()), 1),
        softmax_of(2, 2),
        has_copies=True,
    )
    yield mixture(
        "mixture of different cardinalities",
        (2, 2, 3),
        every(3, 2),
        lambda logits: catlog.distributions.Categoricals(logits, (3, 2)),
        lambda logits: softmax_of(3, 2)(shorter(logits)),
    )


def multinomial(
    name: str, n: int, k: int, zeros: tuple[int, ...] = (), is_by_probs: bool = False
) -> StructuredCase:
    """Return a Multinomial, in which the categories ``zeros`` are impossible."""
    points = every(*[n + 1] * k).double()
    points = points[(points.sum(-1) == n) & (points[:, list(zeros)].sum(-1) == 0)]
    log_coefficient = torch.tensor(n + 1.0).double().lgamma() - (points + 1).lgamma().sum(-1)
    kept = torch.tensor([i not in zeros for i in range(k)])

    def distribution(theta: Tensor) -> Distribution:
        if is_by_probs:
            return Multinomial(n, probs=theta.exp() * kept)
        return Multinomial(n, logits=theta.masked_fill(~kept, -torch.inf) if zeros else theta)

    def log_probs(theta: Tensor) -> Tensor:
        return log_coefficient + (points[:, kept] * theta[kept].log_softmax(-1)).sum(-1)

    few = len(points) < 4 and not is_by_probs
    return StructuredCase(name, normals(k, seed=5), distribution, points, log_probs, few)


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
    subset("subset of one of four", 4, 1, has_copies=False),
    subset("masked subset of two of five", 5, 2, mask=(1,), has_copies=False),
    ranking("ranking of the first two of four", 4, 2),
    ranking("ranking of the first of four", 4, 1),
    crf("crf", 2, 3),
    crf("short crf", 2, 2),
    crf("crf of one step", 2, 1),
    crf("crf of one step and three states", 3, 1),
    crf("crf with a rule", 2, 3, forbidden=((1, 0),)),
    chain("chain", 2, 3),
    chain("short chain", 2, 2),
    chain("chain of three states", 3, 2),
    chain("chain with observations", 2, 2, emission=2),
    network("with a block", 17, block_network, (2, 2, 3, 2)),
    network("of bits", 8, network_of_bits, (2, 2, 2, 2)),
    network("of networks", 7, network_of_networks, (2, 3, 2)),
    network("with a known root", 6, known_root, (2, 3), True),
    network("with a known node", 8, choices, (2, 3, 2)),
    *sequences(),
    *mixtures(),
    multinomial("multinomial", 2, 3),
    multinomial("multinomial of two categories", 2, 2),
    multinomial("multinomial of three draws", 3, 3),
    multinomial("multinomial with impossible categories", 2, 4, zeros=(1, 3)),
    multinomial("multinomial by probabilities", 2, 4, zeros=(1, 3), is_by_probs=True),
    multinomial("multinomial of no draws", 0, 2),
]
COPIES = [
    *(copies(case) for case in ALONE if case.has_copies),
    copies(next(case for case in ALONE if case.name == "mixture of two bits"), dims=2),
    copies(next(case for case in ALONE if case.name == "short chain"), dims=2),
]
STRUCTURED_CASES = {case.name: case for case in [*ALONE, *COPIES]}


def further_sizes() -> Iterator[StructuredCase]:
    """Return subsets and rankings of k of d items, without item 1 if masked, and longer chains."""
    for k, d in ((0, 4), (1, 4), (2, 5), (4, 4), (1, 1), (0, 1), (3, 4)):
        size = f"{k} of {d}"
        yield subset(f"subset, {size}", d, k)
        if k > 0:
            yield ranking(f"ranking, {size}", d, k)
        if 0 < k < d:
            yield subset(f"masked subset, {size}", d, k, mask=(1,))
            yield ranking(f"masked ranking, {size}", d, k, mask=(1,))
            yield subset_by_logits(f"subset with a logit of -inf, {size}", d, k, mask=(1,))
    for form in FORMS:
        yield sequence("long sequence that ends", (3, 3, 3, 3), 1, form)
        yield sequence("cold sequence that ends", (3, 3, 3, 3), 1, form, temperature=0.4)
    yield crf("crf of three states", 3, 3)
    yield crf("crf with a table per step", 2, 3, by_step=True)
    yield crf("crf with rules", 3, 3, forbidden=((2, 0), (2, 2)), excluded=((2, 1),))


# Judged by their definition, but not with every estimator.
ALL_CASES = STRUCTURED_CASES | {case.name: case for case in further_sizes()}
