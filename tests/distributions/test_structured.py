"""Structured distributions: cost, draws that are scored, parameters that broadcast, narrow types.

test_checklist.py judges the distributions and test_every_estimator.py every estimator on them, both
by enumeration.
"""

import tracemalloc
from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor, zeros
from torch.distributions import Distribution, Independent, Multinomial
from torch.testing import assert_close

import catlog
from catlog.core.randomness import Randomness
from catlog.core.view import view
from catlog.distributions import (
    Autoregressive,
    BayesianNetwork,
    LinearChainCRF,
    MarkovChain,
    Node,
    Ordered,
    PlackettLuce,
    Subset,
    component_first,
)
from catlog.estimators import BBVI, RAM
from catlog.testing.cases import normals, seeded
from support.gradients import assert_same
from support.operations import Operations
from support.structured_cases import ALL_CASES, choices, close, known_nodes


def total(x: Tensor) -> Tensor:
    return x.flatten(1).sum(-1).float()


def counting(k: int, rows: list[int]) -> Callable[..., Tensor]:
    """Return a network of k categories that notes its numbers of rows."""
    return lambda x, *i: (rows.append(len(x)), zeros(*x.shape[:-1], k))[1]


# What they cost


def uneven(calls: list[int]) -> Autoregressive:
    """Return three variables, without the calls that look for a network's mistakes."""
    networks = [counting(k, calls) for k in (3, 2, 4)]
    return Autoregressive(lambda x, i: networks[i](x), [3, 2, 4], validate_args=False)


def case(name: str) -> Distribution:
    return ALL_CASES[name].distribution(ALL_CASES[name].theta)


ENVIRONMENT = ALL_CASES["network with a known node"].theta
EVALUATIONS: dict[str, tuple[catlog.Estimator, Distribution, int]] = {
    "a node that is known": (catlog.SCateR(1), BayesianNetwork(choices(ENVIRONMENT)), 1 + 1 + 1),
    "as if it were learned": (
        catlog.SCateR(1), BayesianNetwork(choices(ENVIRONMENT, fixed=False)), 1 + 1 + 2 + 1
    ),
    "known nodes": (catlog.SCateR(3), BayesianNetwork(known_nodes(zeros(1))), 3),
    "known nodes, RAM": (RAM(3), BayesianNetwork(known_nodes(zeros(1))), 3),
    "a multinomial": (catlog.SCateR(1), Multinomial(2, logits=zeros(3)), 1 + 2 * 2),
    "the component": (catlog.SCateR(1), component_first(case("mixture of bits")), 1 + 1 + 3),
    "copies": (catlog.SCateR(1), case("copies of short chain"), 1 + 4),
    "a sequence": (catlog.SCateR(5), uneven([]), 5 * (1 + 2 + 1 + 3)),
    "a subset": (catlog.Exact(), case("subset, 2 of 5"), 10),
    "a ranking": (catlog.Exact(), case("ranking, 2 of 5"), 20),
}  # fmt: skip


def test_leg_gives_categories_beyond_a_variable_s_own_no_weight() -> None:
    """The mean of a constant is that constant, but for rounding."""
    q = case("network of networks")
    value = catlog.estimators.LEG(50)(lambda x: 1e6 + 0.0 * x.sum(-1).double(), q)
    assert_close(value, torch.tensor(1e6).double(), rtol=1e-14, atol=0)


@pytest.mark.parametrize("name", EVALUATIONS)
def test_evaluations_as_promised(name: str) -> None:
    E, q, count = EVALUATIONS[name]
    rows: list[int] = []
    E(lambda x: (rows.append(len(x)), total(x))[1], q)
    assert sum(rows) == E.evaluations(q) == count


def test_calls_of_a_network() -> None:
    """Rows: the base and every move of an earlier variable; only descendants are drawn again."""
    calls: list[int] = []
    catlog.SCateR(5)(total, uneven(calls))
    assert calls[:3] == [5 * 1, 5 * (1 + 2), 5 * (1 + 2 + 1)]  # the sweep
    assert calls[3:6] == [5, 5, 5]  # the differentiable pass at the base draws
    rows: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    sizes, parents = {"a": 3, "b": 4, "c": 2}, {"a": [], "b": [], "c": ["b"]}
    nodes = {n: Node(parents[n], counting(sizes[n], rows[n]), cardinality=sizes[n]) for n in rows}
    catlog.SCateR(1)(total, BayesianNetwork(nodes))  # whose sweep comes first
    assert [rows[name][0] for name in "abc"] == [1, 1, 1 + 3]  # c for three other values of b


@pytest.mark.parametrize("name", ["chain", "emitting chain", "autoregressive"])
def test_long_sequences_are_made_in_little_memory(name: str) -> None:
    """Sets of all earlier variables would hold d^2 / 2 numbers, 128 MB here."""
    d, table = 2000, zeros(2, 2)
    tracemalloc.start()
    if name == "autoregressive":
        Autoregressive(lambda x, i: zeros(*x.shape[:-1], 2), (2,) * d)
    else:
        MarkovChain(table[0], table, length=d, emission=table if "emitting" in name else None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**22


# What is drawn and scored, and the most operations, and numbers that they return.
DRAWN: dict[str, tuple[Distribution, int, int]] = {
    # Per count 50 operations on 2 draws with 6 logits; all logits would be 1200.
    "a count needs its own logits alone": (Multinomial(5, logits=normals(100)), 10_000, 120_000),
    "fifty chains take as many as one": (
        Independent(MarkovChain(normals(50, 2), normals(2, 2), length=10), 1), 150, 10**6
    ),
    "fifty subsets take as many as one": (
        Independent(Subset(normals(50, 10), 3), 1), 250, 10**6
    ),
    "a ranking needs no table": (PlackettLuce(normals(50)), 250, 20_000),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWN)
def test_draws_take_few_operations(name: str) -> None:
    q, most, numbers = DRAWN[name]
    with Operations() as operations:
        law = view(q)
        law.log_prob(law.index(Randomness(law).points(2)))
    assert operations.count <= most
    assert operations.numbers <= numbers


# Draws that are scored in the pass that makes them


@pytest.mark.parametrize("E", [catlog.RLOO(4), catlog.CritiCateR(4), BBVI(4)], ids=repr)
@pytest.mark.parametrize("outputs", [0, 1])
def test_draws_are_scored_in_the_pass_that_makes_them(E: catlog.Estimator, outputs: int) -> None:
    """The network runs once for all draws, also if f reads log q; numbers are as at given draws."""
    if outputs and not E.many_outputs:
        pytest.skip("takes no outputs")
    theta, slope = normals(5, 3, 2).requires_grad_(), normals(3, 2, seed=1).requires_grad_()
    rows: list[int] = []
    points: list[Tensor] = []

    def network(parents: Tensor) -> Tensor:
        rows.append(len(parents))
        return (parents.double() @ slope).unsqueeze(-1) * normals(2, seed=2)

    leaf = Node(["a"], network, cardinality=2, size=2)
    q = BayesianNetwork({"b": leaf, "a": Node([], theta, size=3)}, (5,))

    def f(x: Tensor) -> Tensor:
        points.append(x.clone())
        value = x.double().sum(-1).sin() - q.log_prob(x).detach()
        return torch.stack([value, value.square()], -1) if outputs else value

    value = E(f, q, outputs=outputs, generator=seeded())
    assert rows == [4]
    assert_same(value, E(f, q, outputs=outputs, x=points[0]), [theta, slope])


def test_log_q_of_scored_draws_is_that_of_the_point_and_of_now() -> None:
    """Also where f writes into its point or into log q, and after a step of an optimiser."""
    theta, kept = normals(5, 3, 2).requires_grad_(), []
    q = BayesianNetwork({"a": Node([], theta, size=3)}, (5,))

    def writing(x: Tensor) -> Tensor:
        with torch.no_grad():
            log_prob = q.log_prob(x)
            assert not log_prob.requires_grad
            log_prob += 1
        close(q.log_prob(x), q.log_prob(x.clone()))
        x[..., 0] = 1 - x[..., 0]
        close(q.log_prob(x), q.log_prob(x.clone()))
        return x.sum(-1).float()

    catlog.RLOO(2)(writing, q)
    catlog.RLOO(2)(lambda x: (kept.append(x), x.sum(-1).float())[1], q)
    theta.data[0, 0, 0] += 1
    close(q.log_prob(kept[0]), q.log_prob(kept[0].clone()))


# Arguments of many shapes and types


COUNTS = torch.tensor([[0, 1, 2], [6, 3, 4]])
KEPT = torch.ones(2, 3, 6, dtype=torch.bool)
KEPT[0, 1, 4:] = KEPT[1, 2, 0] = False
TABLES = (normals(3, 3, seed=1), 2), (normals(3, 2, seed=2), 2)


def emitting(initial: Tensor, step: Tensor, emission: Tensor) -> MarkovChain:
    return MarkovChain(initial, step, length=3, emission=emission)


# What makes q, and its parameters, each with its number of dimensions without a batch.
BROADCAST: dict[str, tuple[Callable[..., Ordered], list[tuple[Tensor, int]]]] = {
    "Subset": (Subset, [(normals(2, 1, 6), 1), (COUNTS, 0), (KEPT, 1)]),
    "a mask": (PlackettLuce, [(normals(6), 1), (torch.tensor(2), 0), (KEPT, 1)]),
    "a pairwise table": (LinearChainCRF, [(normals(3, 4, 2), 2), (normals(2, 2), 2)]),
    "two tables": (emitting, [(normals(4, 3), 1), *TABLES]),
    "a batch of two dimensions": (emitting, [(normals(2, 4, 3), 1), *TABLES]),
}  # fmt: skip


@pytest.mark.parametrize("name", BROADCAST)
def test_parameters_broadcast(name: str) -> None:
    """A batch equals a loop, with the gradients; so does the expanded distribution."""
    make, parts = BROADCAST[name]
    theta = parts[0][0].requires_grad_()
    shapes = [part.shape[: part.dim() - dims] for part, dims in parts]
    batch = torch.broadcast_shapes(*shapes)
    whole = [part.expand(*batch, *part.shape[part.dim() - dims :]) for part, dims in parts]
    q = make(*(int(part) if part.numel() == 1 else part for part, _ in parts))
    wide, x = q.expand((2, *batch)), q.sample((5,))
    assert q.batch_shape == batch
    assert wide.sample().shape == (2, *x.shape[1:])
    for b in product(*map(range, batch)):
        points = x[(slice(None), *b)]
        alone = make(*(int(part[b]) if part[b].dim() == 0 else part[b] for part in whole))
        for law, place in ((q, b), (wide, (1, *b))):
            rows = x if law is q else x.unsqueeze(1).expand(5, *wide.batch_shape, -1)
            for got, wanted in (
                (law.log_prob(rows)[(slice(None), *place)], alone.log_prob(points)),
                (law.marginals()[place], alone.marginals()),
                (law.entropy()[place], alone.entropy()),
                *(
                    (getattr(law, key)[place], getattr(alone, key))
                    for key in ("log_partition", "mean")
                    if key in vars(type(law))
                ),
            ):
                weight = normals(wanted.numel(), seed=1).view_as(wanted)
                assert_same(weight * got, weight * wanted, theta, rtol=1e-13, atol=1e-12)


def test_devices_by_name_or_without_data_and_cardinalities_from_an_iterator() -> None:
    for q in (
        Autoregressive(counting(2, []), iter([2, 2]), device="cpu"),
        BayesianNetwork({"a": Node([], counting(2, []), cardinality=2)}, device="cpu"),
    ):
        assert q.device == torch.device("cpu")
        catlog.RLOO(2)(total, q, generator=seeded())
    meta = PlackettLuce(zeros(3, device="meta"), 2)  # has shapes only; no value is looked at
    assert meta.entropy().shape == ()
    assert meta.log_prob(meta.sample((5,))).shape == (5,)
