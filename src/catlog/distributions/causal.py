"""Checks that a network is autoregressive: its logits depend on earlier variables only."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from .integers import integers

NOT_DETERMINISTIC = (
    "A network with dropout, or with batch normalisation in training mode, has no definite "
    "probabilities: call its eval()."
)


def changed_later(
    x: Int64[Tensor, "1 *batch d"], sizes: tuple[int, ...], cuts: list[int]
) -> Int64[Tensor, "rows *batch d"]:
    """Return the point x twice, then x with other values from each of the cuts on.

    >>> changed_later(torch.tensor([[0, 1, 2]]), (2, 2, 4), [0, 1, 2]).tolist()
    [[0, 1, 2], [0, 1, 2], [1, 0, 1], [0, 0, 1], [0, 1, 1]]
    """
    size = integers(sizes, x.device)
    variable = torch.arange(len(sizes), device=x.device)
    changed = (x + 1 + variable % (size - 1).clamp(min=1)) % size
    rows = [torch.where(variable >= cut, changed, x) for cut in cuts]
    return torch.cat([x, x, *rows])


def check_causal(log_probs: Float[Tensor, "rows *batch d k"], eps: float, cuts: list[int]) -> None:
    """Raise if log-probabilities depend on later variables, or on the row.

    They are those at the points of :func:`changed_later`. ``eps`` is the network's rounding error.
    The limit is well above it, and well below the effect of seeing later variables.
    """
    first, again, *changed = log_probs.unbind(0)
    d, limit = first.shape[-2], eps ** (2 / 3)
    if (i := differing_variable(first, again, limit)) is not None:
        raise ValueError(
            f"q: the network gives variable {i} different logits in two rows that hold the same "
            f"point. {NOT_DETERMINISTIC}"
        )
    for cut, after in zip(cuts, changed, strict=True):
        i = differing_variable(first[..., : cut + 1, :], after[..., : cut + 1, :], limit)
        if i is not None:
            several = f"variables {cut} to {d - 1} change"
            change = several if cut < d - 1 else f"variable {cut} changes"
            raise ValueError(
                f"q: the network's logits of variable {i} change when {change}, but they may "
                f"depend on variables before {i} alone. A causal mask is missing, or is shifted by "
                "one; or rows influence each other, as in batch normalisation."
            )


def check_steps(
    stepped: Float[Tensor, "rows *batch d k"], known: Float[Tensor, "rows *batch d k"], eps: float
) -> None:
    """Raise if ``step`` and ``all_logits`` differ by more than rounding in another order."""
    if (i := differing_variable(stepped, known, eps ** (1 / 2))) is not None:
        difference = (stepped.exp() - known.exp()).abs()[..., i, :].max().item()
        raise ValueError(
            f"q: step and all_logits of the network disagree on variable {i} at the same point, by "
            f"{difference:.2g} in a probability. Draws use step and gradients use all_logits, so "
            "both must be the same function: look for positions shifted by one, a cache that "
            f"misses an entry, or a mask that only one of them applies. {NOT_DETERMINISTIC}"
        )


def rounding(dtypes: set[torch.dtype], device: torch.device) -> float:
    """Return a network's rounding error: that of bfloat16, if it may multiply in fewer bits."""
    narrow = (
        device.type != "cpu"
        or torch.get_float32_matmul_precision() != "highest"
        or torch.is_autocast_enabled(device.type)
        or not dtypes <= {torch.float32, torch.float64}
    )
    if narrow and dtypes != {torch.float64}:
        return torch.finfo(torch.bfloat16).eps
    return max(torch.finfo(dtype).eps for dtype in dtypes)


def differing_variable(
    first: Float[Tensor, "*lead d k"], second: Float[Tensor, "*lead d k"], limit: float
) -> int | None:
    """Return the first variable that differs by more than ``limit`` times the largest, or None."""
    size = torch.where(first.isfinite(), first, 0.0).abs().amax().clamp(min=1.0)
    close = (first - second).abs() <= limit * size
    same = (first == second) | close | (first.isnan() & second.isnan())
    if bool(same.all()):
        return None
    return int((~same).reshape(-1, *same.shape[-2:]).any(0).any(-1).int().argmax())
