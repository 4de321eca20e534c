"""Independent categorical variables with different numbers of categories."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.nn.functional import pad

from ..core.categories import as_logits, integers
from ..core.checks import (
    check_dense,
    check_is_tensor,
    check_together,
    check_validate_args,
    refusal,
)
from ..core.factors import READERS, IndependentFactors
from ..core.ordered import Ordered, as_cardinalities, check_value, entropy_of


class Categoricals(Distribution):
    r"""``d`` independent categorical variables with different numbers of categories.

    One event is an int64 vector ``x`` with ``0 <= x_i < cardinalities[i]``. The logits share one
    tensor, padded with -inf; because the cardinalities are known without reading the logits,
    estimators never evaluate an impossible neighbour.

    Args:
        logits: one tensor ``[*batch, k_i]`` per variable, or one padded tensor ``[*batch, d, k]``.
        cardinalities: with a padded tensor, the number of categories of each variable; entries
            beyond it are masked.

    >>> q = Categoricals([torch.zeros(7, 3), torch.zeros(7, 2), torch.zeros(7, 5)])
    >>> q.batch_shape, q.event_shape, q.cardinalities
    (torch.Size([7]), torch.Size([3]), (3, 2, 5))
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    has_enumerate_support = False
    support = Ordered.support
    __repr__ = Ordered.__repr__

    def __init__(
        self,
        logits: Tensor | Sequence[Tensor],
        cardinalities: Sequence[int] | None = None,
        validate_args: bool | None = None,
    ) -> None:
        check_validate_args("Categoricals", validate_args)
        if isinstance(logits, Tensor):
            if cardinalities is None:
                raise ValueError(
                    "Categoricals: `cardinalities` is needed with one padded tensor of logits. Of "
                    "variables that are side by side give a list: logits.split(sizes, -1)."
                )
            check_dense("Categoricals: `logits`", logits)
            sizes = as_cardinalities("Categoricals", cardinalities)
            fits = logits.dim() >= 2 and logits.shape[-2] == len(sizes)
            if not fits or max(sizes) > logits.shape[-1]:
                raise ValueError(
                    f"Categoricals: `cardinalities` {sizes} does not fit logits of shape "
                    f"{tuple(logits.shape)}, [*batch, d, k]. Split logits that are side by side: "
                    f"Categoricals(logits.split({sizes}, -1))."
                )
            category = torch.arange(logits.shape[-1], device=logits.device)
            beyond = category >= integers(sizes, logits.device)[:, None]
            padded = as_logits(logits).masked_fill(beyond, -torch.inf)
        else:
            owner, subject = "Categoricals", "Categoricals: `logits`"
            if isinstance(logits, str) or not hasattr(logits, "__len__"):
                claim = "be a list of tensors, one per variable, or one padded tensor"
                raise refusal(subject, claim, f"{type(logits).__name__} was given", kind=TypeError)
            for row in logits:
                check_is_tensor(owner, "logits", row, "[*batch, k_i] per variable")
                check_together(owner, "logits", row, "the first", logits[0].device)
                if row.is_complex():
                    raise refusal(subject, "be floats", f"{row.dtype} was given", kind=TypeError)
            if cardinalities is not None or len(logits) == 0:
                claim = "be a non-empty list without `cardinalities`, or one tensor with them"
                raise refusal(subject, claim, f"{len(logits)} tensors were given")
            shapes = [tuple(row.shape) for row in logits]
            if len({shape[:-1] for shape in shapes}) > 1 or not all(s and s[-1] for s in shapes):
                claim = "have shape [*batch, k_i] with k_i of at least 1 for each variable"
                raise refusal(subject, claim, f"{shapes} were given")
            sizes = tuple(row.shape[-1] for row in logits)
            most = max(sizes)
            rows = [
                pad(as_logits(row), (0, most - size), value=-torch.inf)
                for row, size in zip(logits, sizes, strict=True)
            ]
            padded = torch.stack(rows, -2)
        self.cardinalities = sizes
        self.logits = padded.log_softmax(-1)
        self._param = self.logits
        super().__init__(padded.shape[:-2], padded.shape[-2:-1], validate_args=validate_args)

    @property
    def probs(self) -> Tensor:
        return self.logits.softmax(-1)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "Categoricals":
        new = self._get_checked_instance(Categoricals, _instance)  # type: ignore[no-untyped-call]
        batch = torch.Size(batch_shape)
        new.cardinalities = self.cardinalities
        new.logits = new._param = self.logits.expand(batch + self.logits.shape[-2:])
        Distribution.__init__(new, batch, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:
        shape = self._extended_shape(torch.Size(sample_shape))
        with torch.no_grad():
            probs = self.probs.expand(shape + self.logits.shape[-1:])
            return probs.flatten(0, -2).multinomial(1).reshape(shape)

    def log_prob(self, value: Tensor) -> Tensor:
        check_value(self, value, self.logits.device)
        shape = torch.broadcast_shapes(value.shape, self.logits.shape[:-1])
        table = self.logits.expand(shape + self.logits.shape[-1:])
        category = value.long().expand(shape).unsqueeze(-1)
        return table.gather(-1, category).squeeze(-1).sum(-1)

    def entropy(self) -> Tensor:
        return entropy_of(self.logits, -1).sum(-1)


READERS[Categoricals] = IndependentFactors
