"""f at every single-variable change of x: evaluated in chunks, or read from f's own table."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ..distributions.conditionals import without_outputs
from ..distributions.factors import Factors
from ..distributions.integers import integers
from ..estimator import Function
from ..tracing import can_inspect
from .evaluate import as_seen, check_finite, evaluate_chunked
from .noise import Trace
from .own_table import compare_with_f

Slots = Int64[Tensor, "n *#batch slots"]
Table = Float[Tensor, "n *batch slots k"]


def differences(
    f: Function,
    x: Tensor,
    fx: Float[Tensor, "rows *batch"],
    law: Factors,
    *,
    per_variable: bool = False,
    chosen: Int64[Tensor, "n *#batch m"] | None = None,
    chunk_size: int | None = None,
) -> Table:
    """Return ``f(x with x_i = k) - f(x)`` for every slot i and category k, without autograd.

    The slots are all d variables, or the ``chosen`` ones of each draw. With ``per_variable``, x
    holds one draw per variable (row s * d + i for sample s), and slot i is a change of that draw.
    The entry of x's own category is 0. So is that of an impossible category, which f never sees:
    if it has probability zero but is within ``cardinalities``, x itself is evaluated in its place;
    beyond ``cardinalities`` nothing is evaluated.

    If f has outputs, they are the last batch dimensions of the result; f's own table has them last.
    f's own table is compared with f at its first use, unless values cannot be inspected there.
    """
    with torch.no_grad():
        index = law.index(x)
        fx = fx.detach()
        if per_variable:
            index = index.unflatten(0, (-1, law.d)).diagonal(dim1=1, dim2=-1)
            fx = fx.unflatten(0, (-1, law.d)).movedim(1, -1)
        else:
            index = index if chosen is None else index.gather(-1, chosen)
            fx = fx.unsqueeze(-1)
        variable = chosen
        if variable is None:
            variable = torch.arange(law.d, device=x.device).expand(index.shape)

        if getattr(f, "neighbours", None) is not None:
            if per_variable:
                asked = variable.movedim(-1, 1).flatten(0, 1).unsqueeze(-1)
                table = _own_table(f, x, asked, fx.shape[1:-1], law)
                table = table.squeeze(-2).unflatten(0, (-1, law.d)).movedim(1, -2)
            else:
                table = _own_table(f, x, chosen, fx.shape[1:-1], law)
            table = _changes(table.to(fx.dtype), index, chosen, law)
            if can_inspect(law.validate, table) and not getattr(f, "table_checked", False):
                compare_with_f(f, table, x, fx, law, index, variable, per_variable)
            return table
        return _evaluated(f, x, fx, law, index, variable, per_variable, chosen is None, chunk_size)


def mean_differences(
    f: Function,
    x: Tensor,
    fx: Float[Tensor, "rows *batch"],
    law: Factors,
    *,
    per_variable: bool = False,
    chunk_size: int | None = None,
) -> Float[Tensor, "*batch d k"]:
    """Return the mean of :func:`differences` over the draws.

    Draws with large tables are taken a few at a time, so that the tables of all of them never exist
    at once. In compiled code this is done only if f has outputs, since how many draws they are
    depends on the size of the batch. A table of bools is summed as it is: it has no rounding errors
    that differences would lower.
    """
    group = law.d if per_variable else 1
    draws = len(x) // group
    at_once = draws
    if law.outputs or not torch.compiler.is_compiling():
        entries = fx[0].numel() * law.d * law.k
        # Tables of 1 GiB of float32 on a GPU, and of 16 MiB on a CPU.
        most = 2**28 if x.is_cuda else 2**22
        at_once = max(1, most // max(1, entries))
    has_checked_table = getattr(f, "neighbours", None) is not None and (
        not can_inspect(law.validate, fx) or getattr(f, "table_checked", False)
    )
    total = None
    for first in range(0, draws, at_once):
        part = slice(first * group, (first + at_once) * group)
        if law.outputs and has_checked_table and not per_variable:
            table = _sum_of_table(f, x[part], fx[part], law)
        else:
            table = differences(
                f, x[part], fx[part], law, per_variable=per_variable, chunk_size=chunk_size
            ).sum(0)
        total = table if total is None else total + table
    assert total is not None
    return total / draws


@torch.no_grad()
def _sum_of_table(
    f: Function, x: Tensor, fx: Float[Tensor, "n *batch"], law: Factors
) -> Float[Tensor, "*batch d k"]:
    """Return the sum of the differences over the draws, from f's own table of all variables."""
    table = _own_table(f, x, None, fx.shape[1:], law)
    if table.dtype != torch.bool:
        return _changes(table.to(fx.dtype), law.index(x), None, law).sum(0)
    total = table.sum(0, dtype=law.real)
    return (total - fx.sum(0).to(law.real)[..., None, None]).masked_fill(~law.possible, 0.0)


def _evaluated(
    f: Function,
    x: Tensor,
    fx: Tensor,
    law: Factors,
    index: Slots,
    variable: Slots,
    per_variable: bool,
    static: bool,
    chunk_size: int | None,
) -> Table:
    """Return the table by calling f at all other categories, (own + j) mod k, of every slot."""
    n, slots, k = index.shape[0], index.shape[-1], law.k
    device = x.device
    if static and min(law.cardinalities) < k:
        alternatives = integers(law.cardinalities, device) - 1
        moves = sum(law.cardinalities) - law.d
        slot = torch.arange(slots, device=device).repeat_interleave(alternatives, output_size=moves)
        first = alternatives.cumsum(0) - alternatives
        first = first.repeat_interleave(alternatives, output_size=moves)
        offset = torch.arange(moves, device=device) - first + 1
    else:
        moves = slots * (k - 1)
        slot = torch.arange(slots, device=device).repeat_interleave(k - 1, output_size=moves)
        offset = torch.arange(1, k, device=device).repeat(slots)
    if moves == 0:
        return fx.new_zeros(fx.shape[:-1] + (slots, k))

    variable = variable[..., slot]
    current = index[..., slot]
    if min(law.cardinalities) < k:
        category = (current + offset) % integers(law.cardinalities, device)[variable]
    else:
        category = (current + offset) % k
    possible = law.possible.flatten(-2).expand((n, *law.batch_shape, law.d * k))
    possible = possible.gather(-1, variable * k + category)
    category = torch.where(possible, category, current)

    # One row per (draw, move): f sees [rows, *batch, *event], a few draws of it at a time.
    flat = law.flat(x)
    row = torch.arange(n, device=device).unsqueeze(1)
    row = (row * law.d + slot if per_variable else row.expand(n, moves)).reshape(-1)
    to_variable = variable.movedim(-1, 1).flatten(0, 1)
    to_category = category.movedim(-1, 1).flatten(0, 1)

    def points(part: slice) -> Tensor:
        start = flat.index_select(0, row[part])
        return law.shaped(law.assign(start, to_variable[part], to_category[part]))

    value = evaluate_chunked(f, points, n * moves, law, chunk_size=chunk_size)
    value = value.unflatten(0, (n, moves)).movedim(1, -1)
    change = (value - (fx[..., slot] if per_variable else fx)).masked_fill(~possible, 0.0)
    table = change.new_zeros((*change.shape[:-1], slots * k))
    entry = (slot * k + category).expand(change.shape)
    return table.scatter(-1, entry, change).unflatten(-1, (slots, k))


def _changes(table: Table, index: Slots, chosen: Slots | None, law: Factors) -> Table:
    """Return a table of values minus its entries of x's own categories; 0 where impossible."""
    current = index.unsqueeze(-1).expand(table.shape[:-1] + (1,))
    # Less the table's own f(x), which is rounded as its neighbours are.
    table = table - table.gather(-1, current)
    possible = law.possible.expand(index.shape[:-1] + law.possible.shape[-2:])
    if chosen is not None:
        possible = possible.gather(-2, chosen.unsqueeze(-1).expand(chosen.shape + (law.k,)))
    table = table.masked_fill(~possible, 0.0).scatter(-1, current, 0.0)
    check_finite(table, "f.neighbours must return", law.validate)
    return table


def _own_table(
    f: Function, x: Tensor, variables: Slots | None, lead: torch.Size, law: Factors
) -> Table:
    """Return f's own table of these variables, or of all; ``lead`` is the batch with outputs."""
    batch = without_outputs(law)
    points = as_seen(x.clone(), law)
    trace = Trace.before(f, law)
    asked = []
    slots = law.d
    if variables is not None:
        slots = variables.shape[-1]
        asked = [variables.reshape(variables.shape[:1] + batch + (slots,))]
    table = f.neighbours(points, *asked)  # type: ignore[attr-defined]
    if trace is not None:
        twice = (as_seen(x, law)[[0, 0]], *(slots[[0, 0]] for slots in asked))
        trace.warn_if_changed(lambda: f.neighbours(*twice))  # type: ignore[attr-defined]
    expected = x.shape[:1] + batch + (slots, law.k) + lead[len(batch) :]
    if not isinstance(table, Tensor) or table.shape != expected:
        shape = f"shape {tuple(table.shape)}" if isinstance(table, Tensor) else ""
        form = "[n, *batch, variables, k, *outputs]" if law.outputs else "[n, *batch, variables, k]"
        raise ValueError(
            f"f.neighbours must return a table of shape {tuple(expected)} ({form}), but it "
            f"returned {shape or type(table).__name__}."
        )
    outputs = range(len(expected) - law.outputs, len(expected))
    return table.movedim(tuple(outputs), tuple(i - 2 for i in outputs)) if law.outputs else table
