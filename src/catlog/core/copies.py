"""Independent copies of a structured distribution: torch's ``Independent`` around it."""

from math import prod

import torch
from torch import Tensor

from .categories import Kind
from .ordered import Ordered, PointForm


class Copies(Ordered):
    """The last ``dims`` batch dimensions of ``base`` as independent parts of one event.

    If a variable changes, only later variables of its own copy are resampled.

    Args:
        base: the distribution, with batch shape ``[*batch, *copies]``.
        dims: the number of dimensions of the copies.

    >>> from catlog.distributions import MarkovChain
    >>> q = Copies(MarkovChain(torch.zeros(5, 2), torch.zeros(2, 2), length=3), 1)
    >>> q.batch_shape, len(q.cardinalities), q.form.event_shape
    (torch.Size([]), 15, torch.Size([5, 3]))
    """

    def __init__(self, base: Ordered, dims: int) -> None:
        batch = base.batch_shape[: len(base.batch_shape) - dims]
        copies = base.batch_shape[len(base.batch_shape) - dims :]
        count, d = prod(copies), len(base.cardinalities)
        if count == 0:
            raise ValueError(
                "q: a distribution needs at least one variable, but Independent("
                f"{type(base).__name__}, {dims}) has {tuple(copies)} copies."
            )
        inner = base.form or PointForm(Kind.INDEX, base.event_shape, torch.int64)
        self.base = base
        self.copies = copies
        self.cardinalities = base.cardinalities * count
        first = [copy * d for copy in range(count)]  # variable of every copy
        self.blocks = tuple(tuple(i + j for i in block) for block in base.blocks for j in first)
        self.ancestors = tuple(
            frozenset(i + j for i in known) for known in base.ancestors for j in first
        )
        self.fixed = frozenset(i + j for i in base.fixed for j in first)
        self.real = base.real
        self.device = base.device
        self.form = PointForm(inner.kind, copies + inner.event_shape, inner.dtype)
        super().__init__(batch, torch.Size([count * d]), validate_args=False)

    def _apart(self, x: Tensor) -> Tensor:
        """Return the points ``[*lead, copies * d]`` as ``[*lead, *copies, d]``."""
        return x.reshape((*x.shape[:-1], *self.copies, len(self.base.cardinalities)))

    def _together(self, logits: Tensor, lead: torch.Size) -> Tensor:
        """Return a block's logits ``[*lead, *copies, m, k]`` as ``[*lead, copies, m, k]``."""
        return logits.reshape(lead + (prod(self.copies),) + logits.shape[-2:])

    def conditional(self, x: Tensor, block: int) -> Tensor:
        inner, copy = divmod(block, prod(self.copies))
        if self.base.incremental:
            raw = self.base.raw_logits(self._apart(x))[inner]
        else:
            raw = self.base.conditional(self._apart(x), inner)
        return self._together(raw, x.shape[:-1])[..., copy, :, :]

    def raw_logits(self, x: Tensor) -> list[Tensor]:
        blocks = []
        for raw in self.base.raw_logits(self._apart(x)):
            together = self._together(raw, x.shape[:-1])
            blocks += [together[..., copy, :, :] for copy in range(prod(self.copies))]
        return blocks

    def log_conditionals(self, x: Tensor, validate: bool = True) -> Tensor:
        log_probs = self.base.log_conditionals(self._apart(x), validate)
        return self._together(log_probs, x.shape[:-1]).flatten(-3, -2)

    def log_prob_of_rows(self, x: Tensor, validate: bool = True) -> Tensor:
        log_prob = self.base.log_prob_of_rows(self._apart(x), validate)
        return self._together(log_prob[..., None, None], x.shape[:-1]).sum((-3, -2, -1))

    def from_uniforms(self, u: Tensor, validate: bool = True) -> Tensor:
        # All copies at once, in the base's own way.
        return self.base.from_uniforms(self.base._rows(self._apart(u)), validate).reshape(u.shape)

    def direct_draws(self, rows: int, generator: torch.Generator | None) -> Tensor | None:
        points = self.base.direct_draws(rows, generator)
        if points is None:
            return None
        return points.reshape((rows, *self.batch_shape, len(self.cardinalities)))
