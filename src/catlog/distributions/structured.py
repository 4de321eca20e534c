"""Laws whose variables depend on each other, as real ``torch.distributions.Distribution``s with a known factorisation.

An event is an int64 vector x of d variables. The variables are drawn in blocks: the variables of one block are independent
given earlier blocks. What a law tells of itself is what the CatLog-Derivative trick needs: conditionals, and who depends
on whom.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from graphlib import CycleError, TopologicalSorter
from math import prod
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.distributions import Distribution, constraints
from torch.nn.functional import pad
from torch.utils._pytree import tree_map

from ..checks import check_count
from ..tracing import can_inspect, inside_functorch
from .causal import changed_later, check_causal, check_steps, rounding


class Ordered(Distribution):
    r"""A law given by conditionals, :math:`q(x) = \prod_b \prod_{i \in b} q(x_i \mid x_{\text{earlier blocks}})`.

    A subclass sets

    - ``blocks``: the variables of each block, in the order in which they are drawn;
    - ``cardinalities``: the number of categories of each variable;
    - ``ancestors``: for each block, the variables that its conditionals depend on, directly or through others;
    - ``real`` and ``device``: of its logits; draws, probabilities and weights are in float32 where ``real`` is narrower;
    - ``fixed``: variables whose conditionals have no parameters to learn, such as the transitions of a known environment;

    and defines :meth:`conditional`. One whose network carries a state along the sequence sets ``incremental`` and defines
    :meth:`start` and :meth:`step` as well; one that can give every conditional in a single call overrides :meth:`raw_logits`.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    has_enumerate_support = True
    blocks: tuple[tuple[int, ...], ...]
    cardinalities: tuple[int, ...]
    ancestors: tuple[frozenset[int], ...]
    real: torch.dtype
    device: torch.device
    fixed: frozenset[int] = frozenset()
    incremental: bool = False

    @abstractmethod
    def conditional(self, x: Int64[Tensor, "*lead d"], block: int) -> Float[Tensor, "*lead m k"]:
        """Logits of the block's variables given x of earlier blocks (other entries are to be ignored)."""

    def start(self, lead: torch.Size) -> Any:
        """The state before the first variable: tensors (nested in tuples) whose leading dimensions are ``lead``."""
        raise NotImplementedError

    def step(
        self, state: Any, block: int, previous: Int64[Tensor, "*lead"] | None
    ) -> tuple[Float[Tensor, "*lead k"], Any]:
        """Logits of the next variable, and the state, once the variable before it is known."""
        raise NotImplementedError

    def next_logits(
        self,
        block: int,
        x: Int64[Tensor, "*lead d"],
        state: Any,
        previous: Int64[Tensor, "*lead"] | None,
    ) -> tuple[Float[Tensor, "*lead m k"], Any]:
        """The block's logits while drawing, and the state: by :meth:`step` where the law has one, else by :meth:`conditional`."""
        if not self.incremental:
            return self.conditional(x, block), None
        raw, state = self.step(state, block, previous)
        return raw.unsqueeze(-2) if isinstance(raw, Tensor) else raw, state

    def raw_logits(self, x: Int64[Tensor, "*lead d"]) -> list[Float[Tensor, "*lead m k"]]:
        """Per block, the logits of its variables given the values that x gives to earlier ones."""
        return [self.conditional(x, block) for block in range(len(self.blocks))]

    def block_log_probs(
        self, logits: Tensor, block: int, lead: torch.Size, validate: bool = True
    ) -> Float[Tensor, "*lead m k"]:
        """Normalised log-probabilities of a block, checked; categories beyond a variable's cardinality have none."""
        variables = self.blocks[block]
        sizes = [self.cardinalities[i] for i in variables]
        expected = lead + (len(variables), max(sizes))
        if not isinstance(logits, Tensor) or logits.shape != expected:
            given = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ValueError(
                f"q: the conditional of variable {variables[0]} must return logits of shape {tuple(expected)}, but it returned "
                f"{given}."
            )
        if min(sizes) < max(sizes):
            beyond = (
                torch.arange(max(sizes), device=logits.device)
                >= torch.tensor(sizes, device=logits.device)[:, None]
            )
            logits = logits.masked_fill(beyond, -torch.inf)
        log_probs = widened(logits).log_softmax(-1)
        if can_inspect(validate, log_probs) and bool(log_probs.isnan().any()):
            bad = tuple(log_probs.isnan().nonzero()[0].tolist())
            raise ValueError(
                f"q: the conditional of variable {variables[bad[-2]]} has no valid probabilities at index {bad[:-2]}: its logits "
                "are NaN, or every category is masked (-inf)."
            )
        return log_probs

    def log_conditionals(
        self, x: Int64[Tensor, "*lead d"], validate: bool = True
    ) -> Float[Tensor, "*lead d k"]:
        """log q(x_i = k | earlier variables as in x), for every i and k: the teacher-forced pass, differentiable."""
        return self._stacked(self.raw_logits(x), x, validate)

    def _stacked(
        self, raw: list[Tensor], x: Int64[Tensor, "*lead d"], validate: bool
    ) -> Float[Tensor, "*lead d k"]:
        """The logits of all blocks, normalised, by variable."""
        k = max(self.cardinalities)
        parts: list[Tensor | None] = [None] * len(self.cardinalities)
        for block, logits in enumerate(raw):
            log_probs = self.block_log_probs(logits, block, x.shape[:-1], validate)
            log_probs = pad(log_probs, (0, k - log_probs.shape[-1]), value=-torch.inf)
            for position, variable in enumerate(self.blocks[block]):
                parts[variable] = log_probs[..., position, :]
        return torch.stack([part for part in parts if part is not None], -2)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.independent(
            constraints.integer_interval(0, max(self.cardinalities) - 1), 1
        )

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:
        shape = self._extended_shape(torch.Size(sample_shape))
        u = torch.rand(shape, dtype=at_least_float32(self.real), device=self.device)
        with torch.no_grad():
            return ancestral(self, self._rows(u)).reshape(shape)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        value = value.expand(
            torch.broadcast_shapes(value.shape, self.batch_shape + self.event_shape)
        ).long()
        points = self._rows(value)
        known = (
            self.log_conditionals(points, bool(self._validate_args))
            .gather(-1, points.unsqueeze(-1))
            .squeeze(-1)
        )
        return known.sum(-1).reshape(value.shape[:-1])

    def _rows(self, x: Tensor) -> Tensor:
        """``[*sample, *batch, d]`` as ``[rows, *batch, d]``, which is how conditionals are asked."""
        tail = self.batch_shape + self.event_shape
        return x.reshape((prod(x.shape[: x.dim() - len(tail)]),) + tail)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        points = prod(self.cardinalities)
        if points > 2**22:
            raise NotImplementedError(
                f"{type(self).__name__} has {points} points, too many to enumerate."
            )
        grid = [torch.arange(size, device=self.device) for size in self.cardinalities]
        values = torch.cartesian_prod(*grid).reshape(
            (points,) + (1,) * len(self.batch_shape) + self.event_shape
        )
        return values.expand((points,) + self.batch_shape + self.event_shape) if expand else values

    def entropy(self) -> Tensor:
        """By enumeration.

        Where that is too much, estimate it: ``E(lambda x: -q.log_prob(x).detach(), q)`` has the right value and the right
        gradient with any unbiased E, such as :class:`~catlog.RLOO`. (The mean of ``-q.log_prob(x)`` over draws x has the right
        value, but a gradient that is zero in expectation.)
        """
        log_prob = self.log_prob(self.enumerate_support())
        return -(log_prob.exp() * log_prob.clamp(min=torch.finfo(log_prob.dtype).min)).sum(0)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "Ordered":
        new: Ordered = self._get_checked_instance(type(self), _instance)  # type: ignore[no-untyped-call]
        new.__dict__.update(
            {key: value for key, value in self.__dict__.items() if key not in new.__dict__}
        )
        Distribution.__init__(new, torch.Size(batch_shape), self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """The type itself, or float32 where it is narrower: few uniforms of bfloat16 differ, so that many categories had none.

    >>> at_least_float32(torch.bfloat16), at_least_float32(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.promote_types(dtype, torch.float32)


def widened(logits: Tensor) -> Tensor:
    return logits.to(at_least_float32(logits.dtype))


def inverse_cdf(probs: Tensor, u: Tensor) -> Tensor:
    """The category whose interval of the CDF holds u; an impossible one is never returned, even for u = 1.

    ``probs`` has the categories last; the dimensions before them and those of ``u`` broadcast.
    """
    if probs.shape[-1] == 2:
        first, second = probs.unbind(-1)
        return (u >= torch.where(first + second > first, first, torch.inf)).long()
    cdf = probs.cumsum(-1)
    steps = cdf.masked_fill(cdf >= cdf[..., -1:], torch.inf)[..., :-1]
    return (u.unsqueeze(-1) >= steps).sum(-1)


def ancestral(
    q: Ordered, u: Float[Tensor, "n *batch d"], validate: bool = True
) -> Int64[Tensor, "n *batch d"]:
    """Points of the law from uniforms, block by block."""
    lead = u.shape[:-1]
    x = torch.zeros(u.shape, dtype=torch.int64, device=u.device)
    state = q.start(lead) if q.incremental else None
    previous = None
    for block, variables in enumerate(q.blocks):
        raw, state = q.next_logits(block, x, state, previous)
        where = as_index(variables)
        drawn = inverse_cdf(q.block_log_probs(raw, block, lead, validate).exp(), u[..., where])
        x[..., where] = drawn
        previous = drawn[..., 0]
    return x


def as_index(variables: tuple[int, ...]) -> slice | list[int]:
    """An index for these variables: a slice where they are consecutive, which copies nothing and waits for no GPU."""
    first, count = variables[0], len(variables)
    return (
        slice(first, first + count)
        if variables == tuple(range(first, first + count))
        else list(variables)
    )


def select_rows(state: Any, rows: Int64[Tensor, "r"]) -> Any:
    """The given rows of every tensor of a state."""
    return tree_map(lambda tensor: tensor.index_select(0, rows), state)


class Autoregressive(Ordered):
    r"""Every variable given all earlier ones, by any network.

    .. math:: q(x) = \prod_{i=1}^d q(x_i \mid x_1, \dots, x_{i-1})

    The network is always called with leading dimensions ``[rows, *batch]`` and offers one or more of

    - ``network(x, i)``: logits ``[rows, *batch, k_i]`` of variable i, ignoring the entries of ``x [rows, *batch, d]`` from i on;
    - ``network.all_logits(x)``: logits ``[rows, *batch, d, k]`` of all variables in one teacher-forced call (row i must not
      depend on x_i or later);
    - ``network.start(lead)`` and ``network.step(state, i, previous)``: the next logits from a state and the previous variable
      (None for the first), so that drawing is linear in d: a recurrent state or a cache of keys and values. States are tensors,
      or tuples of them, with leading dimensions ``lead``.

    A network that sees what it must not, whose ``step`` and ``all_logits`` disagree, or that is not deterministic (dropout) would
    give wrong gradients: it is checked at its first uses and now and then later, where Python may look at numbers (eager mode,
    validation on), and refused with a ValueError.

    Args:
        network: see above.
        cardinalities: number of categories of each variable.
        batch_shape: of the law, where the network knows a batch of contexts.
        device, dtype: of the probabilities; None: those of the network's parameters, else torch's defaults.

    >>> q = Autoregressive(lambda x, i: torch.zeros(*x.shape[:-1], 3) + x[..., :i].sum(-1, keepdim=True), [3, 3])
    >>> q.sample((5,)).shape, q.log_prob(torch.tensor([0, 2])).exp()
    (torch.Size([5, 2]), tensor(0.1111))
    """

    _uses: ClassVar[WeakKeyDictionary[Any, int]] = (
        WeakKeyDictionary()
    )  # of a module, a class of networks or a function

    def __init__(
        self,
        network: Any,
        cardinalities: Sequence[int],
        batch_shape: Sequence[int] = (),
        *,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        validate_args: bool | None = None,
    ) -> None:
        for size in cardinalities:
            check_count("Autoregressive", "cardinalities", size)
        if not cardinalities:
            raise ValueError(
                "Autoregressive: `cardinalities` is empty; a law needs at least one variable."
            )
        # First by attribute: torch 2.6 cannot trace isinstance of a lambda.
        has_own = hasattr(network, "parameters") and isinstance(network, nn.Module)
        parameter = next(iter(network.parameters()), None) if has_own else None
        self.network = network
        self.cardinalities = tuple(cardinalities)
        self.blocks = tuple((i,) for i in range(len(self.cardinalities)))
        self.ancestors = tuple(frozenset(range(i)) for i in range(len(self.cardinalities)))
        self.real = dtype or (torch.get_default_dtype() if parameter is None else parameter.dtype)
        self.device = device or (torch.device("cpu") if parameter is None else parameter.device)
        self.incremental = hasattr(network, "start") and hasattr(network, "step")
        super().__init__(
            torch.Size(batch_shape),
            torch.Size([len(self.cardinalities)]),
            validate_args=validate_args,
        )

    def log_conditionals(self, x: Tensor, validate: bool = True) -> Tensor:
        log_probs = super().log_conditionals(x, validate)
        if can_inspect(validate, log_probs) and x.numel() > 0 and not inside_functorch():
            self._now_and_then(x[:1])
        return log_probs

    @torch.no_grad()
    def _now_and_then(self, x: Int64[Tensor, "1 *batch d"]) -> None:
        """Check the network at its first uses, and after that ever more seldom: its last layer may begin at zero."""
        network = self.network
        while isinstance(network, partial):
            network = network.func
        if not isinstance(
            network, nn.Module
        ):  # may be made for one step, so its code is what is counted
            network = getattr(network, "__code__", type(network))
        uses = self._uses[network] = self._uses.get(network, 0) + 1
        if uses > 4 and uses & (uses - 1):
            return
        points = changed_later(x, self.cardinalities)
        raw = self.raw_logits(points)
        eps = rounding({self.real, *(each.dtype for each in raw)}, x.device)
        known = self._stacked(raw, points, validate=False)
        check_causal(known, eps)
        if self.incremental and hasattr(self.network, "all_logits"):
            check_steps(self._stacked(self._by_steps(x), x, validate=False), known[:1], eps)

    def conditional(self, x: Tensor, block: int) -> Tensor:
        if hasattr(self.network, "all_logits"):
            return self.network.all_logits(x)[..., block : block + 1, : self.cardinalities[block]]
        raw = self.network(x, block)
        return raw.unsqueeze(-2) if isinstance(raw, Tensor) else raw

    def start(self, lead: torch.Size) -> Any:
        return self.network.start(lead)

    def step(self, state: Any, block: int, previous: Tensor | None) -> tuple[Tensor, Any]:
        return self.network.step(state, block, previous)

    def raw_logits(self, x: Tensor) -> list[Tensor]:
        if hasattr(self.network, "all_logits"):
            logits = self.network.all_logits(x)
            expected = (*x.shape, max(self.cardinalities))
            if logits.shape != expected:
                raise ValueError(
                    f"q: all_logits must return shape {expected}, but it returned {tuple(logits.shape)}."
                )
            return [logits[..., i : i + 1, :size] for i, size in enumerate(self.cardinalities)]
        return self._by_steps(x) if self.incremental else super().raw_logits(x)

    def _by_steps(self, x: Tensor) -> list[Tensor]:
        state, each = self.start(x.shape[:-1]), []
        for i in range(len(self.cardinalities)):
            raw, state = self.next_logits(i, x, state, x[..., i - 1] if i > 0 else None)
            each.append(raw)
        return each


class IndependentBlocks(Ordered):
    """Independent factors read as a structured law of one block, so that what is written for structured laws serves both."""

    def __init__(
        self, log_probs: Float[Tensor, "*batch d k"], cardinalities: tuple[int, ...]
    ) -> None:
        self.log_probs, self.cardinalities = log_probs, cardinalities
        self.blocks = (tuple(range(len(cardinalities))),)
        self.ancestors = (frozenset(),)
        self.real, self.device = log_probs.dtype, log_probs.device
        super().__init__(log_probs.shape[:-2], log_probs.shape[-2:-1], validate_args=False)

    def conditional(self, x: Tensor, block: int) -> Tensor:
        return self.log_probs.expand(x.shape + self.log_probs.shape[-1:])


def lookup(
    table: Float[Tensor, "*batch states k"], index: Int64[Tensor, "n *batch"]
) -> Float[Tensor, "n *batch k"]:
    """The row of a (batched) table that ``index`` names."""
    if table.dim() == 2:
        return table[index]
    table = table.expand(index.shape + table.shape[-2:])
    return table.gather(
        -2, index[..., None, None].expand(index.shape + (1, table.shape[-1]))
    ).squeeze(-2)


def _serves(lead: torch.Size, batch: torch.Size) -> bool:
    """Whether a table with these leading dimensions has an entry for every element of the batch."""
    return len(lead) <= len(batch) and all(
        size in (1, wanted) for size, wanted in zip(lead[::-1], batch[::-1], strict=False)
    )


class MarkovChain(Ordered):
    r"""A chain of states, with or without observations.

    .. math:: q(z) = \pi(z_1) \prod_{t>1} A(z_t \mid z_{t-1}), \qquad q(z, o) = q(z) \prod_t B(o_t \mid z_t)

    The event is the states ``z_1 ... z_T`` and, with ``emission``, the observations ``o_1 ... o_T`` after them.

    Args:
        initial: logits ``[*batch, k]``; the chain has this batch shape.
        transition: logits ``[*batch, k, k]`` (next given row), the same at every step, or ``[*batch, T - 1, k, k]``; one table
            ``[k, k]`` serves every batch element and step.
        length: T, at least 1; needed unless ``transition`` tells.
        emission: logits ``[*batch, k, o]`` of an observation given a state, or ``[k, o]``.

    >>> q = MarkovChain(torch.zeros(2), torch.tensor([[9.0, 0.0], [0.0, 9.0]]), length=4)
    >>> q.log_prob(torch.tensor([1, 1, 1, 1])).exp()
    tensor(0.4998)
    """

    def __init__(
        self,
        initial: Float[Tensor, "*batch k"],
        transition: Tensor,
        length: int | None = None,
        emission: Float[Tensor, "*batch k o"] | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if initial.dim() == 0 or transition.dim() < 2:
            raise ValueError(
                "MarkovChain: `initial` must have shape [*batch, k] and `transition` [*batch, k, k] or [*batch, T - 1, k, k], "
                f"but {tuple(initial.shape)} and {tuple(transition.shape)} were given."
            )
        k, batch = initial.shape[-1], initial.shape[:-1]
        shared = transition.dim() in (2, len(batch) + 2)
        steps = None if shared else transition.shape[-3] + 1
        if length is None:
            length = steps
        if length is None:
            raise ValueError(
                "MarkovChain: `length` is needed where one `transition` serves every step."
            )
        check_count("MarkovChain", "length", length)
        lead = transition.shape[: -2 if shared else -3]
        if (
            transition.shape[-2:] != (k, k)
            or (steps is not None and steps != length)
            or not _serves(lead, batch)
        ):
            sizes = "".join(f"{size}, " for size in batch)
            raise ValueError(
                f"MarkovChain: `transition` must have shape [{k}, {k}], [{sizes}{k}, {k}] or [{sizes}{length - 1}, {k}, {k}] "
                f"([*batch, k, k] or [*batch, T - 1, k, k]) to go with `initial` {tuple(initial.shape)} and length {length}, but "
                f"{tuple(transition.shape)} was given. Where it lacks the batch, expand it."
            )
        if emission is not None and (
            emission.dim() < 2 or emission.shape[-2] != k or not _serves(emission.shape[:-2], batch)
        ):
            raise ValueError(
                f"MarkovChain: `emission` must have shape [*batch, {k}, o] to go with `initial` {tuple(initial.shape)}, but "
                f"{tuple(emission.shape)} was given."
            )
        self.initial, self.transition = (
            widened(initial),
            widened(transition),
        )  # here, so that gradients add up in float32
        self.emission = None if emission is None else widened(emission)
        self.shared, self.length = shared, length
        states = tuple(range(length))
        self.cardinalities = (k,) * length + (
            () if emission is None else (emission.shape[-1],) * length
        )
        self.blocks = tuple((t,) for t in states) + (
            () if emission is None else (tuple(range(length, 2 * length)),)
        )
        self.ancestors = tuple(frozenset(range(t)) for t in states) + (
            () if emission is None else (frozenset(states),)
        )
        self.real, self.device = self.initial.dtype, initial.device
        super().__init__(batch, torch.Size([len(self.cardinalities)]), validate_args=validate_args)

    def conditional(self, x: Tensor, block: int) -> Tensor:
        lead = x.shape[:-1]
        if block == 0:
            return self.initial.expand(lead + self.initial.shape[-1:]).unsqueeze(-2)
        if block == self.length:
            assert self.emission is not None
            return torch.stack([lookup(self.emission, x[..., t]) for t in range(self.length)], -2)
        table = self.transition if self.shared else self.transition[..., block - 1, :, :]
        return lookup(table, x[..., block - 1]).unsqueeze(-2)

    def entropy(self) -> Tensor:
        """Exact, by the marginals of the states."""

        def probs_and_entropy(logits: Tensor) -> tuple[Tensor, Tensor]:
            log_probs = widened(logits).log_softmax(-1)
            probs = log_probs.exp()
            return probs, -(probs * log_probs.clamp(min=torch.finfo(log_probs.dtype).min)).sum(-1)

        marginal, total = probs_and_entropy(self.initial)
        for t in range(self.length):
            if t > 0:
                step, left = probs_and_entropy(
                    self.transition if self.shared else self.transition[..., t - 1, :, :]
                )
                total = total + (marginal * left).sum(-1)
                marginal = (marginal.unsqueeze(-1) * step).sum(
                    -2
                )  # no matrix product: autocast would narrow it
            if self.emission is not None:
                total = total + (marginal * probs_and_entropy(self.emission)[1]).sum(-1)
        return total.expand(self.batch_shape)


@dataclass(frozen=True, eq=False)
class Node:
    """One node of a :class:`BayesianNetwork`: a variable, or a block of variables that are independent given the parents.

    Args:
        parents: names of nodes.
        logits: a table ``[*batch, k_parent_1, ..., k_parent_m, k]`` (a block: ``[..., size, k]``), or a network that maps the
            values of all the parents' variables, ``[rows, *batch, p]`` int64, to logits ``[rows, *batch, k]`` (a block:
            ``[..., size, k]``).
        cardinality: k; needed with a network.
        size: number of variables of the block.
        fixed: there is nothing to learn in it, so that no estimator need spend evaluations on it.
    """

    parents: Sequence[str]
    logits: Tensor | Callable[[Tensor], Tensor]
    cardinality: int | None = None
    size: int = 1
    fixed: bool = False


class BayesianNetwork(Ordered):
    r"""A directed acyclic graph of tables or networks.

    .. math:: q(x) = \prod_i q(x_i \mid x_{\text{parents}(i)})

    The event lists the nodes' variables in the order in which the nodes are given, which need not be an order of drawing.

    Args:
        nodes: by name. Parameters may be shared between nodes.
        batch_shape: of the law; the tables' leading dimensions.
        device, dtype: needed where no node is a table.

    >>> q = BayesianNetwork({
    ...     "wet": Node(["rain"], torch.tensor([[9.0, 0.0], [0.0, 9.0]])),
    ...     "rain": Node([], torch.tensor([0.0, 0.0])),
    ... })
    >>> q.log_prob(torch.tensor([1, 1])).exp()
    tensor(0.4999)
    """

    def __init__(
        self,
        nodes: Mapping[str, Node],
        batch_shape: Sequence[int] = (),
        *,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if not nodes:
            raise ValueError(
                "BayesianNetwork: `nodes` is empty; a law needs at least one variable."
            )
        batch = torch.Size(batch_shape)
        place: dict[str, tuple[int, ...]] = {}
        sizes: dict[str, int] = {}
        for name, node in nodes.items():
            first = sum(map(len, place.values()))
            place[name] = tuple(range(first, first + node.size))
            if isinstance(node.logits, Tensor):
                sizes[name] = node.logits.shape[-1]
            elif node.cardinality is None:
                raise ValueError(
                    f"BayesianNetwork: node {name!r} is a network; give its `cardinality`."
                )
            else:
                sizes[name] = node.cardinality
        for name, node in nodes.items():
            for parent in node.parents:
                if parent not in nodes:
                    known = list(nodes)
                    raise ValueError(
                        f"BayesianNetwork: parent {parent!r} of node {name!r} is not among the nodes {known}."
                    )
            if isinstance(node.logits, Tensor):
                block = (node.size,) if node.size > 1 else ()
                parents = tuple(sizes[parent] for parent in node.parents for _ in place[parent])
                expected = (*batch, *parents, *block, sizes[name])
                if tuple(node.logits.shape) != expected:
                    raise ValueError(
                        f"BayesianNetwork: the table of node {name!r} must have shape {expected} ([*batch, *cardinalities of the "
                        f"parents {list(node.parents)}, k]), but {tuple(node.logits.shape)} was given."
                    )
        order = _parents_first(nodes)
        reach: dict[str, frozenset[int]] = {}
        for name in order:
            reach[name] = frozenset(
                [i for parent in nodes[name].parents for i in (*reach[parent], *place[parent])]
            )
        tables = [node.logits for node in nodes.values() if isinstance(node.logits, Tensor)]
        self.nodes, self.order, self.place = dict(nodes), order, place
        self.blocks = tuple(place[name] for name in order)
        self.ancestors = tuple(reach[name] for name in order)
        self.cardinalities = tuple(sizes[name] for name in nodes for _ in place[name])
        self.fixed = frozenset(i for name, node in nodes.items() if node.fixed for i in place[name])
        self.real = dtype or (tables[0].dtype if tables else torch.get_default_dtype())
        self.device = device or (tables[0].device if tables else torch.device("cpu"))
        super().__init__(batch, torch.Size([len(self.cardinalities)]), validate_args=validate_args)

    def conditional(self, x: Tensor, block: int) -> Tensor:
        name = self.order[block]
        node = self.nodes[name]
        given = [i for parent in node.parents for i in self.place[parent]]
        if not isinstance(node.logits, Tensor):
            raw = node.logits(x[..., given])
            return raw if node.size > 1 or not isinstance(raw, Tensor) else raw.unsqueeze(-2)
        own = (node.size, self.cardinalities[self.place[name][0]])
        logits = widened(node.logits)
        if not given:
            return logits.reshape(self._table_batch(node) + own).expand(x.shape[:-1] + own)
        index = torch.zeros(x.shape[:-1], dtype=torch.int64, device=x.device)
        for i in given:
            index = index * self.cardinalities[i] + x[..., i]
        rows = prod([self.cardinalities[i] for i in given])
        table = logits.reshape(self._table_batch(node) + (rows, prod(own)))
        return lookup(table, index).unflatten(-1, own)

    def _table_batch(self, node: Node) -> torch.Size:
        assert isinstance(node.logits, Tensor)
        parents = sum(len(self.place[parent]) for parent in node.parents)
        return node.logits.shape[: node.logits.dim() - parents - (2 if node.size > 1 else 1)]


def _parents_first(nodes: Mapping[str, Node]) -> tuple[str, ...]:
    """Return the names with parents before their children, or raise an error that shows a cycle."""
    parents = {name: node.parents for name, node in nodes.items()}
    try:
        return tuple(TopologicalSorter(parents).static_order())
    except CycleError as error:
        cycle = " -> ".join(reversed(error.args[1]))
        raise ValueError(
            f"BayesianNetwork: the graph has a cycle, {cycle} (child -> parent); remove one of its edges."
        ) from None
