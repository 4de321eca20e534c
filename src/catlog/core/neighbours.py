"""f at every single-variable change of x: evaluated in chunks, or read from f's own table."""

from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakSet

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from .abilities import has_table
from .categories import integers
from .factors import Bits, IndependentFactors
from .noise import Trace
from .tracing import can_inspect

if TYPE_CHECKING:
    from .evaluator import Evaluator

Slots = Int64[Tensor, "n *#batch slots"]
Table = Float[Tensor, "n *batch slots k"]
COMPARED: WeakSet[object] = WeakSet()  # functions whose own table was found to agree with them


class Neighbours:
    """The changes of x in one variable.

    The slots are all d variables, or the chosen ones of each draw. Per variable, x holds one draw
    for each (row s * d + i for sample s), and slot i is a change of that draw.

    Attributes:
        f: the evaluator.
        q: the factors.
        x: the points that are changed.
        fx: f at x, a constant, that broadcasts with the slots.
        index: x's own category of every slot.
        variable: the variable of every slot.
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
        self.q = f.q
        self.x = x
        self.per_variable = per_variable
        self.variables = variables
        self.all_variables = variables is None
        fx = fx.detach()
        if self._are_flips() and not has_table(f.f):
            self.fx = fx.unsqueeze(-1)
            return
        index = self.q.index(x)
        if per_variable:
            self.index = index.unflatten(0, (-1, self.q.d)).diagonal(dim1=1, dim2=-1)
            self.fx = fx.unflatten(0, (-1, self.q.d)).movedim(1, -1)
        else:
            self.index = index if variables is None else index.gather(-1, variables)
            self.fx = fx.unsqueeze(-1)
        if variables is None:
            variables = torch.arange(self.q.d, device=x.device).expand(self.index.shape)
        self.variable = variables

    def changes(self) -> Table:
        """Return ``f(x with x_i = k) - f(x)`` for every slot and category, without autograd.

        The entry of x's own category is 0. So is that of an impossible category, which f never
        sees: if it has probability zero but is within ``cardinalities``, x itself is evaluated in
        its place; beyond ``cardinalities`` nothing is evaluated. Outputs of f are batch dimensions.
        """
        if not has_table(self.f.f):
            if not self._are_flips():
                return self._evaluated()
            change, bit = self._flipped(), self.q.flat(self.x)
            return torch.stack([bit * change, (1 - bit) * change], -1)
        table = self._changes(self._own_table().to(self.fx.dtype))
        if can_inspect(self.q.validate, table) and not self._agreed():
            self._compare(table)
            with suppress(TypeError):  # f has no room for a note: compared at every call
                COMPARED.add(getattr(self.f.f, "lasting", self.f.f))
        return table

    def total(self) -> Float[Tensor, "*batch d k"]:
        """Return the sum of :meth:`changes` over the draws. A table of bools is summed as it is: it
        has no rounding errors that differences would lower."""
        if self._are_flips() and not has_table(self.f.f):
            change, bit = self._flipped(), self.q.flat(self.x)
            to_zero = (bit * change).sum(0)
            return torch.stack([to_zero, change.sum(0) - to_zero], -1)
        if not self.q.outputs or self.per_variable or not self._is_compared():
            return self.changes().sum(0)
        table = self._own_table()
        if table.dtype != torch.bool:
            return self._changes(table.to(self.fx.dtype)).sum(0)
        total = table.sum(0, dtype=self.q.real) - self.fx.sum(0).to(self.q.real).unsqueeze(-1)
        return total.masked_fill(~self.q.possible, 0.0)

    def _is_compared(self) -> bool:
        if not has_table(self.f.f):
            return False
        return not can_inspect(self.q.validate, self.fx) or self._agreed()

    def _agreed(self) -> bool:
        """Return whether f's table was found to agree with f, at an earlier call."""
        try:
            return getattr(self.f.f, "lasting", self.f.f) in COMPARED
        except TypeError:  # it cannot be hashed
            return False

    def _are_flips(self) -> bool:
        """Return whether all bits of all draws are changed: a case with little arithmetic."""
        return isinstance(self.q, Bits) and not self.per_variable and self.all_variables

    def _flipped(self) -> Float[Tensor, "n *batch d"]:
        """Return the changes by calling f with every bit flipped, unless it is certain."""
        q, n, d = self.q, len(self.x), self.q.d
        assert isinstance(q, Bits)
        flat = q.flat(self.x)
        undecided = q.undecided.to(flat.dtype).expand(*q.batch_shape, d)

        def points(part: slice) -> Tensor:
            if part.stop - part.start == n * d:
                flips = torch.eye(d, dtype=flat.dtype, device=flat.device)
                flips = flips.view(d, *[1] * len(q.batch_shape), d) * undecided
                return q.shaped((flat.unsqueeze(1) - flips).abs().flatten(0, 1))
            row = torch.arange(part.start, part.stop, device=flat.device)
            start, variable = flat.index_select(0, row // d), row % d
            place = variable.view(-1, *[1] * len(q.batch_shape))
            bit = start.gather(-1, place.expand(start.shape[:-1]).unsqueeze(-1)).squeeze(-1)
            flipped = (bit - undecided.movedim(-1, 0)[variable]).abs()
            return q.shaped(q.assign(start, place, flipped.long()))

        value = self.f.chunked(points, n * d).unflatten(0, (n, d)).movedim(1, -1)
        return (value - self.fx).masked_fill(~q.undecided, 0.0)

    def _evaluated(self) -> Table:
        """Return the changes by calling f at all other categories, (own + j) mod k, of every
        slot."""
        q, device = self.q, self.x.device
        n, slots, k = self.index.shape[0], self.index.shape[-1], q.k
        if self.variables is None and min(q.cardinalities) < k:
            alternatives = integers(q.cardinalities, device) - 1
            moves = sum(q.cardinalities) - q.d
            slot = torch.arange(slots, device=device)
            slot = slot.repeat_interleave(alternatives, output_size=moves)
            first = alternatives.cumsum(0) - alternatives
            first = first.repeat_interleave(alternatives, output_size=moves)
            offset = torch.arange(moves, device=device) - first + 1
        else:
            moves = slots * (k - 1)
            slot = torch.arange(slots, device=device).repeat_interleave(k - 1, output_size=moves)
            offset = torch.arange(1, k, device=device).repeat(slots)
        if moves == 0:
            return self.fx.new_zeros(self.fx.shape[:-1] + (slots, k))
        variable, current = self.variable[..., slot], self.index[..., slot]
        size: Tensor | int = k
        if min(q.cardinalities) < k:
            size = integers(q.cardinalities, device)[variable]
        category = (current + offset) % size
        possible = q.possible.flatten(-2).expand((n, *q.batch_shape, q.d * k))
        possible = possible.gather(-1, variable * k + category)
        category = torch.where(possible, category, current)

        # One row per (draw, move): f sees [rows, *batch, *event], a few draws of it at a time.
        flat = q.flat(self.x)
        row = torch.arange(n, device=device).unsqueeze(1)
        row = (row * q.d + slot if self.per_variable else row.expand(n, moves)).reshape(-1)
        to_variable = variable.movedim(-1, 1).flatten(0, 1)
        to_category = category.movedim(-1, 1).flatten(0, 1)

        def points(part: slice) -> Tensor:
            start = flat.index_select(0, row[part])
            return q.shaped(q.assign(start, to_variable[part], to_category[part]))

        value = self.f.chunked(points, n * moves).unflatten(0, (n, moves)).movedim(1, -1)
        change = value - (self.fx[..., slot] if self.per_variable else self.fx)
        change = change.masked_fill(~possible, 0.0)
        table = change.new_zeros((*change.shape[:-1], slots * k))
        # An impossible category writes its 0 to x's own entry, which is 0 anyway.
        entry = (slot * k + category).expand(change.shape)
        return table.scatter(-1, entry, change).unflatten(-1, (slots, k))

    def _changes(self, table: Table) -> Table:
        """Return a table of values minus its entries of x's own categories; 0 where impossible."""
        current = self.index.unsqueeze(-1).expand(table.shape[:-1] + (1,))
        # Less the table's own f(x), which is rounded as its neighbours are.
        table = table - table.gather(-1, current)
        possible = self.q.possible.expand(self.index.shape[:-1] + self.q.possible.shape[-2:])
        if self.variables is not None:
            rows = self.variables.unsqueeze(-1).expand(self.variables.shape + (self.q.k,))
            possible = possible.gather(-2, rows)
        table = table.masked_fill(~possible, 0.0).scatter(-1, current, 0.0)
        self.f.check_finite(table, "f.neighbours must return")
        return table

    def _own_table(self) -> Table:
        """Return f's own table of the slots, with the outputs in the batch."""
        q, f = self.q, self.f.f
        assert has_table(f)
        points, batch, slots = q.seen(self.x.clone()), q.seen_batch, self.index.shape[-1]
        lead = self.fx.shape[1:-1]  # the batch with outputs
        asked = []
        if self.per_variable:
            asked, slots = [self.variable.movedim(-1, 1).reshape(len(self.x), *batch, 1)], 1
        elif self.variables is not None:
            asked = [self.variables.reshape(len(self.x), *batch, slots)]
        trace = Trace.before(f, q)
        table = f.neighbours(points, *asked)
        if trace is not None:
            twice = (q.seen(self.x)[[0, 0]], *(numbers[[0, 0]] for numbers in asked))
            trace.warn_if_changed(lambda: f.neighbours(*twice))
        expected = self.x.shape[:1] + batch + (slots, q.k) + lead[len(batch) :]
        if not isinstance(table, Tensor) or table.shape != expected:
            shape = f"shape {tuple(table.shape)}" if isinstance(table, Tensor) else ""
            form = (
                "[n, *batch, variables, k, *outputs]" if q.outputs else "[n, *batch, variables, k]"
            )
            raise ValueError(
                f"f.neighbours must return a table of shape {tuple(expected)} ({form}), but it "
                f"returned {shape or type(table).__name__}."
            )
        if q.outputs:
            last = range(len(expected) - q.outputs, len(expected))
            table = table.movedim(tuple(last), tuple(i - 2 for i in last))
        if self.per_variable:
            table = table.squeeze(-2).unflatten(0, (-1, q.d)).movedim(1, -2)
        return table

    def _compare(self, table: Table) -> None:
        """Raise if f's table does not agree with f.

        Two slots of the first two draws are compared, that of the largest change and one more: at
        most four evaluations per batch element. If f returns other values when it is called again
        (dropout), it cannot be compared, and nothing is raised.
        """
        if table.numel() == 0:
            return
        q, x, slots = self.q, self.x, table.shape[-2]
        largest = int(table[0].abs().amax(-1).reshape(-1, slots).amax(0).argmax())
        second = (largest + 1 + slots // 2) % slots
        compared = list(dict.fromkeys((largest, second)))
        draws = min(2, len(table))
        row = torch.arange(draws, device=x.device).repeat_interleave(len(compared))
        slot = integers(compared, x.device).repeat(draws)
        start = q.flat(x)[row * q.d + slot if self.per_variable else row]
        current = self.index[row, ..., slot]
        changed = self.variable[row, ..., slot]
        unchanged = self.fx.expand(*self.fx.shape[:-1], slots)[row, ..., slot]
        changes = table[row, ..., slot, :]
        # The category whose change is largest in some output: these are in the batch of changes.
        outputs = tuple(range(current.dim() - q.outputs, current.dim()))
        by_category = changes.abs().amax(outputs, keepdim=True) if outputs else changes.abs()
        after = (current + 1) % integers(q.cardinalities, x.device)[changed]
        is_largest = (slot == largest).view(-1, *[1] * (current.dim() - 1))
        category = torch.where(
            is_largest & (by_category > 0).any(-1), by_category.argmax(-1), after
        )
        possible = q.possible.flatten(-2).expand(*current.shape, -1)
        possible = possible.gather(-1, (changed * q.k + category).unsqueeze(-1))
        category = torch.where(possible.squeeze(-1), category, current)
        points = q.shaped(q.assign(start, changed, category))

        # Forked, so that later draws do not depend on whether f was called here.
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            value, again = (self.f(points).to(self.fx.dtype) for _ in range(2))
        claimed = changes.gather(-1, category.expand(changes.shape[:-1]).unsqueeze(-1)).squeeze(-1)
        true = value - unchanged
        size = torch.maximum(value.abs(), unchanged.abs()).amax(0)
        bound = 0.1 * torch.maximum(claimed.abs(), true.abs()).amax(0)
        bound = bound + rounding(self.f.f, x, self.fx) * size
        wrong = (claimed - true).abs() > bound
        if bool(wrong.any()) and bool(((again - value).abs() <= bound).all()):
            first = tuple(wrong.nonzero()[0].tolist())
            raise ValueError(
                "f.neighbours does not agree with f: variable "
                f"{int(changed.expand_as(wrong)[first])} set to category "
                f"{int(category.expand_as(wrong)[first])} changes f(x) by {float(true[first]):.4g},"
                f" but by {float(claimed[first]):.4g} in the table. Correct `neighbours`, or pass "
                "the estimator `lambda x: f(x)`, which evaluates f at every neighbour. (A q with "
                "validate_args=False turns this comparison off.)"
            )


def rounding(f: object, x: Tensor, fx: Tensor) -> float:
    """Return a bound of f's relative rounding error; generous, since f's terms may be larger."""
    dtypes = {fx.dtype, *([x.dtype] if x.is_floating_point() else [])}
    if isinstance(f, nn.Module):
        tensors = (*f.parameters(), *f.buffers())
        dtypes |= {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
    if torch.is_autocast_enabled(x.device.type):
        dtypes.add(torch.get_autocast_dtype(x.device.type))
    coarsest = max(torch.finfo(dtype).eps for dtype in dtypes)
    precision = torch.get_float32_matmul_precision()
    if torch.float64 not in dtypes and (x.is_cuda or precision != "highest"):
        # The mantissa of bfloat16 ("medium") or TF32 ("high", and convolutions on a GPU).
        coarsest = max(coarsest, 2.0**-7 if precision == "medium" else 2.0**-10)
    return coarsest * (1024 if coarsest < 1e-6 else 32)
