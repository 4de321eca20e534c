"""The base class of distributions whose variables depend on each other.

An event is an int64 vector x of d variables. They are drawn in blocks: the variables of a block are
independent given the earlier blocks. A distribution offers what the CatLog-Derivative trick needs:
its conditionals, and the ancestors of every block.
"""

from abc import abstractmethod
from collections.abc import Sequence
from math import isnan, prod
from operator import index
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.nn.functional import logsigmoid, one_hot, pad
from torch.utils._pytree import tree_map

from .categories import Kind, as_index, as_logits, integers, inverse_cdf, log_softmax
from .checks import (
    broadcasts,
    check_dense,
    check_is_tensor,
    check_together,
    check_validate_args,
    readable,
    refusal,
    shape_or_type,
)
from .tracing import can_inspect, inside_functorch

MOST_POINTS = 2**22  # that are enumerated
CONTEXTS = "If a network holds a batch of contexts, give q their `batch_shape=`."
Points = Int64[Tensor, "*lead d"]
Previous = Int64[Tensor, "*lead"] | None
Logits = Float[Tensor, "*lead m k"]
Rows = Int64[Tensor, "n *batch d"]


class PointForm(NamedTuple):
    """The form of a point: that of ``sample()`` of the distribution that the user gave.

    Attributes:
        kind: bits (floats 0 and 1), category numbers (also as floats: counts) or one-hot vectors.
        event_shape: of a point.
        dtype: of a point.
    """

    kind: Kind
    event_shape: torch.Size
    dtype: torch.dtype


class Table(NamedTuple):
    """The conditionals of a block by log-probabilities of all categories."""

    log_probs: Logits

    @property
    def probs(self) -> Logits:
        """What draws are made from, a constant."""
        return self.log_probs.detach().exp()

    def draw(self, probs: Tensor, u: Tensor) -> Int64[Tensor, "*lead m"]:
        """Return the categories that the inverse CDF makes from uniforms."""
        return inverse_cdf(probs, u)

    def log_prob(self, x: Int64[Tensor, "*lead m"]) -> Float[Tensor, "*lead"]:
        """Return the sum of the log-probabilities of these categories."""
        return chosen(self.log_probs, x)

    def reshape(self, shape: tuple[int, ...]) -> "Table":
        """Return the conditionals of variables ``[*shape]``."""
        return Table(self.log_probs.reshape(*shape, self.log_probs.shape[-1]))


class Odds(NamedTuple):
    """The conditionals of a block of bits by the log-odds of a 1, half the numbers of a table."""

    odds: Float[Tensor, "*lead m"]

    @property
    def log_probs(self) -> Logits:
        return logsigmoid(torch.stack([-self.odds, self.odds], -1))

    @property
    def probs(self) -> Float[Tensor, "*lead m"]:
        """The probabilities of a 0, a constant."""
        return (-self.odds.detach()).sigmoid()

    def draw(self, probs: Tensor, u: Tensor) -> Int64[Tensor, "*lead m"]:
        return (u >= probs).long()  # no impossible bit, as u is below 1

    def log_prob(self, x: Int64[Tensor, "*lead m"]) -> Float[Tensor, "*lead"]:
        sign = x.to(self.odds.dtype).mul_(2).sub_(1)
        return logsigmoid(sign * self.odds).sum(-1)

    def reshape(self, shape: tuple[int, ...]) -> "Odds":
        return Odds(self.odds.reshape(shape))


class Scored(NamedTuple):
    """Points that were scored in the pass that drew them.

    Attributes:
        x: the points.
        log_prob: log q(x), differentiable.
        conditionals: log q(x_i = k | x_<i) of all variables, differentiable.
    """

    x: Rows
    log_prob: Float[Tensor, "n *batch"]
    conditionals: Table | Odds


class Ordered(Distribution):
    r"""A distribution given by its conditionals.

    .. math:: q(x) = \prod_b \prod_{i \in b} q(x_i \mid x_{\text{earlier blocks}})

    A subclass sets

    - ``cardinalities``: the number of categories of each variable;
    - ``blocks``: the variables of each block, in the order in which they are drawn, if they are not
      drawn one by one in the order of the event;
    - ``ancestors``, with ``blocks``: for each block, the variables that its conditionals depend on,
      directly or through others;
    - ``real`` and ``device``: of its logits; draws, probabilities and weights are in float32 where
      ``real`` is narrower;
    - ``fixed``: variables whose conditionals have no parameters to learn, such as the transitions
      of a known environment;
    - ``end``: for sequences that end, the category that is certain after its first occurrence; then
      every block is one variable, in the order of the event;
    - ``form``: how f sees a point, if it is not the int64 vector itself;
    - ``one_pass``: True if scoring a point takes the same calls as drawing it. Then estimators
      score their draws in the pass that makes them;

    and defines :meth:`conditional`. If its network carries a state along the sequence, it sets
    ``incremental`` and defines :meth:`start` and :meth:`step` as well. If it can compute all
    conditionals in one call, it overrides :meth:`raw_logits`.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    has_enumerate_support = True
    cardinalities: tuple[int, ...]
    blocks: tuple[tuple[int, ...], ...] = ()
    ancestors: tuple[frozenset[int] | range, ...]
    real: torch.dtype
    device: torch.device
    fixed: frozenset[int] = frozenset()
    incremental: bool = False
    end: int | None = None
    form: PointForm | None = None
    one_pass: bool = False

    def __init__(
        self, batch_shape: torch.Size, event_shape: torch.Size, validate_args: bool | None = None
    ) -> None:
        check_validate_args(type(self).__name__, validate_args)
        if not self.blocks:
            d = len(self.cardinalities)
            self.blocks = tuple((i,) for i in range(d))
            self.ancestors = tuple(range(i) for i in range(d))  # sets would hold d^2 / 2 numbers
        super().__init__(batch_shape, event_shape, validate_args=validate_args)

    def __repr__(self) -> str:
        sizes = f"batch_shape={tuple(self.batch_shape)}, event_shape={tuple(self.event_shape)}"
        return f"{type(self).__name__}({sizes})"

    @abstractmethod
    def conditional(self, x: Points, block: int) -> Logits:
        """Return the block's logits given x of earlier blocks; later entries must be ignored.

        A block of bits may have log-odds ``[*lead, m]`` instead.
        """

    def start(self, lead: torch.Size) -> Any:
        """Return the state before the first variable: (tuples of) tensors ``[*lead, ...]``."""
        raise NotImplementedError

    def step(
        self, state: Any, block: int, previous: Previous
    ) -> tuple[Float[Tensor, "*lead k"], Any]:
        """Return the logits of the next variable and the new state, given the previous variable."""
        raise NotImplementedError

    def next_logits(self, block: int, x: Points, state: Any, previous: Previous) -> tuple[Any, Any]:
        """Return the block's logits, which :meth:`given` checks and expands, and the state, by
        :meth:`step` or :meth:`conditional`."""
        if not self.incremental:
            return self.conditional(x, block), None
        raw, state = self.step(state, block, previous)
        return raw.unsqueeze(-2) if isinstance(raw, Tensor) else raw, state

    def select_rows(self, state: Any, rows: Int64[Tensor, "r"]) -> Any:
        """Return the state at these rows of the first dimension, in this order."""
        return rows_of_state(state, rows)

    def raw_logits(self, x: Points) -> Float[Tensor, "*lead d k"]:
        """Return the logits of all variables, given the earlier variables in x.

        Entries beyond a variable's cardinality are ignored.
        """
        blocks = [self.conditional(x, block) for block in range(len(self.blocks))]
        return self.by_variable(
            [self.checked(raw, block, x.shape[:-1]) for block, raw in enumerate(blocks)]
        )

    def by_variable(self, blocks: Sequence[Tensor]) -> Float[Tensor, "*lead d k"]:
        """Return the numbers of all blocks, each ``[*lead, m, k]`` with sizes of its own, in the
        order of the variables, padded with -inf."""
        k = max(self.cardinalities)
        widths = [(0, k - part.shape[-1]) for part in blocks]
        table = torch.cat(
            [
                pad(part, width, value=-torch.inf) if any(width) else part
                for part, width in zip(blocks, widths, strict=True)
            ],
            -2,
        )
        return self._by_variable(table)

    def _by_variable(self, table: Float[Tensor, "*lead d k"]) -> Float[Tensor, "*lead d k"]:
        """Return rows in the order of the variables, from rows in the order of drawing."""
        drawn = [i for variables in self.blocks for i in variables]
        if drawn == sorted(drawn):
            return table
        place = sorted(range(len(drawn)), key=drawn.__getitem__)
        return table.index_select(-2, integers(place, table.device))

    def checked(self, logits: Any, block: int, lead: torch.Size) -> Logits:
        """Return what :meth:`conditional` returned as logits of floats, or raise unless it is."""
        variables = self.blocks[block]
        most = max([self.cardinalities[i] for i in variables])
        if self._are_odds(logits, block, lead):
            logits = torch.stack([torch.zeros_like(logits), logits], -1)
        check_logits(logits, (*lead, len(variables), most), variables[0])
        return logits if logits.is_floating_point() else as_logits(logits)

    def _are_odds(self, raw: Any, block: int, lead: torch.Size) -> bool:
        """Return whether :meth:`conditional` returned one number per bit."""
        variables = self.blocks[block]
        fits = isinstance(raw, Tensor) and raw.shape == (*lead, len(variables))
        return fits and {self.cardinalities[i] for i in variables} == {2}

    def given(self, raw: Any, block: int, lead: torch.Size) -> Table | Odds:
        """Return the conditionals of a block from what :meth:`conditional` returned."""
        if self._are_odds(raw, block, lead):
            return Odds(as_logits(raw))
        return Table(self.block_log_probs(raw, block, lead, validate=False))

    def block_log_probs(
        self, logits: Tensor, block: int, lead: torch.Size, validate: bool = True
    ) -> Logits:
        """Return a block's log-probabilities, or raise unless its logits are some."""
        return self.normalised(self.checked(logits, block, lead), self.blocks[block], validate)

    def log_conditionals(self, x: Points, validate: bool = True) -> Float[Tensor, "*lead d k"]:
        """Return log q(x_i = k | earlier variables as in x) for every i and k.

        This is one teacher-forced pass, differentiable.
        """
        return self.normalised(self.raw_logits(x), validate=validate)

    def normalised(
        self, logits: Tensor, variables: Sequence[int] | None = None, validate: bool = False
    ) -> Float[Tensor, "*lead m k"]:
        """Return the log-probabilities of these variables (None: all), or raise if there are none.

        They are -inf beyond a variable's cardinality.
        """
        if variables is None:
            variables = range(len(self.cardinalities))
        sizes = [self.cardinalities[i] for i in variables]
        if min(sizes) < logits.shape[-1]:
            category = torch.arange(logits.shape[-1], device=logits.device)
            beyond = category >= integers(sizes, logits.device)[:, None]
            logits = logits.masked_fill(beyond, -torch.inf)
        log_probs = log_softmax(as_logits(logits))
        if can_inspect(validate, log_probs) and bool(log_probs.isnan().any()):
            bad = tuple(log_probs.isnan().nonzero()[0].tolist())
            raise _no_probabilities(variables[bad[-2]], f" at index {bad[:-2]}")
        return log_probs

    @property
    def support(self) -> constraints.Constraint:
        most = max(self.cardinalities) - 1
        return constraints.independent(constraints.integer_interval(0, most), 1)

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:
        shape = self._extended_shape(torch.Size(sample_shape))
        with torch.no_grad():
            points = self.direct_draws(prod(torch.Size(sample_shape)), None)
            if points is None:
                real = torch.promote_types(self.real, torch.float32)
                u = torch.rand(shape, dtype=real, device=self.device)
                points = self.from_uniforms(self._rows(u))
            return points.reshape(shape)

    def from_uniforms(self, u: Float[Tensor, "n *batch d"], validate: bool = True) -> Rows:
        """Return the points that the inverse CDF makes from uniforms, block by block."""
        return ancestral(self, u, validate)[0]

    def scored(self, u: Float[Tensor, "n *batch d"], validate: bool = True) -> Scored:
        """Return points made from uniforms, with their log-probabilities."""
        x, parts = ancestral(self, u, validate=False, scores=True)

        conditionals: Table | Odds
        if all(isinstance(part, Odds) for part in parts):
            odds = torch.cat([part[0].unsqueeze(-1) for part in parts], -2)
            conditionals = Odds(self._by_variable(odds).squeeze(-1))
        else:
            conditionals = Table(self.by_variable([part.log_probs for part in parts]))
        scored = Scored(x, conditionals.log_prob(x), conditionals)
        if can_inspect(validate, x) and isnan(scored.log_prob.detach().sum().item()):
            self.normalised(conditionals.log_probs, validate=True)  # raises an error
        return scored

    def direct_draws(self, rows: int, generator: torch.Generator | None) -> Rows | None:
        """Return independent points if there is a faster way than block by block, else None."""
        return None

    def log_prob(self, value: Tensor) -> Tensor:
        drawn = getattr(value, "drawn", None)  # while f is called with scored draws of this q
        if drawn is not None and drawn[0] is self and not value._version:
            # A copy, in the grad mode of f, which may write into it.
            return drawn[1].reshape(value.shape[:1] + self.batch_shape).clone()
        check_value(self, value, self.device)
        shape = torch.broadcast_shapes(value.shape, self.batch_shape + self.event_shape)
        rows = self._rows(value.expand(shape).long())
        return self.log_prob_of_rows(rows, bool(self._validate_args)).reshape(shape[:-1])

    def log_prob_of_rows(self, x: Rows, validate: bool = True) -> Float[Tensor, "n *batch"]:
        """Return the log-probabilities of points with one leading dimension."""
        return chosen(self.log_conditionals(x, validate), x)

    def _rows(self, x: Tensor) -> Tensor:
        """Reshape ``[*sample, *batch, d]`` to ``[rows, *batch, d]``, as conditionals expect."""
        tail = self.batch_shape + self.event_shape
        return x.reshape((prod(x.shape[: x.dim() - len(tail)]),) + tail)

    @property
    def points(self) -> int:
        """The number of points that ``enumerate_support`` returns."""
        return prod(self.cardinalities)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Return all points; those that a mask or a logit of -inf makes impossible are included."""
        if self.points > MOST_POINTS:
            raise NotImplementedError(
                f"{type(self).__name__} has {readable(self.points)} points, too many to enumerate. "
                "Estimate what you need from draws, q.sample((n,))."
            )
        values = self.all_points()
        values = values.view(len(values), *[1] * len(self.batch_shape), *self.event_shape)
        return values.expand((-1, *self.batch_shape, *self.event_shape)) if expand else values

    def all_points(self) -> Int64[Tensor, "points d"]:
        """Return the points of ``enumerate_support``, without a batch."""
        grid = [torch.arange(size, device=self.device) for size in self.cardinalities]
        return torch.cartesian_prod(*grid).reshape(-1, len(grid))

    def entropy(self) -> Tensor:
        """Return the entropy, by enumeration.

        If that is too expensive, estimate it: ``E(lambda x: -q.log_prob(x).detach(), q)`` has the
        right value and the right gradient with any unbiased E, such as :class:`~catlog.RLOO`. (The
        mean of ``-q.log_prob(x)`` over draws x has the right value, but a gradient that is zero in
        expectation.)
        """
        return entropy_of(self.log_prob(self.enumerate_support()), 0)

    def marginals(self) -> Float[Tensor, "*batch d k"]:
        """Return q(x_i = k) for every i and k, by enumeration."""
        points = self.enumerate_support()
        prob = self.log_prob(points).exp()
        return (one_hot(points, max(self.cardinalities)) * prob[..., None, None]).sum(0)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "Ordered":
        wanted = torch.Size(batch_shape)
        if not broadcasts(self.batch_shape, wanted):
            subject = f"{type(self).__name__}: `batch_shape`"
            claim = f"be one that {tuple(self.batch_shape)} expands to"
            raise refusal(subject, claim, f"it is {tuple(wanted)}")
        new = self._get_checked_instance(type(self), _instance)  # type: ignore[no-untyped-call]
        missing = {key: value for key, value in self.__dict__.items() if key not in new.__dict__}
        new.__dict__.update(missing)
        Distribution.__init__(new, wanted, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new


def check_value(q: Distribution, value: Tensor, device: torch.device) -> None:
    """Raise unless ``value`` may be an argument of ``q.log_prob``."""
    owner = type(q).__name__
    check_is_tensor(owner, "value", value, "[*sample, *batch, d]")
    check_together(owner, "value", value, "q", device)
    # torch cannot check nothing.
    if q._validate_args and value.numel() > 0 and can_inspect(True, value):
        q._validate_sample(value)


def as_batch_shape(owner: str, batch_shape: Sequence[int]) -> torch.Size:
    """Return the shape of a batch, or raise if a single size was given."""
    if isinstance(batch_shape, int):
        subject, remedy = f"{owner}: `batch_shape`", f"Pass ({batch_shape},)."
        raise refusal(subject, "be a tuple of sizes", f"{batch_shape} was given", remedy, TypeError)
    return torch.Size(batch_shape)


def as_cardinalities(owner: str, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the numbers of categories, or raise unless they are a list of ints."""
    subject, remedy = f"{owner}: `cardinalities`", "For d variables of k categories pass [k] * d."
    try:
        numbers = tuple(index(size) for size in sizes)
    except TypeError:
        claim = "be a list of ints, one per variable"
        raise refusal(subject, claim, f"{sizes!r} was given", remedy, TypeError) from None
    if not numbers or min(numbers) < 1:
        claim, but = "hold a number of at least 1 for each variable", f"{sizes!r} was given"
        raise refusal(subject, claim, but, remedy)
    return numbers


def dtype_and_device(
    dtype: torch.dtype | None, device: torch.device | str | None, tensors: Sequence[Tensor]
) -> tuple[torch.dtype, torch.device]:
    """Return what is given, else those of the first tensor, else torch's defaults."""
    first = tensors[0] if tensors else torch.empty(0)
    if isinstance(device, str):
        device = torch.device(device)
    return dtype or first.dtype, device or first.device


def check_logits(logits: object, expected: tuple[int, ...], variable: int) -> None:
    """Raise unless a conditional returned logits of the expected shape."""
    if not isinstance(logits, Tensor) or logits.shape != expected:
        fits = isinstance(logits, Tensor) and logits.shape[-2:] == expected[-2:]
        hint = CONTEXTS if fits and len(expected) <= 3 else ""
        subject, claim = f"q: the conditional of variable {variable}", "return logits of shape"
        but = f"it returned {shape_or_type(logits)}"
        raise refusal(subject, f"{claim} {tuple(expected)}", but, hint)
    check_dense(f"q: the logits of variable {variable}", logits)


def entropy_of(log_probs: Tensor, dim: int) -> Tensor:
    """Return the entropy along a dimension; impossible categories get no gradient."""
    probs = log_probs.exp()
    return -(probs * log_probs.masked_fill(probs == 0, 0.0)).sum(dim)


class IndependentBlocks(Ordered):
    """Independent factors, given by normalised log-probabilities, as one block."""

    def __init__(
        self, log_probs: Float[Tensor, "*batch d k"], cardinalities: tuple[int, ...]
    ) -> None:
        self.log_probs = log_probs
        self.cardinalities = cardinalities
        self.blocks = (tuple(range(len(cardinalities))),)
        self.ancestors = (frozenset(),)
        self.real = log_probs.dtype
        self.device = log_probs.device
        super().__init__(log_probs.shape[:-2], log_probs.shape[-2:-1], validate_args=False)

    def conditional(self, x: Tensor, block: int) -> Tensor:
        return self.log_probs.expand(x.shape + self.log_probs.shape[-1:])

    def block_log_probs(
        self, logits: Tensor, block: int, lead: torch.Size, validate: bool = True
    ) -> Tensor:
        """Return the log-probabilities, which are normalised already."""
        return self.log_probs.expand(lead + self.log_probs.shape[-2:])

    def log_conditionals(self, x: Tensor, validate: bool = True) -> Tensor:
        return self.log_probs.expand(x.shape + self.log_probs.shape[-1:])


def ancestral(
    q: Ordered, u: Float[Tensor, "n *batch d"], validate: bool = True, scores: bool = False
) -> tuple[Int64[Tensor, "n *batch d"], list[Table | Odds]]:
    """Return points of q made from uniforms, block by block, until all sequences have ended; with
    ``scores``, also the conditionals of every block.

    Whether these are numbers is looked at once, not block by block: a look waits for a GPU.
    """
    lead = u.shape[:-1]
    x = torch.zeros(u.shape, dtype=torch.int64, device=u.device)
    parts: list[Table | Odds] = []
    sums: list[Tensor] = []
    state = q.start(lead) if q.incremental else None
    previous = None
    for block, variables in enumerate(q.blocks):
        raw, state = q.next_logits(block, x, state, previous)
        index = as_index(variables)
        part = q.given(raw, block, lead)
        probs = part.probs
        if validate:
            sums.append(probs.sum())
        if scores:
            parts.append(part)
        drawn = part.draw(probs, u[..., index])
        if inside_functorch():  # where a mapped draw cannot be written into x
            places = integers(variables, u.device).expand(drawn.shape)
            x = x.scatter(-1, places, drawn)
        else:
            if scores and not q.incremental and block > 0:
                x = x.clone()  # the backward pass may need what the network has seen
            x[..., index] = drawn
        if q.incremental:
            previous = drawn[..., 0]
        if q.end is not None and can_inspect(True, x) and bool((drawn == q.end).all()):
            x[..., block + 1 :] = q.end
            if scores:
                rest = u.shape[-1] - len(parts)
                certain = one_hot(x.new_tensor(q.end), max(q.cardinalities)).to(probs).log()
                parts.append(Table(certain.expand(*lead, rest, -1)))
            break
    if can_inspect(validate, x) and (bad := torch.stack(sums).isnan()).any():
        q.log_conditionals(x)  # raises an error that says at which index
        raise _no_probabilities(q.blocks[int(bad.int().argmax())][0])
    return x, parts


def chosen(
    log_probs: Float[Tensor, "*lead m k"], x: Int64[Tensor, "*lead m"]
) -> Float[Tensor, "*lead"]:
    """Return the sum of the log-probabilities of these categories."""
    return log_probs.gather(-1, x.unsqueeze(-1)).squeeze(-1).sum(-1)


def _no_probabilities(variable: int, place: str = "") -> ValueError:
    return ValueError(
        f"q: the conditional of variable {variable} has no valid probabilities{place}: its logits "
        "are NaN, or every category is masked (-inf)."
    )


def rows_of_state(state: Any, rows: Int64[Tensor, "selected"]) -> Any:
    """Return the given rows of every tensor of a state."""
    return tree_map(lambda tensor: tensor.index_select(0, rows), state)


class Rearranged(Ordered):
    """``base`` in other dimensions: the last ``dims`` of its batch are the independent copies that
    make one event, and ``outputs`` dimensions of size 1 end the batch.

    If a variable changes, only later variables of its own copy are resampled. Values of f have the
    size of its outputs where the batch has size 1, so that they broadcast against probabilities.
    The networks of ``base`` see points without these dimensions.

    >>> from catlog.distributions import MarkovChain
    >>> q = Rearranged(MarkovChain(torch.zeros(5, 2), torch.zeros(2, 2), length=3), 1)
    >>> q.batch_shape, len(q.cardinalities), q.form.event_shape
    (torch.Size([]), 15, torch.Size([5, 3]))
    """

    form: PointForm

    def __init__(self, base: Ordered, dims: int, outputs: int = 0) -> None:
        split = len(base.batch_shape) - dims
        self.copies = base.batch_shape[split:]
        self.count = prod(self.copies)
        self.outputs = outputs
        self.base = base
        if self.count == 0:
            raise ValueError(
                "q: a distribution needs at least one variable, but Independent("
                f"{type(base).__name__}, {dims}) has {tuple(self.copies)} copies."
            )
        d = len(base.cardinalities)
        first = [copy * d for copy in range(self.count)]  # variable of every copy
        self.cardinalities = base.cardinalities * self.count
        self.blocks = tuple(tuple(i + j for i in block) for block in base.blocks for j in first)
        self.ancestors = base.ancestors
        if self.count > 1:
            self.ancestors = tuple(
                frozenset(i + j for i in known) for known in base.ancestors for j in first
            )
        else:
            self.incremental = base.incremental
            self.end = base.end
        self.one_pass = base.one_pass
        self.fixed = frozenset(i + j for i in base.fixed for j in first)
        self.real = base.real
        self.device = base.device
        inner = base.form or PointForm(Kind.INDEX, base.event_shape, torch.int64)
        self.form = PointForm(inner.kind, self.copies + inner.event_shape, inner.dtype)
        batch = base.batch_shape[:split] + (1,) * outputs
        super().__init__(batch, torch.Size([self.count * d]), validate_args=False)

    def _inner(self, lead: torch.Size) -> torch.Size:
        """Return the dimensions before the variables as ``base`` has them."""
        return lead[: len(lead) - self.outputs] + self.copies

    def _apart(self, x: Tensor) -> Tensor:
        """Return the points ``[*lead, copies * d]`` as those of ``base``."""
        return x.reshape(self._inner(x.shape[:-1]) + (len(self.base.cardinalities),))

    def _of_copy(self, raw: Any, block: int, copy: int, x: Tensor) -> Logits:
        """Return a block's logits of a copy, from those of ``base``."""
        logits = self.base.checked(raw, block, self._inner(x.shape[:-1]))
        shape = x.shape[:-1] + (self.count,) + logits.shape[-2:]
        return logits.reshape(shape)[..., copy, :, :]

    def conditional(self, x: Tensor, block: int) -> Tensor:
        inner, copy = divmod(block, self.count)
        return self._of_copy(self.base.conditional(self._apart(x), inner), inner, copy, x)

    def raw_logits(self, x: Tensor) -> Tensor:
        logits = self.base.raw_logits(self._apart(x))
        return logits.reshape(x.shape + logits.shape[-1:])

    def log_conditionals(self, x: Tensor, validate: bool = True) -> Tensor:
        log_probs = self.base.log_conditionals(self._apart(x), validate)
        return log_probs.reshape(x.shape + log_probs.shape[-1:])

    def log_prob_of_rows(self, x: Tensor, validate: bool = True) -> Tensor:
        log_prob = self.base.log_prob_of_rows(self._apart(x), validate)
        return log_prob.reshape(x.shape[:-1] + (self.count,)).sum(-1)

    def from_uniforms(self, u: Tensor, validate: bool = True) -> Tensor:
        # All copies at once, in the base's own way.
        return self.base.from_uniforms(self.base._rows(self._apart(u)), validate).reshape(u.shape)

    def scored(self, u: Tensor, validate: bool = True) -> Scored:
        x, log_prob, conditionals = self.base.scored(self.base._rows(self._apart(u)), validate)
        log_prob = log_prob.reshape(u.shape[:-1] + (self.count,)).sum(-1)
        return Scored(x.reshape(u.shape), log_prob, conditionals.reshape(u.shape))

    def direct_draws(self, rows: int, generator: torch.Generator | None) -> Tensor | None:
        points = self.base.direct_draws(rows, generator)
        shape = (rows, *self.batch_shape, len(self.cardinalities))
        return None if points is None else points.reshape(shape)

    def start(self, lead: torch.Size) -> Any:
        return self.base.start(self._inner(lead))

    def next_logits(
        self, block: int, x: Tensor, state: Any, previous: Tensor | None
    ) -> tuple[Tensor, Any]:
        if not self.incremental:
            return self.conditional(x, block), None
        if previous is not None:
            previous = previous.reshape(self._inner(previous.shape))
        raw, state = self.base.next_logits(block, self._apart(x), state, previous)
        return self._of_copy(raw, block, 0, x), state

    def select_rows(self, state: Any, rows: Tensor) -> Any:
        return self.base.select_rows(state, rows)

    @property
    def points(self) -> int:
        return self.base.points**self.count

    def all_points(self) -> Int64[Tensor, "points d"]:
        points = self.base.all_points()
        chosen = torch.arange(len(points), device=self.device)
        return points[torch.cartesian_prod(*[chosen] * self.count)].reshape(self.points, -1)
