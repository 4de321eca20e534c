"""f at every single-variable change of x: evaluated in chunks, or read from f's own table."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int64, Num, Shaped
from torch import Tensor

from .abilities import has_table
from .categories import integers
from .checks import refusal, shape_or_type
from .factors import Bits, IndependentFactors, lazy
from .noise import watched

if TYPE_CHECKING:
    from .evaluator import Evaluator

Slots = Int64[Tensor, "n *#batch slots"]
Table = Float[Tensor, "n *batch slots k"]
Rows = Int64[Tensor, " rows"]


class Neighbours:
    """The changes of x in one variable.

    The slots are all d variables, or the chosen ones of each draw. Per variable, x holds one draw
    for each (row s * d + i for sample s), and slot i is a change of that draw.

    Attributes:
        f: the evaluator.
        q: the factors.
        x: the points that are changed.
        fx: f at x, a constant, that broadcasts with the slots.
        variables: the variable of every slot; None: all.
    """

    def __init__(
        self,
        f: "Evaluator",
        x: Tensor,
        fx: Float[Tensor, "rows *batch"],
        variables: Slots | None,
        per_variable: bool,
    ) -> None:
        assert isinstance(f.q, IndependentFactors)
        self.f = f
        self.q = q = f.q
        self.x = x
        self.per_variable = per_variable
        self.variables = variables
        self.grad_mode = False
        self.fx = fx.detach().unsqueeze(-1)
        if per_variable:
            self.fx = self.fx.unflatten(0, (-1, q.d)).transpose(1, -1).squeeze(1)

    @lazy
    def index(self) -> Int64[Tensor, "n *batch slots"]:
        """x's own category of every slot."""
        index = self.q.index(self.x)
        if self.per_variable:
            return index.unflatten(0, (-1, self.q.d)).diagonal(dim1=1, dim2=-1)
        return index if self.variables is None else index.gather(-1, self.variables)

    @lazy
    def possible(self) -> Bool[Tensor, "n *batch slots k"]:
        """Whether a category of a slot can be drawn."""
        possible = self.q.possible.expand(self.index.shape[:-1] + self.q.possible.shape[-2:])
        if self.variables is None:
            return possible
        return possible.gather(
            -2, self.variables.unsqueeze(-1).expand(self.index.shape + (self.q.k,))
        )

    def changes(self) -> Table:
        """Return ``f(x with x_i = k) - f(x)`` for every slot and category, without autograd.

        The entry of x's own category is 0. So is that of an impossible category, which f never
        sees: if it has probability zero but is within ``cardinalities``, x itself is evaluated in
        its place; beyond ``cardinalities`` nothing is evaluated. Outputs of f are batch dimensions.
        """
        if not has_table(self.f.f):
            are_flips = self.variables is None and not self.per_variable
            return self._flipped() if are_flips and isinstance(self.q, Bits) else self._evaluated()
        return self._changes(self._own_table().to(self.fx.dtype))

    def total(self) -> Float[Tensor, "*batch d k"]:
        """Return the sum of :meth:`changes` over the draws. A table of bools is summed as it is: it
        has no rounding errors that differences would lower."""
        if not (self.q.outputs and has_table(self.f.f)) or self.per_variable:
            return self.changes().sum(0)
        table = self._own_table()
        if table.dtype != torch.bool:
            return self._changes(table.to(self.fx.dtype)).sum(0)
        total = table.sum(0, dtype=self.q.real) - self.fx.sum(0).to(self.q.real).unsqueeze(-1)
        return total.masked_fill(~self.q.possible, 0.0)

    def _points(self, draw: Rows, slot: Rows, category: Num[Tensor, "rows *batch"]) -> Tensor:
        """Return the points of these draws, with the variable of a slot set to a category."""
        q = self.q
        start = q.flat(self.x).index_select(0, draw * q.d + slot if self.per_variable else draw)
        return q.shaped(q.assign(start, self._variable(draw, slot), category))

    def _variable(self, draw: Rows, slot: Rows) -> Int64[Tensor, "rows *#batch"]:
        """Return the variable of a slot of these draws."""
        if self.variables is not None:
            return self.variables[draw, ..., slot]
        return slot.view(-1, *[1] * len(self.q.batch_shape))

    def _evaluated(self) -> Table:
        """Return the changes by calling f at all other categories, (own + j) mod k, of every
        slot."""
        q, device = self.q, self.x.device
        n, slots, k = len(self.index), self.index.shape[-1], q.k
        current = self.index.unsqueeze(-1)
        offset = torch.arange(1, k, device=device)
        other = 1 - current if k == 2 else (current + offset) % k
        is_mixed = min(q.cardinalities) < k
        if is_mixed:
            sizes = integers(q.cardinalities, device)
            sizes = (sizes if self.variables is None else sizes[self.variables]).unsqueeze(-1)
            other = (current + offset) % sizes
        possible = self.possible.gather(-1, other)
        if is_mixed:
            possible = possible & (offset < sizes)  # further ones are repeated
        # An impossible category writes its 0 to x's own entry, which is 0 anyway.
        other = torch.where(possible, other, current)
        category = other.flatten(-2).movedim(-1, 1)
        slot = torch.arange(slots, device=device)
        slot = slot.repeat_interleave(k - 1, output_size=slots * (k - 1))
        kept: Tensor | None = None  # moves that are evaluated: all
        if is_mixed and self.variables is None:
            count = sizes.squeeze(-1) - 1
            moved = torch.arange(slots, device=device)
            moved = moved.repeat_interleave(count, output_size=sum(q.cardinalities) - slots)
            number = torch.arange(len(moved), device=device) - (count.cumsum(0) - count)[moved]
            kept = moved * (k - 1) + number
            slot, category = moved, category[:, kept]
        moves, category = len(slot), category.flatten(0, 1)

        # One row per (draw, move): f sees [rows, *batch, *event], a few draws of it at a time.
        def points(part: slice) -> Tensor:
            row = torch.arange(part.start, part.stop, device=device)
            return self._points(row // moves, slot[row % moves], category[part])

        value = self.f.chunked(points, n * moves).unflatten(0, (n, moves)).movedim(1, -1)
        if kept is not None:
            all_moves = value.new_zeros((*value.shape[:-1], slots * (k - 1)))
            value = all_moves.index_copy(-1, kept, value)
        change = value.unflatten(-1, (slots, k - 1)) - self.fx.unsqueeze(-1)
        change = change.masked_fill(~possible, 0.0)
        table = change.new_zeros((*change.shape[:-1], k))
        return table.scatter(-1, other.expand(change.shape), change)

    def _flipped(self) -> Table:
        """Return the changes by calling f with every bit flipped, unless it is certain.

        They are those of :meth:`_evaluated`, with less than half of its operations.
        """
        q, n, d = self.q, len(self.x), self.q.d
        assert isinstance(q, Bits)
        bit, certain = q.flat(self.x), q.certain
        flipped = 1 - bit if certain is None else torch.where(certain, bit, 1 - bit)

        def points(part: slice) -> Tensor:
            if part.stop - part.start == n * d:
                start = bit.unsqueeze(1).expand(n, d, *bit.shape[1:])
                if q.is_transformed:  # compilers make one kernel of it
                    is_own = torch.eye(d, dtype=torch.bool, device=bit.device)
                    is_own = is_own.view(d, *[1] * len(q.batch_shape), d)
                    return q.shaped(torch.where(is_own, flipped.unsqueeze(1), start).flatten(0, 1))
                return q.shaped(start.diagonal_scatter(flipped, 0, 1, -1).flatten(0, 1))
            row = torch.arange(part.start, part.stop, device=bit.device)
            return self._points(row // d, row % d, flipped[row // d, ..., row % d])

        value = self.f.chunked(points, n * d)
        change = value.reshape(n, d, *value.shape[1:]).movedim(1, -1) - self.fx
        if certain is not None:
            change = change.masked_fill(certain, 0.0)
        to_zero = bit * change
        return torch.stack([to_zero, change - to_zero], -1)

    def _changes(self, table: Table) -> Table:
        """Return a table of values minus its entries of x's own categories; 0 where impossible."""
        current = self.index.unsqueeze(-1).expand(table.shape[:-1] + (1,))
        # Less the table's own f(x), which is rounded as its neighbours are.
        table = table - table.gather(-1, current)
        table = table.masked_fill(~self.possible, 0.0).scatter(-1, current, 0.0)
        self.f.check_finite(table, "f.neighbours must return")
        return table

    def _own_table(self) -> Shaped[Tensor, "n *batch slots k"]:
        """Return f's own table of the slots, of floats or bools, with the outputs in the batch."""
        q, f = self.q, self.f.f
        assert has_table(f)
        points, batch, slots = q.seen(self.x.clone()), q.seen_batch, self.index.shape[-1]
        lead = self.fx.shape[1:-1]  # the batch with outputs
        asked = []
        if self.per_variable:
            slots = 1
            own = torch.arange(q.d, device=points.device).repeat(len(self.index))
            asked = [own.view(-1, *[1] * len(batch), 1).expand(len(points), *batch, 1)]
        elif self.variables is not None:
            asked = [self.variables.reshape(len(points), *batch, slots)]
        warn = watched(self.f, lambda: self.x[:1])
        table = f.neighbours(points, *asked)
        warn()
        expected = points.shape[:1] + batch + (slots, q.k) + lead[len(batch) :]
        if not isinstance(table, Tensor) or table.shape != expected:
            returned = "shape " * isinstance(table, Tensor) + str(shape_or_type(table))
            form = f"[n, *batch, variables, k{', *outputs' if q.outputs else ''}]"
            claim = f"return a table of shape {tuple(expected)} ({form})"
            raise refusal("f.neighbours", claim, f"it returned {returned}")
        if q.outputs:
            last = range(len(expected) - q.outputs, len(expected))
            table = table.movedim(tuple(last), tuple(i - 2 for i in last))
        if self.per_variable:
            table = table.squeeze(-2).unflatten(0, (-1, q.d)).movedim(1, -2)
        return table
