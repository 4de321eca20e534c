"""A function's own table against the function itself, at a few neighbours."""

from contextlib import suppress

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from ..distributions.factors import Factors
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
    fresh: bool,
) -> None:
    """Raise where f's table is not that of f; where it is, note that on f (``f.table_checked``).

    The table, of changes from f(x), is read as in :func:`catlog.evaluation.neighbours.differences`. Looked at are two slots of the first
    two draws, that of the largest change and another: at most four points of every batch element. An f that gives other values
    when it is called again (dropout) cannot be compared, and is let through.
    """
    if table.numel() == 0:
        return
    slots = table.shape[-2]
    largest = int(table[0].abs().amax(-1).reshape(-1, slots).amax(0).argmax())
    other = (largest + 1 + slots // 2) % slots
    seen = [
        (row, slot) for row in range(min(2, len(table))) for slot in dict.fromkeys((largest, other))
    ]

    def at(each: Tensor) -> Tensor:
        return torch.stack([each[row, ..., slot] for row, slot in seen])

    flat = law.flat(x)
    start = torch.stack([flat[row * law.d + slot if fresh else row] for row, slot in seen])
    own, changed, still = at(index), at(variable), at(fx.expand(index.shape))
    entries = torch.stack([table[row, ..., slot, :] for row, slot in seen])
    after = (own + 1) % torch.tensor(law.cardinalities, device=x.device)[changed]
    turn = torch.tensor([slot == largest for _, slot in seen], device=x.device).view(
        -1, *[1] * (own.dim() - 1)
    )
    category = torch.where(turn & (entries != 0).any(-1), entries.abs().argmax(-1), after)
    possible = (
        law.possible.flatten(-2)
        .expand(*own.shape, -1)
        .gather(-1, (changed * law.k + category).unsqueeze(-1))
        .squeeze(-1)
    )
    category = torch.where(possible, category, own)
    points = law.shaped(law.assign(start, changed, category))

    with torch.random.fork_rng(
        devices=[x.device] if x.is_cuda else []
    ):  # draws go on as if f had not been called
        value = evaluate(f, points, law).to(fx.dtype)
        again = evaluate(f, points, law).to(fx.dtype)
    given, wanted = entries.gather(-1, category.unsqueeze(-1)).squeeze(-1), value - still
    size = torch.maximum(value.abs(), still.abs()).amax(0)
    bound = 0.1 * torch.maximum(given.abs(), wanted.abs()).amax(0) + rounding(f, x, fx) * size
    wrong = (given - wanted).abs() > bound
    if bool(wrong.any()) and bool(((again - value).abs() <= bound).all()):
        where = tuple(wrong.nonzero()[0].tolist())
        raise ValueError(
            f"f.neighbours does not agree with f: variable {int(changed[where])} set to category {int(category[where])} changes "
            f"f(x) by {float(wanted[where]):.4g}, but by {float(given[where]):.4g} in the table. Mend `neighbours`, or hand the "
            "estimator `lambda x: f(x)`, which evaluates f at every neighbour. (validate=False turns this comparison off.)"
        )
    with suppress(
        AttributeError, TypeError
    ):  # where f has no room for a note, it is compared at every call
        object.__setattr__(f, "table_checked", True)


def rounding(f: Function, x: Tensor, fx: Tensor) -> float:
    """What rounding may make of f's values, relative to them; generous, since f's parts may be larger than f."""
    kinds = {fx.dtype, *([x.dtype] if x.is_floating_point() else [])}
    if isinstance(f, nn.Module):
        kinds |= {
            each.dtype for each in (*f.parameters(), *f.buffers()) if each.is_floating_point()
        }
    if torch.is_autocast_enabled(x.device.type):
        kinds.add(torch.get_autocast_dtype(x.device.type))
    coarsest = max(torch.finfo(kind).eps for kind in kinds)
    if torch.float64 not in kinds and (
        x.is_cuda or torch.get_float32_matmul_precision() != "highest"
    ):
        coarsest = max(
            coarsest, 2.0**-7 if torch.get_float32_matmul_precision() == "medium" else 2.0**-10
        )  # TF32 or bfloat16
    return coarsest * (1024 if coarsest < 1e-6 else 32)
