"""Autoregressive distributions, given by any network."""

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from ..checks import check_count
from ..tracing import can_inspect, inside_functorch
from .causal import changed_later, check_causal, check_steps, rounding
from .ordered import Ordered


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

    A network that sees later variables, whose ``step`` and ``all_logits`` disagree, or that is not
    deterministic (dropout) would give wrong gradients. It is checked at its first four uses and at
    every power of two after that, in eager mode with validation on, and a ValueError is raised.

    Args:
        network: see above.
        cardinalities: number of categories of each variable.
        batch_shape: of the distribution, if the network holds a batch of contexts.
        device, dtype: of the probabilities; None: those of the network's parameters, else torch's
            defaults.

    >>> def network(x, i):
    ...     return torch.zeros(*x.shape[:-1], 3) + x[..., :i].sum(-1, keepdim=True)
    >>> q = Autoregressive(network, [3, 3])
    >>> q.sample((5,)).shape, q.log_prob(torch.tensor([0, 2])).exp()
    (torch.Size([5, 2]), tensor(0.1111))
    """

    # Uses of a module, a class of networks or a function's code.
    _uses: ClassVar[WeakKeyDictionary[Any, int]] = WeakKeyDictionary()

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
                "Autoregressive: `cardinalities` is empty; a distribution needs at least one "
                "variable."
            )
        # First by attribute: torch 2.6 cannot trace isinstance of a lambda.
        is_module = hasattr(network, "parameters") and isinstance(network, nn.Module)
        parameter = next(iter(network.parameters()), None) if is_module else None
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
            self._check_network(x[:1])
        return log_probs

    @torch.no_grad()
    def _check_network(self, x: Int64[Tensor, "1 *batch d"]) -> None:
        """Check the network at its first four uses, then at every power of two.

        Later checks are needed because its last layer may begin at zero.
        """
        network = self.network
        while isinstance(network, partial):
            network = network.func
        if not isinstance(network, nn.Module):  # may be made for one step: count uses of its code
            network = getattr(network, "__code__", type(network))
        uses = self._uses[network] = self._uses.get(network, 0) + 1
        if uses > 4 and uses & (uses - 1):
            return
        points = changed_later(x, self.cardinalities)
        raw = self.raw_logits(points)
        eps = rounding({self.real, *(logits.dtype for logits in raw)}, x.device)
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
                    f"q: all_logits must return shape {expected}, but it returned "
                    f"{tuple(logits.shape)}."
                )
            return [logits[..., i : i + 1, :size] for i, size in enumerate(self.cardinalities)]
        return self._by_steps(x) if self.incremental else super().raw_logits(x)

    def _by_steps(self, x: Tensor) -> list[Tensor]:
        state = self.start(x.shape[:-1])
        blocks = []
        for i in range(len(self.cardinalities)):
            logits, state = self.next_logits(i, x, state, x[..., i - 1] if i > 0 else None)
            blocks.append(logits)
        return blocks
