"""Sequences that end: what is certain after the end token, and the sequences that still run."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ..core.ordered import rows_of_state
from ..core.tracing import can_inspect


def ended_before(x: Int64[Tensor, "*lead d"], end: int) -> Bool[Tensor, "*lead d"]:
    """Return for every variable whether an earlier one is ``end``.

    >>> ended_before(torch.tensor([[1, 0, 0], [1, 2, 1]]), end=0).tolist()
    [[False, False, True], [False, False, False]]
    """
    is_end = x == end
    return is_end.cumsum(-1) > is_end.long()


def absorb(
    logits: Float[Tensor, "*lead k"], has_ended: Bool[Tensor, "*lead"], end: int
) -> Float[Tensor, "*lead k"]:
    """Return the logits, or constant ones of a certain ``end`` where the sequence has ended."""
    category = torch.arange(logits.shape[-1], device=logits.device)
    certain = torch.where(category == end, 0.0, -torch.inf).to(logits.dtype)
    return torch.where(has_ended.unsqueeze(-1), certain, logits)


@dataclass(frozen=True, eq=False)
class Running:
    """The states of the sequences that have not ended, in their order.

    Attributes:
        state: (tuples of) tensors with one row for each sequence that runs.
        slot: for every sequence, the row of its state; -1 if the sequence has ended.
        count: number of rows of ``state``.
    """

    state: Any
    slot: Int64[Tensor, "sequences"]
    count: int

    @classmethod
    def all(cls, state: Any, count: int, device: torch.device) -> "Running":
        return cls(state, torch.arange(count, device=device), count)

    def keep(self, running: Int64[Tensor, "kept"]) -> "Running":
        """Return the states of these sequences alone; all of them must run."""
        if len(running) == self.count:
            return self
        state = rows_of_state(self.state, self.slot[running])
        slot = torch.full_like(self.slot, -1)
        slot[running] = torch.arange(len(running), device=slot.device)
        return Running(state, slot, len(running))

    def select(self, sequences: Int64[Tensor, "selected"]) -> "Running":
        """Return the states of the given sequences, in this order; repeats are copied."""
        slot = self.slot[sequences]
        if not can_inspect(True, slot):  # nothing has been dropped
            return Running.all(rows_of_state(self.state, slot), len(slot), slot.device)
        runs = slot >= 0
        state = rows_of_state(self.state, slot[runs])
        slot = torch.where(runs, runs.cumsum(0) - 1, -1)
        return Running(state, slot, int(runs.sum()))
