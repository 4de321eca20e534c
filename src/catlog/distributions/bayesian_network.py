"""Bayesian networks of categorical variables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.categories import as_index, as_logits
from ..core.checks import check_count, check_flag, check_kind, check_tensor, refusal
from ..core.ordered import Ordered, as_batch_shape, check_logits, dtype_and_device
from ..core.tracing import constant_result
from .markov_chain import lookup


@dataclass(frozen=True, eq=False)
class Node:
    """A node of a :class:`BayesianNetwork`: a variable, or variables that share parents.

    The variables of a node are independent given the parents.

    Args:
        parents: names of nodes.
        logits: a table ``[*batch, k_parent_1, ..., k_parent_m, k]`` (a block: ``[..., size, k]``),
            or a network that maps the values of all the parents' variables, ``[rows, *batch, p]``
            int64, to logits ``[rows, *batch, k]`` (a block: ``[..., size, k]``).
        cardinality: k; needed with a network, and read off a table.
        size: number of variables of the block.
        fixed: it has nothing to learn, so estimators spend no evaluations on it.
        bits: ``logits`` are the log-odds of a 1 and lack the dimension k; cheaper than two logits.
    """

    parents: Sequence[str]
    logits: Tensor | Callable[[Tensor], Tensor]
    cardinality: int | None = None
    size: int = 1
    fixed: bool = False
    bits: bool = False

    @property
    def tail(self) -> int:
        """The number of dimensions of ``logits`` after those of the parents."""
        return (self.size > 1) + (not self.bits)


class BayesianNetwork(Ordered):
    r"""A directed acyclic graph of tables or networks.

    .. math:: q(x) = \prod_i q(x_i \mid x_{\text{parents}(i)})

    The event lists the nodes' variables in the order in which the nodes are given, which need not
    be an order of drawing.

    Args:
        nodes: by name. Parameters may be shared between nodes.
        batch_shape: of the distribution; the tables' leading dimensions.
        device, dtype: needed if no node is a table.

    >>> q = BayesianNetwork({
    ...     "wet": Node(["rain"], torch.tensor([[9.0, 0.0], [0.0, 9.0]])),
    ...     "rain": Node([], torch.tensor([0.0, 0.0])),
    ... })
    >>> q.log_prob(torch.tensor([1, 1])).exp()
    tensor(0.4999)
    """

    one_pass = True

    def __init__(
        self,
        nodes: Mapping[str, Node],
        batch_shape: Sequence[int] = (),
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        validate_args: bool | None = None,
    ) -> None:
        batch = as_batch_shape("BayesianNetwork", batch_shape)
        described = tuple(_described(name, node) for name, node in _checked(nodes).items())
        graph = (_graph if torch.compiler.is_compiling() else _known_graph)(described)
        tables = []
        for name, node in nodes.items():
            if isinstance(node.logits, Tensor):
                subject = f"BayesianNetwork: the table of node {name!r}"
                form = f"[*batch, *cardinalities of the parents {list(node.parents)}, k]"
                check_tensor(subject, node.logits, (*batch, *graph.tables[name]), form)
                tables.append(node.logits)
        self.nodes = dict(nodes)
        self.order = graph.order
        self.parents = graph.parents
        self.blocks = graph.blocks
        self.ancestors = graph.ancestors
        self.cardinalities = graph.cardinalities
        self.fixed = graph.fixed
        self.real, self.device = dtype_and_device(dtype, device, tables)
        super().__init__(batch, torch.Size([len(self.cardinalities)]), validate_args=validate_args)

    def conditional(self, x: Tensor, block: int) -> Tensor:
        node, parents = self.nodes[self.order[block]], self.parents[block]
        first = self.blocks[block][0]
        shape = (node.size,) if node.bits else (node.size, self.cardinalities[first])
        lead = x.shape[:-1]
        if not isinstance(node.logits, Tensor):
            raw = node.logits(x[..., as_index(parents)])
            if node.bits:
                check_logits(raw, lead + shape[: node.tail], first)
            return raw.unsqueeze(-len(shape)) if node.size == 1 and isinstance(raw, Tensor) else raw
        logits = as_logits(node.logits)
        batch = logits.shape[: logits.dim() - len(parents) - node.tail]
        if not parents:
            return logits.reshape(batch + shape).expand(lead + shape)
        index = torch.zeros(lead, dtype=torch.int64, device=x.device)
        for i in parents:
            index = index * self.cardinalities[i] + x[..., i]
        rows = prod([self.cardinalities[i] for i in parents])
        table = logits.reshape(batch + (rows, prod(shape)))
        return lookup(table, index).unflatten(-1, shape)


class _Graph(NamedTuple):
    """What follows from the names, parents and sizes of nodes.

    Attributes:
        order: the names, parents first.
        parents: the variables of the parents of each name, in this order.
        blocks: the variables of each name.
        ancestors: all variables that each name depends on.
        cardinalities: of the variables, in the order of the event.
        fixed: variables that have nothing to learn.
        tables: the dimensions of every node's table behind the batch, by name.
    """

    order: tuple[str, ...]
    parents: tuple[tuple[int, ...], ...]
    blocks: tuple[tuple[int, ...], ...]
    ancestors: tuple[frozenset[int], ...]
    cardinalities: tuple[int, ...]
    fixed: frozenset[int]
    tables: dict[str, tuple[int, ...]]


# A node without its numbers: name, parents, size, number of categories, fixed, bits.
_Described = tuple[str, tuple[str, ...], int, int, bool, bool]


def _graph(nodes: tuple[_Described, ...]) -> _Graph:
    """Return what the nodes say of their variables, or raise unless they are a graph."""
    place: dict[str, tuple[int, ...]] = {}
    cardinalities: list[int] = []
    for name, _, size, k, *_ in nodes:
        place[name] = tuple(range(len(cardinalities), len(cardinalities) + size))
        cardinalities += [k] * size
    parents: dict[str, tuple[int, ...]] = {}
    tables: dict[str, tuple[int, ...]] = {}
    fixed: list[int] = []
    for name, names, size, k, is_fixed, bits in nodes:
        for parent in names:
            if parent not in place:
                subject = f"BayesianNetwork: parent {parent!r} of node {name!r}"
                raise refusal(subject, "be a node", f"the nodes are {list(place)}")
        parents[name] = tuple(i for parent in names for i in place[parent])
        sizes = [cardinalities[i] for i in parents[name]]
        tables[name] = (*sizes, *[size] * (size > 1), *[k] * (not bits))
        fixed += place[name] if is_fixed else ()
    named = {name: names for name, names, *_ in nodes}
    order = _parents_first(named)
    reach: dict[str, frozenset[int]] = {}
    for name in order:
        reach[name] = frozenset(parents[name]).union(*[reach[parent] for parent in named[name]])
    return _Graph(
        order,
        tuple(parents[name] for name in order),
        tuple(place[name] for name in order),
        tuple(reach[name] for name in order),
        tuple(cardinalities),
        frozenset(fixed),
        tables,
    )


_known_graph = lru_cache(_graph)  # a network is made at every step of training


def _checked(nodes: Any) -> Mapping[str, Node]:
    """Return the nodes, or raise unless they are some by name."""
    claim = "be a dict from names to catlog.distributions.Node"
    check_kind("BayesianNetwork: `nodes`", nodes, Mapping, claim)
    for node in nodes.values():
        check_kind("BayesianNetwork: `nodes`", node, Node, claim)
    if not nodes:
        raise refusal("BayesianNetwork: `nodes`", "have at least one variable", "it is empty")
    return nodes


def _described(name: str, node: Node) -> _Described:
    """Return the sizes of a node, or raise unless it has a table or a network, and they fit it."""
    owner, logits = f"BayesianNetwork: node {name!r}", node.logits
    if isinstance(node.parents, str):
        but, remedy = f"the string {node.parents!r} was given", f"Pass [{node.parents!r}]."
        raise refusal(f"{owner}: `parents`", "be a list of names", but, remedy, TypeError)
    check_count(owner, "size", node.size)
    check_flag(owner, "bits", node.bits)
    k = 2 if node.bits else node.cardinality
    if node.cardinality is not None:
        check_count(owner, "cardinality", node.cardinality)
    if isinstance(logits, Tensor) and not node.bits:
        if logits.dim() == 0 or logits.shape[-1] == 0:
            claim = "have the categories in their last dimension, at least one"
            raise refusal(f"{owner}: `logits`", claim, f"{tuple(logits.shape)} was given")
        k = logits.shape[-1]
    elif not isinstance(logits, Tensor) and not callable(logits):
        but = f"{type(logits).__name__} was given"
        raise refusal(f"{owner}: `logits`", "be a tensor or a network", but, kind=TypeError)
    if k is None:
        raise ValueError(f"{owner} is a network; give its `cardinality`.")
    if node.cardinality not in (None, k):
        kind = "of bits" if node.bits else "of its table"
        but, remedy = f"it is {node.cardinality}", "It needs none."
        raise refusal(f"{owner}: `cardinality`", f"be that {kind}, {k}", but, remedy)
    return name, tuple(node.parents), node.size, k, node.fixed, node.bits


@constant_result  # torch 2.6 cannot trace graphlib
def _parents_first(parents: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the names with parents before their children, or raise an error that shows a cycle."""
    try:
        return tuple(TopologicalSorter(parents).static_order())
    except CycleError as error:
        cycle = " -> ".join(reversed(error.args[1]))
        raise ValueError(
            f"BayesianNetwork: the graph has a cycle, {cycle} (child -> parent); remove one of its "
            "edges."
        ) from None
