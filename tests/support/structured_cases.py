"""Small distributions of dependent variables, with their probabilities by definition.

Every family is judged alone and, where it is small, as independent copies with different
parameters. A definition gives every candidate a weight, in vectors, and shares no code with the
distributions: mixtures and multinomials are defined by torch's own ``log_prob``.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import permutations, product
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
)
from torch.nn.functional import one_hot, pad

from catlog.distributions import (
    Autoregressive,
    BayesianNetwork,
    Categoricals,
    LinearChainCRF,
    MarkovChain,
    Node,
    PlackettLuce,
    Subset,
)
from catlog.testing.cases import grid as every
from catlog.testing.cases import normals, placed
from support.laws import bits, integers, one_hots

NO = -torch.inf
SURE = 1e4  # log-odds of a certain bit
MOST_COPIED = 4  # points of a case that is judged as copies, too


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
    """

    name: str
    theta: Tensor
    distribution: Callable[[Tensor], Distribution]
    points: Tensor
    log_probs: Callable[[Tensor], Tensor]

    def probabilities(self, theta: Tensor) -> Tensor:
        return self.log_probs(theta).exp()


def defined(
    name: str,
    theta: Tensor,
    distribution: Callable[[Tensor], Distribution],
    candidates: Tensor,
    log_weights: Callable[[Tensor, Tensor], Tensor],
) -> StructuredCase:
    """Return a case with the candidates that have a weight; their weights are normalised."""
    points = candidates[log_weights(theta, candidates) > -SURE / 2]
    return StructuredCase(
        name, theta, distribution, points, lambda theta: log_weights(theta, points).log_softmax(0)
    )


def copies(case: StructuredCase, dims: int = 1) -> StructuredCase:
    """Return two copies, the second with other parameters, as torch's Independent."""
    theta = torch.stack([case.theta, 0.7 * case.theta.flip(-1)])
    lead = (1,) * (dims - 1) + (2,)
    rows = every(*[len(case.points)] * 2)

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
        case.points[rows].view(len(rows), *lead, *case.points.shape[1:]),
        log_probs,
    )


def extreme(case: StructuredCase, dtype: torch.dtype = torch.float64) -> StructuredCase:
    """Return the case with parameters of 80 times numbers in [-1, 1], half of which are +-1."""
    return replace(case, theta=(80 * (1.5 * case.theta).clamp(-1, 1)).to(dtype))


# Subsets, rankings, chains given evidence


def items(
    name: str,
    kind: type[Subset] | type[PlackettLuce],
    d: int,
    k: int,
    masked: int | None = None,
    by_logits: bool = False,
) -> StructuredCase:
    """Return a subset or ranking of k of d items; one may be masked, or have a logit of -inf."""
    is_masked = torch.arange(d) == (-1 if masked is None else masked)

    def log_weights(theta: Tensor, x: Tensor) -> Tensor:
        scores = theta.masked_fill(is_masked, NO)
        if kind is Subset:
            return scores.where(x == 1, 0.0).sum(-1)
        chosen = one_hot(x, d)
        rest = scores.masked_fill(chosen.cumsum(-2) - chosen > 0, NO)
        return rest.log_softmax(-1).gather(-1, x.unsqueeze(-1)).sum((-1, -2))

    def distribution(theta: Tensor) -> Distribution:
        mask = placed(is_masked, theta.device)
        if by_logits:
            return kind(theta.masked_fill(mask, NO), k)
        return kind(theta, k, None if masked is None else ~mask)

    if kind is Subset:
        candidates = every(*[2] * d)
        candidates = candidates[candidates.sum(-1) == k]
    else:
        candidates = torch.tensor(list(permutations(range(d), k)))
    theta = normals(d, seed=0 if kind is Subset else 1)
    return defined(name, theta, distribution, candidates, log_weights)


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
    rule, evidence = torch.zeros(k, k).double(), torch.zeros(steps, k).double()
    for table, pairs in ((rule, forbidden), (evidence, excluded)):
        for pair in pairs:
            table[pair] = NO
    shape = (steps - 1, k, k) if by_step else (k, k)

    def parts(theta: Tensor) -> tuple[Tensor, Tensor]:
        unary, tables = theta.split([steps * k, prod(shape)], -1)
        tables = tables.unflatten(-1, shape) + placed(rule, theta.device).to(theta)
        evidence_here = placed(evidence, theta.device).to(theta)
        return unary.unflatten(-1, (steps, k)) + evidence_here, tables

    def log_weights(theta: Tensor, x: Tensor) -> Tensor:
        unary, tables = parts(theta)
        step = torch.arange(steps)
        pairs = tables.expand(steps - 1, k, k)[step[:-1], x[:, :-1], x[:, 1:]]
        return unary[step, x].sum(-1) + pairs.sum(-1)

    theta = normals(steps * k + prod(shape), seed=2)
    grid = every(*[k] * steps)
    return defined(name, theta, lambda theta: LinearChainCRF(*parts(theta)), grid, log_weights)


# Chains and networks


# A certain start, some impossible steps and a certain one, as logits.
START = torch.tensor([NO, 0.0, NO], dtype=torch.float64)
STEP = torch.tensor([[0.0, NO, 0.0], [0.0, NO, 0.0], [NO, NO, 0.0]], dtype=torch.float64)


def chain(
    name: str, k: int, length: int, emission: int = 0, has_zeros: bool = False
) -> StructuredCase:
    sizes = [k, k * k, k * emission]

    def parts(theta: Tensor) -> list[Tensor | None]:
        initial, step, seen = theta.split(sizes, -1)
        tables = [initial, step.unflatten(-1, (k, k))]
        if has_zeros:
            zeros = (placed(table, theta.device).to(theta) for table in (START, STEP))
            tables = [table + zero for table, zero in zip(tables, zeros, strict=True)]
        return [*tables, seen.unflatten(-1, (k, -1)) if emission else None]

    def log_weights(theta: Tensor, x: Tensor) -> Tensor:
        initial, step, seen = parts(theta)
        states, step = x[:, :length], step.log_softmax(-1)
        total = initial.log_softmax(-1)[states[:, 0]] + step[states[:, :-1], states[:, 1:]].sum(-1)
        if seen is not None:
            total = total + seen.log_softmax(-1)[states, x[:, length:]].sum(-1)
        return total

    def distribution(theta: Tensor) -> Distribution:
        initial, step, seen = parts(theta)
        return MarkovChain(initial, step, length=length, emission=seen)

    grid = every(*[k] * length, *[emission] * (length if emission else 0))
    return defined(name, normals(sum(sizes)), distribution, grid, log_weights)


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
    """Return a fixed root, whose table is not learned, and a leaf."""
    weather = placed(WEATHER, theta.device)[:, 0].to(theta.dtype).expand(*theta.shape[:-1], 2)
    choice = Node(["weather"], theta.unflatten(-1, (2, 2)))
    return {"weather": Node([], weather, fixed=True), "choice": choice}


def known_nodes(theta: Tensor) -> dict[str, Node]:
    """Return fixed nodes alone, so that there is nothing to learn."""
    weather = placed(WEATHER, theta.device).to(theta.dtype).expand(*theta.shape[:-1], 2, 3)
    return {
        "season": Node([], weather[..., 0], fixed=True),
        "weather": Node(["season"], weather, fixed=True),
    }


def choices(theta: Tensor, fixed: bool = True) -> dict[str, Node]:
    """Return a known environment between learned choices."""
    weather = placed(WEATHER, theta.device).to(theta.dtype).expand(*theta.shape[:-1], 2, 3)
    return {
        "choice": Node([], theta[..., :2]),
        "weather": Node(["choice"], weather, fixed=fixed),
        "next": Node(["weather"], theta[..., 2:].unflatten(-1, (3, 2))),
    }


def network(
    name: str, size: int, nodes: Callable[[Tensor], dict[str, Node]], sizes: tuple[int, ...]
) -> StructuredCase:
    """Return a network whose definition looks up every point's logits, node by node."""

    def log_weights(theta: Tensor, x: Tensor) -> Tensor:
        total, named = torch.zeros(len(x), dtype=theta.dtype), nodes(theta)
        values = dict(zip(named, x.split([node.size for node in named.values()], -1), strict=True))
        for key, node in named.items():
            parents = torch.cat([x[:, :0], *(values[parent] for parent in node.parents)], -1)
            is_table = isinstance(node.logits, Tensor)
            logits = node.logits[parents.unbind(-1)] if is_table else node.logits(parents)
            if node.bits:
                logits = torch.stack([torch.zeros_like(logits), logits], -1)
            rows = logits.reshape(-1, node.size, logits.shape[-1]).log_softmax(-1)
            rows = rows.expand(len(x), -1, -1)
            total = total + rows.gather(-1, values[key].unsqueeze(-1)).sum((-1, -2))
        return total

    def distribution(theta: Tensor) -> Distribution:
        options = {"dtype": theta.dtype, "device": theta.device}
        return BayesianNetwork(nodes(theta), theta.shape[:-1], **options)

    return defined(f"network {name}", normals(size), distribution, every(*sizes), log_weights)


# Sequences of a network


class Steps:
    """A network by steps, which offers the forms that ``form`` names, and network(x, i)."""

    def __init__(self, theta: Tensor, sizes: tuple[int, ...], form: str = "") -> None:
        self.theta, self.sizes = theta, sizes
        self.context_in_state = form == "context in the state"
        if "all_logits" in form:
            self.all_logits = self._all_logits
        if "step" in form or self.context_in_state:
            self.start, self.step = self._start, self._step

    def __call__(self, x: Tensor, i: int) -> Tensor:
        logits, state = self._step(self._start(x.shape[:-1]), 0, None)
        for j in range(1, i + 1):
            logits, state = self._step(state, j, x[..., j - 1])
        return logits

    def _all_logits(self, x: Tensor) -> Tensor:
        rows = [self(x, i) for i in range(x.shape[-1])]
        return torch.stack([pad(row, (0, max(self.sizes) - row.shape[-1])) for row in rows], -2)


class Counting(Steps):
    """Its logits depend on the sum of the earlier tokens; the parameters may be in the state."""

    parameters = 9

    def _start(self, lead: torch.Size) -> tuple[Tensor, ...]:
        total = self.theta.new_zeros(lead)
        return (total, self.theta.expand(*lead, 9)) if self.context_in_state else (total,)

    def _step(self, state: Any, i: int, previous: Tensor | None) -> tuple[Tensor, Any]:
        total, theta = state if self.context_in_state else (*state, self.theta)
        total = total if previous is None else total + previous
        table = theta.unflatten(-1, (3, 3))
        logits = table[..., i % 3, :] + total.unsqueeze(-1) * table[..., (i + 1) % 3, :]
        return logits[..., : self.sizes[i]], (total, *state[1:])


class Recurrent(Steps):
    """A tiny recurrent network with all its parameters shared between positions."""

    parameters = 6

    def _start(self, lead: torch.Size) -> tuple[Tensor, ...]:
        return self.theta[..., 0].expand(lead), self.theta.new_zeros(lead)

    def _step(self, state: Any, i: int, previous: Tensor | None) -> tuple[Tensor, Any]:
        hidden, count = state
        _, decay, new, first, second, slope = self.theta.unbind(-1)
        if previous is not None:
            hidden = (hidden * decay + new * previous + 0.3 * count).tanh()
            count = count + previous
        return torch.stack([first * hidden, second - hidden * slope], -1), (hidden, count)


def sequence(
    name: str,
    sizes: tuple[int, ...],
    end: int | None,
    form: str,
    kind: type[Counting] | type[Recurrent] = Counting,
    temperature: float | None = 1.0,
) -> StructuredCase:
    """Return a sequence of the network; a temperature of None is a parameter, too."""

    def parts(theta: Tensor) -> tuple[Tensor, float | Tensor]:
        if temperature is not None:
            return theta, temperature
        return theta[..., :-1], 0.5 + theta[..., -1].square()

    def log_weights(theta: Tensor, x: Tensor) -> Tensor:
        theta, heat = parts(theta)
        rows = [kind(theta, sizes)(x, i) / heat for i in range(len(sizes))]
        tokens = [row.log_softmax(-1).gather(-1, x[:, [i]]) for i, row in enumerate(rows)]
        is_end = x == (-1 if end is None else end)
        is_over = is_end.cumsum(-1) > is_end.long()
        total = torch.cat(tokens, -1).masked_fill(is_over, 0.0).sum(-1)
        return total.masked_fill((is_over & ~is_end).any(-1), NO)

    def distribution(theta: Tensor) -> Distribution:
        theta, heat = parts(theta)
        options = {"end": end, "temperature": heat, "dtype": theta.dtype}
        law = kind(theta, sizes, form)
        return Autoregressive(law, sizes, theta.shape[:-1], device=theta.device, **options)

    theta = normals(kind.parameters + (temperature is None), seed=3)
    return defined(f"{name}, {form}", theta, distribution, every(*sizes), log_weights)


FORMS = ("network(x, i)", "all_logits", "step", "step and all_logits")


def sequences() -> Iterator[StructuredCase]:
    for form in FORMS:
        yield sequence("sequence", (2, 2), None, form)
        yield sequence("sequence of different sizes", (2, 3, 2), None, form)
        yield sequence("sequence that ends", (2, 2, 2), 1, form)
        yield sequence("sequence of different sizes that ends", (2, 3, 2), 0, form)
    yield sequence("sequence that ends", (2, 2, 2), 1, "context in the state")
    yield sequence("recurrent", (2, 2, 2), None, "step", Recurrent)
    yield sequence("recurrent that ends", (2, 2, 2), 1, "network(x, i)", Recurrent)
    yield sequence("recurrent that ends", (2, 2, 2), 0, "step", Recurrent, temperature=None)


# Mixtures and multinomials of torch


def mixture(
    name: str,
    shape: tuple[int, ...],
    points: Tensor,
    by_logits: Callable[[Tensor], Distribution],
    components: Callable[[Tensor], Distribution] | None = None,
    by_probs: bool = False,
    mask: tuple[bool, ...] = (),
) -> StructuredCase:
    """Return a mixture of ``components``, which is defined by torch's one of their logits.

    ``shape`` is that of the logits, components first; those of ``mask`` are impossible.
    """
    count, no_weight = shape[0], torch.tensor(mask)

    def parts(theta: Tensor) -> tuple[Tensor, Tensor]:
        weights, logits = theta[..., :count], theta[..., count:].unflatten(-1, shape)
        if mask:
            weights = weights.masked_fill(placed(no_weight, theta.device), NO)
        return weights, logits

    def log_weights(theta: Tensor, x: Tensor) -> Tensor:
        weights, logits = parts(theta)
        return MixtureSameFamily(Categorical(logits=weights), by_logits(logits)).log_prob(x)

    def distribution(theta: Tensor) -> Distribution:
        weights, logits = parts(theta)
        law = Categorical(probs=weights.exp()) if by_probs else Categorical(logits=weights)
        return MixtureSameFamily(law, (components or by_logits)(logits))

    return defined(name, normals(count + prod(shape), seed=4), distribution, points, log_weights)


CERTAIN = torch.tensor([[SURE, 0, 0], [0, 0, -SURE]], dtype=torch.float64)  # bits by components
MASK = torch.zeros(3, 2, 3, dtype=torch.bool)
MASK[:, 0, 2] = MASK[1, 1, 0] = True
SHORTER = torch.tensor([[False, False, False], [False, False, True]])


def certain(logits: Tensor) -> Tensor:
    known = placed(CERTAIN, logits.device)
    return torch.where(known == 0, logits, known)


def mixtures() -> Iterator[StructuredCase]:
    triples, vectors = every(2, 2, 2).double(), torch.eye(3).double()
    yield mixture("mixture of bits", (2, 3), triples, bits)
    yield mixture("mixture of two bits", (2, 2), every(2, 2).double(), bits)
    yield mixture(
        "mixture of bits by probabilities",
        (2, 3),
        triples,
        lambda logits: bits(certain(logits)),
        lambda logits: Independent(Bernoulli(probs=certain(logits).sigmoid()), 1),
        by_probs=True,
    )
    yield mixture("mixture of numbers", (2, 2, 3), every(3, 3), integers)
    yield mixture(
        "masked mixture",
        (3, 2, 3),
        every(3, 3),
        lambda logits: integers(logits.masked_fill(placed(MASK, logits.device), NO)),
        mask=(False, False, True),
    )
    yield mixture(
        "mixture of single numbers", (2, 3), every(3)[:, 0], lambda row: Categorical(logits=row)
    )
    yield mixture("mixture of one-hot vectors", (2, 2, 3), vectors[every(3, 3)], one_hots)
    yield mixture(
        "mixture of different cardinalities",
        (2, 2, 3),
        every(3, 2),
        lambda logits: integers(logits.masked_fill(SHORTER, NO)),
        lambda logits: Categoricals(logits, (3, 2)),
    )


def multinomial(
    name: str, n: int, k: int, zeros: tuple[int, ...] = (), by_probs: bool = False
) -> StructuredCase:
    """Return a Multinomial, in which the categories ``zeros`` are impossible."""
    is_zero = torch.tensor([i in zeros for i in range(k)])

    def by_logits(theta: Tensor) -> Distribution:
        return Multinomial(n, logits=theta.masked_fill(placed(is_zero, theta.device), NO))

    def of_probs(theta: Tensor) -> Distribution:
        return Multinomial(n, probs=theta.exp() * ~placed(is_zero, theta.device))

    candidates = every(*[n + 1] * k).double()
    return defined(
        name,
        normals(k, seed=5),
        of_probs if by_probs else by_logits,
        candidates[candidates.sum(-1) == n],
        lambda theta, x: by_logits(theta).log_prob(x),
    )


ALONE = [
    items("subset", Subset, 4, 2),
    items("subset of one", Subset, 3, 1),
    items("subset of none", Subset, 2, 0),
    items("subset of all", Subset, 2, 2),
    items("masked subset", Subset, 4, 2, masked=1),
    items("ranking", PlackettLuce, 3, 3),
    items("ranking of the first two", PlackettLuce, 3, 2),
    items("ranking of the first", PlackettLuce, 3, 1),
    items("masked ranking", PlackettLuce, 3, 2, masked=0),
    crf("crf", 2, 3),
    crf("short crf", 2, 2),
    crf("crf of one step", 2, 1),
    crf("crf with a rule", 2, 3, forbidden=((1, 0),)),
    chain("chain", 2, 3),
    chain("short chain", 2, 2),
    chain("chain of three states", 3, 2),
    chain("chain with observations", 2, 2, emission=2),
    chain("chain with impossible steps", 3, 3, has_zeros=True),
    network("with a block", 17, block_network, (2, 2, 3, 2)),
    network("of bits", 8, network_of_bits, (2, 2, 2, 2)),
    network("of networks", 7, network_of_networks, (2, 3, 2)),
    network("with a known root", 4, known_root, (2, 2)),
    network("of known nodes", 1, known_nodes, (2, 3)),
    network("with a known node", 8, choices, (2, 3, 2)),
    *sequences(),
    *mixtures(),
    multinomial("multinomial", 2, 3),
    multinomial("multinomial of three draws", 3, 3),
    multinomial("multinomial with impossible categories", 2, 4, zeros=(1, 3)),
    multinomial("multinomial by probabilities", 2, 4, zeros=(1, 3), by_probs=True),
    multinomial("multinomial of no draws", 0, 2),
]
COPIES = [
    *(copies(case) for case in ALONE if len(case.points) <= MOST_COPIED),
    *(copies(case, 2) for case in ALONE if case.name in ("mixture of two bits", "short chain")),
]
STRUCTURED_CASES = {case.name: case for case in [*ALONE, *COPIES]}


def further_sizes() -> Iterator[StructuredCase]:
    """Return subsets and rankings of k of d items, without item 1 if masked, and longer chains."""
    for (k, d), kind in product(
        ((0, 4), (1, 4), (2, 5), (4, 4), (1, 1), (0, 1), (3, 4)), (Subset, PlackettLuce)
    ):
        name, size = "subset" if kind is Subset else "ranking", f"{k} of {d}"
        if k > 0 or kind is Subset:
            yield items(f"{name}, {size}", kind, d, k)
        if 0 < k < d:
            yield items(f"masked {name}, {size}", kind, d, k, masked=1)
            yield items(f"{name} with a logit of -inf, {size}", kind, d, k, 1, by_logits=True)
    for form in FORMS:
        yield sequence("long sequence that ends", (3, 3, 3, 3), 1, form)
        yield sequence("cold sequence that ends", (3, 3, 3, 3), 1, form, temperature=0.4)
    yield chain("chain of five states", 5, 2)
    yield crf("crf of three states", 3, 3)
    yield crf("crf with a table per step", 2, 3, by_step=True)
    yield crf("crf with rules", 3, 3, forbidden=((2, 0), (2, 2)), excluded=((2, 1),))


# Judged by their definition, but not with every estimator.
ALL_CASES = STRUCTURED_CASES | {case.name: case for case in further_sizes()}
