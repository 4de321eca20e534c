"""The view through which estimators read structured distributions."""

from dataclasses import dataclass
from math import prod

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.distributions import Distribution

from ..checks import check_outputs, check_validate
from ..estimator import Kind
from .counts import Counts
from .factors import Factors, factors
from .foreign import converted
from .ordered import IndependentBlocks, Ordered, at_least_float32
from .output_dimensions import WithOutputDimensions


@dataclass(frozen=True, eq=False)
class Conditionals:
    """A distribution over integers ``x = (x_1, ..., x_d)``, given by its conditionals.

    Attributes:
        q: the distribution.
        validate: check its logits and what comes with q, values of f and points, where Python may
            look at them.
    """

    q: Ordered
    validate: bool = True

    @property
    def batch_shape(self) -> torch.Size:
        return self.q.batch_shape

    @property
    def kind(self) -> Kind:
        return Kind.INDEX if self.q.form is None else self.q.form.kind

    @property
    def event_shape(self) -> torch.Size:
        return self.q.event_shape if self.q.form is None else self.q.form.event_shape

    @property
    def outputs(self) -> int:
        return self.q.outputs if isinstance(self.q, WithOutputDimensions) else 0

    @property
    def batch_size(self) -> int:
        return prod(self.q.batch_shape)

    @property
    def cardinalities(self) -> tuple[int, ...]:
        return self.q.cardinalities

    @property
    def d(self) -> int:
        return len(self.q.cardinalities)

    @property
    def k(self) -> int:
        return max(self.q.cardinalities)

    @property
    def dtype(self) -> torch.dtype:
        return torch.int64 if self.q.form is None else self.q.form.dtype

    @property
    def real(self) -> torch.dtype:
        return at_least_float32(self.q.real)

    @property
    def device(self) -> torch.device:
        return self.q.device

    def index(self, x: Tensor) -> Int64[Tensor, "n *batch d"]:
        return x.detach() if self.q.form is None else self.q.form.index(x.detach(), self.d)

    def point(self, index: Int64[Tensor, "n *batch d"]) -> Tensor:
        return index.clone() if self.q.form is None else self.q.form.point(index, self.k)

    def log_conditionals(self, index: Int64[Tensor, "n *batch d"]) -> Float[Tensor, "n *batch d k"]:
        """Return log q(x_i = k | earlier variables as in ``index``), differentiable."""
        return self.q.log_conditionals(index, self.validate)

    def log_prob(self, index: Int64[Tensor, "n *batch d"]) -> Float[Tensor, "n *batch"]:
        return self.q.log_prob_of_rows(index, self.validate)


def without_outputs(law: Factors | Conditionals | Counts) -> torch.Size:
    """Return the batch shape of q: that of its view, without the output dimensions."""
    return law.batch_shape[: len(law.batch_shape) - law.outputs]


def structure(law: Factors | Conditionals) -> Ordered:
    """Return the distribution as a structured one over category numbers."""
    if isinstance(law, Conditionals):
        return law.q
    return IndependentBlocks(law.log_probs, law.cardinalities)


def distinct_rows(q: Ordered, index: Int64[Tensor, "n *batch d"]) -> Int64[Tensor, "rows *batch d"]:
    """Return the rows whose conditionals differ: all, or one if the variables are independent."""
    return index[:1] if isinstance(q, IndependentBlocks) else index


def view(q: Distribution, *, outputs: int = 0, validate: bool = True) -> Factors | Conditionals:
    """Return ``q`` as factors if its variables are independent, else by its conditionals."""
    q = converted(q)
    if not isinstance(q, Ordered):
        return factors(q, outputs=outputs, validate=validate)
    check_validate(validate)
    check_outputs(outputs)
    return Conditionals(WithOutputDimensions(q, outputs) if outputs else q, validate)
