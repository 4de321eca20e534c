"""Whether a network that claims to be autoregressive is: the same logits from the same past, by every way to ask for them."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

UNSTEADY = "A network with dropout, or with batch normalisation in training mode, has no definite probabilities: call its eval()."


def changed_later(
    x: Int64[Tensor, "1 *batch d"], sizes: tuple[int, ...]
) -> Int64[Tensor, "rows *batch d"]:
    """The point x twice, and x with other values from each of :func:`_cuts` on.

    >>> changed_later(torch.tensor([[0, 1, 2]]), (2, 2, 4)).tolist()
    [[0, 1, 2], [0, 1, 2], [1, 0, 1], [0, 0, 1], [0, 1, 1]]
    """
    size, place = torch.tensor(sizes, device=x.device), torch.arange(len(sizes), device=x.device)
    other = (x + 1 + place % (size - 1).clamp(min=1)) % size
    return torch.cat([x, x, *(torch.where(place >= cut, other, x) for cut in _cuts(len(sizes)))])


def _cuts(d: int) -> list[int]:
    return sorted({0, d // 2, d - 1})


def check_causal(log_probs: Float[Tensor, "rows *batch d k"], eps: float) -> None:
    """Raise where log-probabilities at the points of :func:`changed_later` change with what comes later, or from row to row.

    ``eps`` is the network's rounding; the limit is well above it and well below what a look at the future does.
    """
    first, again, *changed = log_probs.unbind(0)
    d, limit = first.shape[-2], eps ** (2 / 3)
    if (i := _differs(first, again, limit)) is not None:
        raise ValueError(
            f"q: the network gives variable {i} different logits in two rows that hold the same point. {UNSTEADY}"
        )
    for cut, after in zip(_cuts(d), changed, strict=True):
        if (i := _differs(first[..., : cut + 1, :], after[..., : cut + 1, :], limit)) is not None:
            what = (
                f"variable {cut} changes" if cut == d - 1 else f"variables {cut} to {d - 1} change"
            )
            raise ValueError(
                f"q: the network's logits of variable {i} change when {what}, but they may depend on variables before {i} alone. "
                "A causal mask is missing, or is shifted by one; or rows influence each other, as in batch normalisation."
            )


def check_steps(
    stepped: Float[Tensor, "1 *batch d k"], known: Float[Tensor, "1 *batch d k"], eps: float
) -> None:
    """Raise where ``step`` gives other log-probabilities than ``all_logits``, which rounds in another order."""
    if (i := _differs(stepped, known, eps ** (1 / 2))) is not None:
        apart = (stepped.exp() - known.exp()).abs()[..., i, :].max().item()
        raise ValueError(
            f"q: step and all_logits of the network disagree on variable {i} at the same point, by {apart:.2g} in a "
            f"probability. Draws are made with the one, gradients with the other, so both must be the same function. {UNSTEADY}"
        )


def rounding(dtypes: set[torch.dtype], device: torch.device) -> float:
    """A network's relative rounding error per operation: bfloat16's where it may multiply in less than float32."""
    narrow = (
        device.type != "cpu"
        or torch.get_float32_matmul_precision() != "highest"
        or torch.is_autocast_enabled(device.type)
        or not dtypes <= {torch.float32, torch.float64}
    )
    if narrow and dtypes != {torch.float64}:
        return torch.finfo(torch.bfloat16).eps
    return max(torch.finfo(dtype).eps for dtype in dtypes)


def _differs(
    one: Float[Tensor, "*lead d k"], two: Float[Tensor, "*lead d k"], limit: float
) -> int | None:
    """The first variable whose log-probabilities differ by more than ``limit``, relative to the largest; None if none does."""
    size = torch.where(one.isfinite(), one, 0.0).abs().amax().clamp(min=1.0)
    same = (one == two) | ((one - two).abs() <= limit * size) | (one.isnan() & two.isnan())
    if bool(same.all()):
        return None
    return int((~same).reshape(-1, *same.shape[-2:]).any(0).any(-1).int().argmax())
