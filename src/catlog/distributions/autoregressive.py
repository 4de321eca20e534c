"""Autoregressive distributions, given by any network."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from math import prod
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..core.checks import (
    broadcasts,
    check_count,
    check_temperature,
    refusal,
    shape_or_type,
)
from ..core.ordered import (
    CONTEXTS,
    Ordered,
    Points,
    Previous,
    Scored,
    as_batch_shape,
    as_cardinalities,
    check_logits,
    dtype_and_device,
)
from ..core.tracing import can_inspect, inside_functorch
from .absorbing import Running, absorb, ended_before
from .network_checks import SHORT, check_network


class Autoregressive(Ordered):
    r"""A distribution of every variable given all earlier ones, by any network.

    .. math:: q(x) = \prod_{i=1}^d q(x_i \mid x_1, \dots, x_{i-1})

    The network is always called with leading dimensions ``[rows, *batch]`` and offers one or more
    of

    - ``network(x, i)``: logits ``[rows, *batch, k_i]`` of variable i, ignoring the entries of
      ``x [rows, *batch, d]`` from i on;
    - ``network.all_logits(x)``: logits ``[rows, *batch, d, k]`` of all variables in one
      teacher-forced call (row i must not depend on x_i or later);
    - ``network.start(lead)`` and ``network.step(state, i, previous)``: the next logits from a state
      and the previous variable (None for the first), so that drawing is linear in d: a recurrent
      state or a cache of keys and values. States are tensors, or tuples of them, with leading
      dimensions ``lead``.

    **Sequences that end.** With ``end``, a sequence is over at its first ``end``: all later
    variables are ``end`` with probability 1, whatever the network says, and nothing after it is
    scored. In eager mode drawing stops when all sequences have ended, and ``all_logits`` gets
    ``x [rows, *batch, t]``, where t is the length of the longest sequence. Without a batch, and if
    ``network.context_in_state`` says that the state contains all that ``step`` needs of a context,
    sequences that have ended are no longer passed to ``step``, which sees states and previous
    variables with a single leading dimension. :class:`catlog.distributions.Prompted` is such a
    network, for prompts of different lengths.

    A network that sees later variables, whose ``step`` and ``all_logits`` disagree, or that is not
    deterministic (dropout) would give wrong gradients. It is checked at its first four uses and at
    every power of two after that, in eager mode with validation on, and a ValueError is raised.

    Args:
        network: see above.
        cardinalities: number of categories of each variable.
        batch_shape: of the distribution, if the network holds a batch of contexts; None:
            ``network.batch_shape``, or none.
        end: the category that ends a sequence; None: all sequences have d variables.
        temperature: a positive number or a tensor ``[*batch]`` by which the logits are divided, in
            draws, probabilities and gradients alike.
        device, dtype: of the probabilities; None: those of the parameters of the network, or of
            ``network.model``, else torch's defaults.

    >>> def network(x, i):
    ...     return torch.zeros(*x.shape[:-1], 3) + x[..., :i].sum(-1, keepdim=True)
    >>> q = Autoregressive(network, [3, 3])
    >>> q.sample((5,)).shape, q.log_prob(torch.tensor([0, 2])).exp()
    (torch.Size([5, 2]), tensor(0.1111))
    >>> q = Autoregressive(network, [3, 3, 3], end=0)
    >>> q.log_prob(torch.tensor([0, 0, 0])).exp(), q.lengths(torch.tensor([2, 0, 0]))
    (tensor(0.3333), tensor(2))
    """

    # Uses of a module, a class of networks or a function's code.
    _uses: ClassVar[WeakKeyDictionary[Any, int]] = WeakKeyDictionary()

    def __init__(
        self,
        network: Any,
        cardinalities: Sequence[int],
        batch_shape: Sequence[int] | None = None,
        *,
        end: int | None = None,
        temperature: float | Tensor = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        validate_args: bool | None = None,
    ) -> None:
        steps = hasattr(network, "start") and hasattr(network, "step")
        if not (callable(network) or hasattr(network, "all_logits") or steps):
            claim = "be a function network(x, i), or have all_logits or start and step"
            but = f"{type(network).__name__} was given"
            raise refusal("Autoregressive: `network`", claim, but, kind=TypeError)
        cardinalities = as_cardinalities("Autoregressive", cardinalities)
        if end is not None:
            hint = f"Every variable must have it among its categories, {list(cardinalities)}."
            most = min(cardinalities) - 1
            check_count("Autoregressive", "end", end, least=0, most=most, hint=hint)
        if batch_shape is None:
            batch_shape = getattr(network, "batch_shape", ())
        batch = as_batch_shape("Autoregressive", batch_shape)
        _check_temperature(temperature, batch)
        owner = _model(network)
        parameters = list(owner.parameters()) if _is_module(owner) else []
        self.network = network
        self.cardinalities = cardinalities
        self.real, self.device = dtype_and_device(dtype, device, parameters)
        self.incremental = steps
        self.end = end
        self.temperature = temperature
        self.one_pass = not hasattr(network, "all_logits")
        super().__init__(batch, torch.Size([len(cardinalities)]), validate_args=validate_args)

    def log_conditionals(self, x: Tensor, validate: bool = True) -> Tensor:
        log_probs = super().log_conditionals(x, validate)
        self._check_use(x, validate)
        return log_probs

    def scored(self, u: Tensor, validate: bool = True) -> Scored:
        scored = super().scored(u, validate)
        self._check_use(scored.x, validate)
        return scored

    def lengths(self, x: Int64[Tensor, "*lead d"]) -> Int64[Tensor, "*lead"]:
        """Return how many variables each sequence has, up to and including its first ``end``."""
        if self.end is None:
            return torch.full(x.shape[:-1], x.shape[-1], device=x.device)
        return (~ended_before(x, self.end)).sum(-1)

    @torch.no_grad()
    def check(self) -> None:
        """Raise a ValueError that names the mistake if the network breaks the contract.

        It checks the shapes and leading dimensions of logits and states; that logits depend only on
        earlier variables and on their own row; that ``step`` and ``all_logits`` are the same
        function; and, with ``end``, that shorter sequences are accepted and that
        ``context_in_state`` is right. :func:`catlog.check` checks this and f.

        Cost: about 2 d + 10 passes through the network. It is checked at its first uses as well,
        but by fewer points.

        >>> q = Autoregressive(lambda x, i: x[..., -1:] * torch.arange(3.0), [3, 3])
        >>> try:
        ...     q.check()
        ... except ValueError as error:
        ...     print(str(error)[:73])
        q: the network's logits of variable 0 change when variables 0 to 1 change
        """
        check_network(self)

    def _check_use(self, x: Int64[Tensor, "n *batch d"], validate: bool) -> None:
        """Check the network at its first four uses, then at every power of two.

        Later checks are needed because its last layer may begin at zero.
        """
        if not can_inspect(validate, x) or x.numel() == 0 or inside_functorch():
            return
        network = _model(self.network)
        while isinstance(network, partial):
            network = network.func
        if not isinstance(network, nn.Module):  # may be made for one step: count uses of its code
            network = getattr(network, "__code__", type(network))
        uses = self._uses[network] = self._uses.get(network, 0) + 1
        if uses > 4 and uses & (uses - 1):
            return
        with torch.no_grad():  # not as a decorator, which compilers cannot trace
            check_network(self, x[:1])

    def without_end(self, x: Points) -> Points:
        """Return the points with another category in place of ``end``, so that nothing ends."""
        if self.end is None or min(self.cardinalities) == 1:
            return x
        return x.masked_fill(x == self.end, 1 if self.end == 0 else self.end - 1)

    def conditional(self, x: Tensor, block: int) -> Tensor:
        if self.incremental and not hasattr(self.network, "all_logits"):
            return next(islice(self._steps(x), block, None))
        return self._finished(self._conditional(x, block), x, block)

    def _finished(self, raw: Any, x: Points, block: int) -> Float[Tensor, "*lead 1 k"]:
        """Return what the network returned as logits that are divided by the temperature; ``end``
        is certain after the first one."""
        logits = self._scaled(self.checked(raw, block, x.shape[:-1]))
        if self.end is None:
            return logits
        return absorb(logits, (x[..., :block] == self.end).any(-1, keepdim=True), self.end)

    def ask(self, part: str, lead: Sequence[int], *arguments: Any) -> Any:
        """Return what a method of the network returns; add a note on shapes to its errors."""
        method = self.network if part == "__call__" else getattr(self.network, part)
        if torch.compiler.is_compiling():
            return method(*arguments)
        try:
            return method(*arguments)
        except Exception as error:
            name = "network(x, i)" if part == "__call__" else part
            error.add_note(
                f"q: {name} of the network failed for {len(self.cardinalities)} variables with the "
                f"leading dimensions [rows, *batch] = {tuple(lead)}. It is always called with "
                "leading dimensions; flatten them inside if a layer takes only one."
                + ("" if self.end is None or part != "all_logits" else f" {SHORT}")
                + ("" if self.batch_shape else f" {CONTEXTS}")
            )
            raise

    def _conditional(self, x: Points, block: int) -> Float[Tensor, "*lead 1 k"]:
        if hasattr(self.network, "all_logits"):
            seen = x if self.end is None else x[..., : block + 1]
            logits = self.ask("all_logits", x.shape[:-1], seen)
            return logits[..., block : block + 1, : self.cardinalities[block]]
        raw = self.ask("__call__", x.shape[:-1], x, block)
        return raw.unsqueeze(-2) if isinstance(raw, Tensor) else raw

    def start(self, lead: torch.Size) -> Any:
        state = self.ask("start", lead, lead)
        if not self._drops_ended:
            return state
        state = tree_map(lambda tensor: tensor.flatten(0, len(lead) - 1), state)
        return Running.all(state, prod(lead), self.device)

    @property
    def _drops_ended(self) -> bool:
        """Whether ``step`` sees only sequences that have not ended, in one leading dimension."""
        in_state = not self.batch_shape or bool(getattr(self.network, "context_in_state", False))
        return self.end is not None and in_state

    def step(self, state: Any, block: int, previous: Tensor | None) -> tuple[Tensor, Any]:
        lead = self.batch_shape if previous is None else previous.shape
        stepped: tuple[Tensor, Any] = self.ask("step", lead, state, block, previous)
        return stepped

    def next_logits(
        self, block: int, x: Tensor, state: Any, previous: Tensor | None
    ) -> tuple[Tensor, Any]:
        if not self.incremental:
            return self.conditional(x, block), None
        if self._drops_ended:
            raw, state = self._next_of_running(block, x, state, previous)
        else:
            raw, state = super().next_logits(block, x, state, previous)
        return self._finished(raw, x, block), state

    def _next_of_running(
        self, block: int, x: Points, states: Running, previous: Previous
    ) -> tuple[Float[Tensor, "*lead 1 k"], Running]:
        """Return the next logits, zeros for sequences that have ended, and the states."""
        assert self.end is not None
        lead, k = x.shape[:-1], self.cardinalities[block]
        has_ended = (x[..., :block] == self.end).any(-1).flatten()
        before = None if previous is None else previous.flatten()
        running = (~has_ended).nonzero().squeeze(1) if can_inspect(True, x) else None
        if running is None or len(running) == len(has_ended):
            logits, state = self.step(states.state, block, before)
            check_logits(logits, (len(has_ended), k), block)
            return logits.reshape(*lead, 1, k), Running(state, states.slot, states.count)
        states = states.keep(running)
        logits = torch.zeros(len(has_ended), k, dtype=self.real, device=x.device)
        if len(running) > 0:
            assert before is not None  # nothing has ended before the first variable
            part, state = self.step(states.state, block, before[running])
            check_logits(part, (len(running), k), block)
            logits = logits.to(part.dtype).index_copy(0, running, part)
            states = Running(state, states.slot, states.count)
        return logits.reshape(*lead, 1, k), states

    def select_rows(self, state: Any, rows: Int64[Tensor, "r"]) -> Any:
        if not self._drops_ended:
            return super().select_rows(state, rows)
        batch = torch.arange(prod(self.batch_shape), device=rows.device)
        return state.select((rows.unsqueeze(-1) * len(batch) + batch).flatten())

    def _scaled(self, logits: Float[Tensor, "*lead m k"]) -> Float[Tensor, "*lead m k"]:
        """Return logits divided by the temperature."""
        if isinstance(self.temperature, Tensor):
            return logits / self.temperature[..., None, None]
        return logits if self.temperature == 1.0 else logits / self.temperature

    def raw_logits(self, x: Tensor) -> Tensor:
        if hasattr(self.network, "all_logits"):
            return self.by_all_logits(x)
        return self.by_steps(x) if self.incremental else super().raw_logits(x)

    def by_all_logits(self, x: Points) -> Float[Tensor, "*lead d k"]:
        """Return all logits by one call of the network's ``all_logits``."""
        has_ended = None if self.end is None else ended_before(x, self.end)
        seen = x
        if has_ended is not None and can_inspect(True, x) and x.numel() > 0:
            seen = x[..., : int((~has_ended).sum(-1).max())]
        logits = self.ask("all_logits", x.shape[:-1], seen)
        expected = (*seen.shape, max(self.cardinalities))
        if logits.shape != expected:
            claim, but = f"return shape {expected}", f"it returned {shape_or_type(logits)}"
            remedy = f"The leading dimensions [rows, *batch] = {tuple(x.shape[:-1])} come first."
            raise refusal("q: all_logits", claim, but, remedy)
        logits = self._scaled(logits)
        if has_ended is not None:
            assert self.end is not None
            logits = nn.functional.pad(logits, (0, 0, 0, x.shape[-1] - seen.shape[-1]))
            logits = absorb(logits, has_ended, self.end)
        return logits

    def by_steps(self, x: Points) -> Float[Tensor, "*lead d k"]:
        """Return all logits by the network's ``start`` and ``step``."""
        return self.by_variable(list(self._steps(x)))

    def _steps(self, x: Points) -> Iterator[Float[Tensor, "*lead 1 k"]]:
        """Yield the logits of one variable after the other."""
        state = self.start(x.shape[:-1])
        for i in range(len(self.cardinalities)):
            logits, state = self.next_logits(i, x, state, x[..., i - 1] if i > 0 else None)
            yield logits


def _is_module(network: Any) -> bool:
    # First by attribute: torch 2.6 cannot trace isinstance of a lambda.
    return hasattr(network, "parameters") and isinstance(network, nn.Module)


def _model(network: Any) -> Any:
    """Return the network, or the module that it wraps for a step of training."""
    if _is_module(network) or not _is_module(getattr(network, "model", None)):
        return network
    return network.model


def _check_temperature(temperature: Any, batch: torch.Size) -> None:
    """Raise unless the temperature is positive, and a tensor fits the batch."""
    check_temperature("Autoregressive", temperature, many=True)
    if isinstance(temperature, Tensor) and not broadcasts(temperature.shape, batch):
        subject = "Autoregressive: `temperature`"
        claim = f"be a number or a tensor that broadcasts to the batch shape {tuple(batch)}"
        raise refusal(subject, claim, f"its shape is {tuple(temperature.shape)}")
