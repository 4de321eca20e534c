"""Checks that a network is autoregressive and keeps its contract; errors name the mistake."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..core.categories import integers
from ..core.checks import check_kind, refusal
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
NOT_APART = (
    "The leading dimensions [rows, *batch] must stay apart: look for batch normalisation, or a "
    "reshape or transpose that mixes them. And the network must be deterministic (no dropout: call "
    "its eval())."
)
NOT_CAUSAL = (
    "they may depend on variables before {i} alone. A causal mask is missing, or is shifted by "
    "one; or rows influence each other, as in batch normalisation."
)
NOT_THE_SAME = (
    "Draws use step and gradients use all_logits, so both must be the same function: look for "
    "positions shifted by one, a cache that misses an entry, or a mask that only one of them "
    f"applies. {NOT_DETERMINISTIC}"
)
CONTEXT = (
    "With `context_in_state`, step sees the batch elements that have not ended, and must read all "
    "that it needs of their contexts from the state."
)
SHORT = "With `end`, all_logits gets x without what follows the longest sequence."


def check_network(q: "Autoregressive", x: Int64[Tensor, "1 *batch d"] | None = None) -> None:
    """Raise if the network breaks the contract of ``q``; at a point x, by few calls."""
    d, is_thorough = len(q.cardinalities), x is None
    cuts = sorted({*range(0, d, -(-d // (MOST_CUTS if is_thorough else 2))), d - 1})
    if x is None:
        uniforms = torch.rand((ROWS, *q.batch_shape, d), device=q.device)
        x = (uniforms * integers(q.cardinalities, q.device)).long()
    x = q.without_end(x)
    forms: dict[str, Form] = {}
    if hasattr(q.network, "all_logits"):
        forms["all_logits"] = q.by_all_logits
    if q.incremental:
        forms["step"] = q.by_steps
    forms = forms or {"network(x, i)": lambda x: Ordered.raw_logits(q, x)}
    probes = [_Probe(q, name, form) for name, form in forms.items()]
    for probe in probes:
        if is_thorough:
            if probe.name == "step":
                _check_states(q, x.shape[:-1])
            _check_apart(probe, x)
        probe.check_causal(changed_later(x[:1], q.cardinalities, cuts), cuts)
    if len(probes) == 2:
        known, stepped = (probe.log_probs for probe in probes)
        eps = max(probe.eps for probe in probes)
        claim = "step and all_logits of the network disagree on variable {i} at the same point."
        _must_agree(stepped, known, eps ** (1 / 2), f"{claim} {NOT_THE_SAME}")
    if is_thorough and hasattr(q.network, "check"):
        q.network.check(max(probe.eps for probe in probes))


class _Probe:
    """A form of a network, its rounding error, and its log-probabilities at some points."""

    log_probs: Float[Tensor, "rows *batch d k"]

    def __init__(self, q: "Autoregressive", name: str, form: Form) -> None:
        self.q = q
        self.name = name
        self.form = form
        self.eps = 0.0

    def __call__(self, x: Int64[Tensor, "rows *batch d"]) -> Float[Tensor, "rows *batch d k"]:
        """Return the log-probabilities."""
        raw = self.form(x)
        self.eps = max(self.eps, rounding({self.q.real, raw.dtype}, x.device))
        return self.q.normalised(raw, validate=True)

    def check_causal(self, x: Int64[Tensor, "rows *batch d"], cuts: list[int]) -> None:
        """Raise if log-probabilities at points of :func:`changed_later` depend on later variables,
        or on the row. The limit is well above rounding, and well below the effect of either."""
        self.log_probs = self(x)
        first, again, *changed = self.log_probs.unbind(0)
        limit, last = self.eps ** (2 / 3), first.shape[-2] - 1
        claim = "the network gives variable {i} different logits in two rows that hold the same"
        _must_agree(first, again, limit, f"{claim} point. {NOT_DETERMINISTIC}")
        for cut, after in zip(cuts, changed, strict=True):
            change = (
                f"variables {cut} to {last} change" if cut < last else f"variable {cut} changes"
            )
            claim = f"the network's logits of variable {{i}} change when {change}, but {NOT_CAUSAL}"
            _must_agree(first[..., : cut + 1, :], after[..., : cut + 1, :], limit, claim)


def _check_apart(probe: _Probe, x: Int64[Tensor, "rows *batch d"]) -> None:
    """Raise if the logits of a sequence change when other sequences or later variables do."""
    before = probe(x)
    for event, changed, stays, remedy in _changes(probe, x):
        after = probe(changed.view_as(x)).flatten(0, -3)
        claim = f"with {probe.name}, the network's logits of variable {{i}} of a sequence change"
        limit = probe.eps ** (2 / 3)
        message = f"{claim} when {event}. {remedy}"
        _must_agree(after[stays], before.flatten(0, -3)[stays], limit, message)


def _changes(
    probe: _Probe, x: Int64[Tensor, "rows *batch d"]
) -> Iterator[tuple[str, Int64[Tensor, "sequences d"], tuple[slice, slice], str]]:
    """Yield what changes, the points after it, and which log-probabilities must stay."""
    q, points = probe.q, x.flatten(0, -2)
    last, d = (slice(-1, None), slice(None)), x.shape[-1]
    sizes = integers(q.cardinalities, x.device)
    others = (points[:-1] + 1) % sizes
    if q.end is not None:
        others = torch.where(others == q.end, (others + 1) % sizes, others)
    yield "other sequences change", torch.cat([others, points[-1:]]), last, NOT_APART
    if q.end is None or d == 1:
        return
    short = points.clone()
    short[:, d // 2 :] = q.end
    yield "all sequences end earlier", short, (slice(None), slice(d // 2)), SHORT
    ended = points.clone()
    ended[:-1] = q.end
    in_state = probe.name == "step" and getattr(q.network, "context_in_state", False)
    event = "other sequences end and are no longer passed to the network"
    yield event, ended, last, CONTEXT if in_state else ""


def _check_states(q: "Autoregressive", lead: torch.Size) -> None:
    """Raise if a tensor of the first state has other leading dimensions."""
    for tensor in tree_leaves(q.ask("start", lead, lead)):
        remedy = "Rows of a state are copied: write a number as a tensor with leading dimensions."
        check_kind("q: every part of what start returns", tensor, Tensor, "be a tensor", remedy)
        if tensor.shape[: len(lead)] != lead:
            claim = f"begin with lead = {tuple(lead)}"
            remedy = "Expand it, or move its other dimensions (layers, heads) behind."
            but = f"a tensor of the state has shape {tuple(tensor.shape)}"
            raise refusal("q: the shape of every tensor of start(lead)", claim, but, remedy)


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


def _must_agree(
    first: Float[Tensor, "*lead d k"],
    second: Float[Tensor, "*lead d k"],
    limit: float,
    message: str,
) -> None:
    """Raise if log-probabilities differ by more than ``limit`` times the largest; the message names
    the first variable ``{i}`` that does."""
    size = torch.where(first.isfinite(), first, 0.0).abs().amax().clamp(min=1.0)
    close = (first - second).abs() <= limit * size
    same = (first == second) | close | (first.isnan() & second.isnan())
    if not bool(same.all()):
        i = int((~same).reshape(-1, *same.shape[-2:]).any(0).any(-1).int().argmax())
        raise ValueError(f"q: {message.format(i=i)}".rstrip())
