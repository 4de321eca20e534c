"""Bayesian networks of categorical variables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from math import prod

import torch
from torch import Tensor

from ..core.categories import as_index, as_logits
from ..core.checks import check_count
from ..core.ordered import Ordered, as_batch_shape, dtype_and_device
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
    """

    parents: Sequence[str]
    logits: Tensor | Callable[[Tensor], Tensor]
    cardinality: int | None = None
    size: int = 1
    fixed: bool = False


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
        _check_nodes(nodes)
        batch = as_batch_shape("BayesianNetwork", batch_shape)
        place: dict[str, tuple[int, ...]] = {}
        sizes: dict[str, int] = {}
        for name, node in nodes.items():
            first = sum(map(len, place.values()))
            place[name] = tuple(range(first, first + node.size))
            size = node.logits.shape[-1] if isinstance(node.logits, Tensor) else node.cardinality
            if size is None:
                raise ValueError(
                    f"BayesianNetwork: node {name!r} is a network; give its `cardinality`."
                )
            if node.cardinality not in (None, size):
                raise ValueError(
                    f"BayesianNetwork: node {name!r}: `cardinality` must be that of its table, "
                    f"{size}, but it is {node.cardinality}. A table needs none."
                )
            sizes[name] = size
        for name, node in nodes.items():
            for parent in node.parents:
                if parent not in nodes:
                    raise ValueError(
                        f"BayesianNetwork: parent {parent!r} of node {name!r} is not among the "
                        f"nodes {list(nodes)}."
                    )
            if isinstance(node.logits, Tensor):
                block = (node.size,) if node.size > 1 else ()
                parents = tuple(sizes[parent] for parent in node.parents for _ in place[parent])
                expected = (*batch, *parents, *block, sizes[name])
                if tuple(node.logits.shape) != expected:
                    raise ValueError(
                        f"BayesianNetwork: the table of node {name!r} must have shape {expected} "
                        f"([*batch, *cardinalities of the parents {list(node.parents)}, k]), but "
                        f"{tuple(node.logits.shape)} was given."
                    )
        order = _parents_first({name: tuple(node.parents) for name, node in nodes.items()})
        reach: dict[str, frozenset[int]] = {}
        for name in order:
            reach[name] = frozenset(
                [i for parent in nodes[name].parents for i in (*reach[parent], *place[parent])]
            )
        tables = [node.logits for node in nodes.values() if isinstance(node.logits, Tensor)]
        self.nodes = dict(nodes)
        self.order = order
        self.place = place
        self.blocks = tuple(place[name] for name in order)
        self.ancestors = tuple(reach[name] for name in order)
        self.cardinalities = tuple(sizes[name] for name in nodes for _ in place[name])
        self.fixed = frozenset(i for name, node in nodes.items() if node.fixed for i in place[name])
        self.real, self.device = dtype_and_device(dtype, device, tables)
        super().__init__(batch, torch.Size([len(self.cardinalities)]), validate_args=validate_args)

    def conditional(self, x: Tensor, block: int) -> Tensor:
        name = self.order[block]
        node = self.nodes[name]
        parents = tuple(i for parent in node.parents for i in self.place[parent])
        if not isinstance(node.logits, Tensor):
            raw = node.logits(x[..., as_index(parents)])
            return raw if node.size > 1 or not isinstance(raw, Tensor) else raw.unsqueeze(-2)
        shape = (node.size, self.cardinalities[self.place[name][0]])
        logits = as_logits(node.logits)
        batch = logits.shape[: logits.dim() - len(parents) - (2 if node.size > 1 else 1)]
        if not parents:
            return logits.reshape(batch + shape).expand(x.shape[:-1] + shape)
        index = torch.zeros(x.shape[:-1], dtype=torch.int64, device=x.device)
        for i in parents:
            index = index * self.cardinalities[i] + x[..., i]
        rows = prod([self.cardinalities[i] for i in parents])
        table = logits.reshape(batch + (rows, prod(shape)))
        return lookup(table, index).unflatten(-1, shape)


def _check_nodes(nodes: object) -> None:
    """Raise unless ``nodes`` are nodes by name, each with a table or a network of its own sizes."""
    if not isinstance(nodes, Mapping) or not all(isinstance(n, Node) for n in nodes.values()):
        what = type(nodes).__name__
        if isinstance(nodes, Mapping):
            what = next(type(n).__name__ for n in nodes.values() if not isinstance(n, Node))
        raise TypeError(
            "BayesianNetwork: `nodes` must be a dict from names to catlog.distributions.Node, but "
            f"{what} was given."
        )
    if not nodes:
        raise ValueError(
            "BayesianNetwork: `nodes` is empty; a distribution needs at least one variable."
        )
    for name, node in nodes.items():
        owner = f"BayesianNetwork: node {name!r}"
        if isinstance(node.parents, str):
            raise TypeError(
                f"{owner}: `parents` must be a list of names, but the string {node.parents!r} was "
                f"given. Pass [{node.parents!r}]."
            )
        check_count(owner, "size", node.size)
        if node.cardinality is not None:
            check_count(owner, "cardinality", node.cardinality)
        if isinstance(node.logits, Tensor):
            if node.logits.dim() == 0 or node.logits.shape[-1] == 0:
                raise ValueError(
                    f"{owner}: `logits` must have the categories in their last dimension, at least "
                    f"one, but {tuple(node.logits.shape)} was given."
                )
        elif not callable(node.logits):
            raise TypeError(
                f"{owner}: `logits` must be a tensor or a network, but "
                f"{type(node.logits).__name__} was given."
            )


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
