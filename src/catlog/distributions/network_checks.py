"""Checks that a network is autoregressive and keeps its contract; errors name the mistake."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..core.categories import integers
from ..core.ordered import Ordered

if TYPE_CHECKING:
    from .autoregressive import Autoregressive

Form = Callable[[Int64[Tensor, "rows *batch d"]], Tensor]
ROWS = 3
MOST_CUTS = 64  # a network of more variables is checked at this many of them
NOT_DETERMINISTIC = (
    "A network with dropout, or with batch normalisation in training mode, has no definite "
    "probabilities: call its eval()."
)


def check_network(q: "Autoregressive", x: Int64[Tensor, "1 *batch d"] | None = None) -> None:
    """Raise if the network breaks the contract of ``q``; at a point x, by few calls."""
    d, is_thorough = len(q.cardinalities), x is None
    cuts = sorted({*range(0, d, -(-d // (MOST_CUTS if is_thorough else 2))), d - 1})
    if x is None:
        uniforms = torch.rand((ROWS, *q.batch_shape, d), device=q.device)
        x = (uniforms * integers(q.cardinalities, q.device)).long()
    x = q.without_end(x)
    known: dict[str, Tensor] = {}
    eps = 0.0
    forms: dict[str, Form] = {}
    if hasattr(q.network, "all_logits"):
        forms["all_logits"] = q.by_all_logits
    if q.incremental:
        forms["step"] = q.by_steps
    for name, form in (forms or {"network(x, i)": lambda x: Ordered.raw_logits(q, x)}).items():
        if is_thorough:
            _check_thoroughly(q, name, form, x)
        raw = form(changed_later(x[:1], q.cardinalities, cuts))
        eps = max(eps, rounding({q.real, raw.dtype}, x.device))
        known[name] = q.normalised(raw)
        check_causal(known[name], eps, cuts)
    if len(known) == 2:
        check_steps(known["step"], known["all_logits"], eps)
    if is_thorough and hasattr(q.network, "check"):
        q.network.check(eps)


def _check_thoroughly(
    q: "Autoregressive", name: str, form: Form, x: Int64[Tensor, "rows *batch d"]
) -> None:
    """Raise unless a form of the network has the right shapes and keeps sequences apart."""
    if name == "step":
        _check_states(q, x.shape[:-1])
    raw = _called(name, form, x)
    eps = rounding({q.real, raw.dtype}, x.device)
    log_probs = q.normalised(raw, validate=True)
    _check_rows(name, form, x, q, log_probs, eps)
    if q.end is not None and x.shape[-1] > 1:
        _check_ends(name, form, x, q, log_probs, eps)


def _called(name: str, form: Form, x: Tensor) -> Tensor:
    """Return the logits, or raise an error that says with which shape the network failed."""
    try:
        return form(x)
    except Exception as error:
        lead = f"[rows, *batch] = {tuple(x.shape[:-1])}"
        if isinstance(error, ValueError) and str(error).startswith("q: "):
            if error.__cause__ is not None:  # the network's own error, explained
                raise
            raise ValueError(
                f"{error} The leading dimensions {lead} of its input must come first in its output."
            ) from None
        raise ValueError(
            f"q: {name} of the network failed for {x.shape[-1]} variables with the leading "
            f"dimensions {lead}. It is always called with leading dimensions; flatten them inside "
            f"if a layer takes only one. Its error was {type(error).__name__}: {error}"
        ) from error


def _check_states(q: "Autoregressive", lead: torch.Size) -> None:
    """Raise if a tensor of the first state has other leading dimensions."""
    for tensor in tree_leaves(q.ask("start", lead, lead)):
        if not isinstance(tensor, Tensor):
            raise ValueError(
                "q: a state must be a tensor or (nested) tuples of tensors, but start returned a "
                f"{type(tensor).__name__} in it. Rows of a state are copied and dropped, so every "
                "part of it needs the leading dimensions; write a number as such a tensor."
            )
        if tensor.shape[: len(lead)] != lead:
            raise ValueError(
                f"q: start(lead) was called with lead = {tuple(lead)}, but a tensor of the state "
                f"has shape {tuple(tensor.shape)}. Every tensor of a state must begin with `lead`: "
                "expand it, or move its other dimensions (layers, heads) behind."
            )


def _check_rows(
    name: str, form: Form, x: Tensor, q: "Autoregressive", log_probs: Tensor, eps: float
) -> None:
    """Raise if logits depend on other rows, on their number, or on other batch elements."""
    limit = eps ** (2 / 3)
    alone = q.normalised(_called(name, form, x[1:2]))
    if (i := differing_variable(alone, log_probs[1:2], limit)) is not None:
        raise ValueError(
            f"q: with {name}, the network gives variable {i} of a row different logits when the "
            "row is evaluated alone. Rows must not influence each other (look for batch "
            "normalisation, or a reshape that mixes leading dimensions), and the network must be "
            "deterministic (no dropout: call its eval())."
        )
    if q.batch_shape.numel() > 1:
        flat = x.flatten(1, -2)
        sizes = torch.tensor(q.cardinalities, device=x.device)
        changed = torch.cat([q.without_end((flat[:, :1] + 1) % sizes), flat[:, 1:]], 1).view_as(x)
        after = q.normalised(form(changed)).flatten(1, -3)[:, 1:]
        if (i := differing_variable(after, log_probs.flatten(1, -3)[:, 1:], limit)) is not None:
            raise ValueError(
                f"q: with {name}, the network's logits of variable {i} change when the variables "
                "of another batch element change. The leading dimensions [rows, *batch] must stay "
                "apart: look for a reshape or transpose that mixes them."
            )


def _check_ends(
    name: str, form: Form, x: Tensor, q: "Autoregressive", log_probs: Tensor, eps: float
) -> None:
    """Raise if the network needs sequences of full length, or those that have ended."""
    assert q.end is not None
    d = x.shape[-1]
    if name == "all_logits":
        short = x[..., : (d + 1) // 2]
        try:
            shape = tuple(q.network.all_logits(short).shape)
        except Exception as error:
            raise ValueError(
                "q: with `end`, all_logits gets x without what follows the longest sequence, but "
                f"it failed for {short.shape[-1]} of {d} variables. Let it take any number up to "
                f"{d}. Its error was {type(error).__name__}: {error}"
            ) from error
        expected = (*short.shape, max(q.cardinalities))
        if shape != expected:
            raise ValueError(
                "q: with `end`, all_logits gets x without what follows the longest sequence. For x "
                f"of shape {tuple(short.shape)} it must return {expected}, but it returned {shape}."
            )
    ended = x.flatten(0, -2).clone()
    ended[:-1, 0] = q.end  # all but the last sequence end at once
    ended = ended.view_as(x)
    after = q.normalised(_called(name, form, ended)).flatten(0, -3)[-1:]
    before = log_probs.flatten(0, -3)[-1:]
    if (i := differing_variable(after, before, eps ** (2 / 3))) is not None:
        remedy = ""
        if name == "step" and getattr(q.network, "context_in_state", False):
            remedy = (
                " With `context_in_state`, step sees the batch elements that have not ended, and "
                "must read all that it needs of their contexts from the state."
            )
        raise ValueError(
            f"q: with {name}, the logits of variable {i} change when other sequences end and are "
            f"no longer passed to the network.{remedy}"
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
