"""Compare a function's own table with the function itself, at a few neighbours."""

from contextlib import suppress

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from ..distributions.factors import Factors
from ..distributions.integers import integers
from ..estimator import Function
from .evaluate import evaluate


@torch.no_grad()
def compare_with_f(
    f: Function,
    table: Float[Tensor, "n *batch slots k"],
    x: Tensor,
    fx: Float[Tensor, "n *batch #slots"],
    law: Factors,
    index: Int64[Tensor, "n *batch slots"],
    variable: Int64[Tensor, "n *batch slots"],
    per_variable: bool,
) -> None:
    """Raise if f's table does not agree with f; otherwise set ``f.table_checked``.

    The table holds changes from f(x), as :func:`catlog.evaluation.neighbours.differences` returns
    them. Two slots of the first two draws are compared, that of the largest change and one more: at
    most four evaluations per batch element. If f returns other values when it is called again
    (dropout), it cannot be compared, and nothing is raised.
    """
    if table.numel() == 0:
        return
    slots = table.shape[-2]
    largest = int(table[0].abs().amax(-1).reshape(-1, slots).amax(0).argmax())
    second = (largest + 1 + slots // 2) % slots
    compared = list(dict.fromkeys((largest, second)))
    draws = min(2, len(table))
    row = torch.arange(draws, device=x.device).repeat_interleave(len(compared))
    slot = integers(compared, x.device).repeat(draws)
    start = law.flat(x)[row * law.d + slot if per_variable else row]
    current = index[row, ..., slot]
    changed = variable[row, ..., slot]
    unchanged = fx.expand(*fx.shape[:-1], slots)[row, ..., slot]
    changes = table[row, ..., slot, :]
    # The category whose change is largest in some output; changes have the outputs in the batch.
    outputs = tuple(range(current.dim() - law.outputs, current.dim()))
    by_category = changes.abs().amax(outputs, keepdim=True) if outputs else changes.abs()
    after = (current + 1) % integers(law.cardinalities, x.device)[changed]
    is_largest = (slot == largest).view(-1, *[1] * (current.dim() - 1))
    category = torch.where(is_largest & (by_category > 0).any(-1), by_category.argmax(-1), after)
    possible = law.possible.flatten(-2).expand(*current.shape, -1)
    possible = possible.gather(-1, (changed * law.k + category).unsqueeze(-1))
    category = torch.where(possible.squeeze(-1), category, current)
    points = law.shaped(law.assign(start, changed, category))

    # Forked, so that later draws do not depend on whether f was called here.
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        value = evaluate(f, points, law).to(fx.dtype)
        again = evaluate(f, points, law).to(fx.dtype)
    claimed = changes.gather(-1, category.expand(changes.shape[:-1]).unsqueeze(-1)).squeeze(-1)
    true = value - unchanged
    size = torch.maximum(value.abs(), unchanged.abs()).amax(0)
    bound = 0.1 * torch.maximum(claimed.abs(), true.abs()).amax(0) + rounding(f, x, fx) * size
    wrong = (claimed - true).abs() > bound
    if bool(wrong.any()) and bool(((again - value).abs() <= bound).all()):
        first = tuple(wrong.nonzero()[0].tolist())
        variable_number = int(changed.expand_as(wrong)[first])
        category_number = int(category.expand_as(wrong)[first])
        raise ValueError(
            f"f.neighbours does not agree with f: variable {variable_number} set to category "
            f"{category_number} changes f(x) by {float(true[first]):.4g}, but by "
            f"{float(claimed[first]):.4g} in the table. Correct `neighbours`, or pass the "
            "estimator `lambda x: f(x)`, which evaluates f at every neighbour. (validate=False "
            "turns this comparison off.)"
        )
    # If f has no room for the note, it is compared at every call.
    with suppress(AttributeError, TypeError):
        object.__setattr__(f, "table_checked", True)


def rounding(f: Function, x: Tensor, fx: Tensor) -> float:
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
