"""A structured distribution with batch dimensions of size 1 for the outputs of f."""

from typing import Any

import torch
from torch import Tensor

from .ordered import Ordered


class WithOutputDimensions(Ordered):
    """The distribution ``q`` with ``outputs`` more batch dimensions, of size 1.

    Values of f have the size of its outputs there, so that they broadcast against probabilities.
    The networks of q see points without these dimensions.
    """

    def __init__(self, q: Ordered, outputs: int) -> None:
        self.q = q
        self.outputs = outputs
        self.blocks = q.blocks
        self.cardinalities = q.cardinalities
        self.ancestors = q.ancestors
        self.real = q.real
        self.device = q.device
        self.fixed = q.fixed
        self.incremental = q.incremental
        self.end = q.end
        self.form = q.form
        super().__init__(q.batch_shape + (1,) * outputs, q.event_shape, validate_args=False)

    def _without(self, tensor: Tensor, tail: int) -> Tensor:
        """Remove the output dimensions, which stand before the last ``tail`` dimensions."""
        lead = tensor.shape[: tensor.dim() - tail - self.outputs]
        return tensor.reshape(lead + tensor.shape[tensor.dim() - tail :])

    def _with(self, tensor: Any, tail: int) -> Any:
        """Insert the output dimensions before the last ``tail`` dimensions.

        Anything but a tensor is returned unchanged; reading it as logits raises an error.
        """
        if not isinstance(tensor, Tensor):
            return tensor
        split = tensor.dim() - tail
        return tensor.reshape(tensor.shape[:split] + (1,) * self.outputs + tensor.shape[split:])

    def conditional(self, x: Tensor, block: int) -> Tensor:
        return self._with(self.q.conditional(self._without(x, 1), block), 2)

    def raw_logits(self, x: Tensor) -> list[Tensor]:
        return [self._with(raw, 2) for raw in self.q.raw_logits(self._without(x, 1))]

    def log_conditionals(self, x: Tensor, validate: bool = True) -> Tensor:
        return self._with(self.q.log_conditionals(self._without(x, 1), validate), 2)

    def log_prob_of_rows(self, x: Tensor, validate: bool = True) -> Tensor:
        return self._with(self.q.log_prob_of_rows(self._without(x, 1), validate), 0)

    def from_uniforms(self, u: Tensor, validate: bool = True) -> Tensor:
        return self._with(self.q.from_uniforms(self._without(u, 1), validate), 1)

    def direct_draws(self, rows: int, generator: torch.Generator | None) -> Tensor | None:
        return self._with(self.q.direct_draws(rows, generator), 1)

    @property
    def points(self) -> int:
        return self.q.points

    def enumerate_support(self, expand: bool = True) -> Tensor:
        return self._with(self.q.enumerate_support(expand), 1)

    def start(self, lead: torch.Size) -> Any:
        return self.q.start(lead[: len(lead) - self.outputs])

    def next_logits(
        self, block: int, x: Tensor, state: Any, previous: Tensor | None
    ) -> tuple[Tensor, Any]:
        without = None if previous is None else self._without(previous, 0)
        raw, state = self.q.next_logits(block, self._without(x, 1), state, without)
        return self._with(raw, 2), state

    def select_rows(self, state: Any, rows: Tensor) -> Any:
        return self.q.select_rows(state, rows)
