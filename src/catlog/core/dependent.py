"""Variables that depend on each other, as estimators see them."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from .categories import Kind
from .factors import Factors
from .ordered import Ordered, WithOutputDimensions


class DependentFactors(Factors):
    """Variables that depend on each other, by their conditionals.

    Attributes:
        ordered: the distribution, with the output dimensions in its batch.
    """

    kinds = frozenset({Kind.STRUCTURED})

    def __init__(self, q: Ordered, outputs: int = 0, validate: bool = True) -> None:
        self.ordered = WithOutputDimensions(q, outputs) if outputs else q
        self.kind = Kind.STRUCTURED
        self.outputs = outputs
        self.batch_shape = self.ordered.batch_shape
        self.event_shape = q.event_shape if q.form is None else q.form.event_shape
        self.cardinalities = q.cardinalities
        self.d = len(q.cardinalities)
        self.k = max(q.cardinalities)
        self.dtype = torch.int64 if q.form is None else q.form.dtype
        self.real = torch.promote_types(q.real, torch.float32)
        self.device = q.device
        self.validate = validate

    def index(self, x: Tensor) -> Int64[Tensor, "n *batch d"]:
        form = self.ordered.form
        return x.detach() if form is None else form.index(x.detach(), self.d)

    def point(self, index: Int64[Tensor, "n *batch d"]) -> Tensor:
        form = self.ordered.form
        return index.clone() if form is None else form.point(index, self.k)

    def from_uniforms(self, u: Float[Tensor, "n *batch d"]) -> Int64[Tensor, "n *batch d"]:
        return self.ordered.from_uniforms(u, self.validate)

    def direct_draws(
        self, n: int, generator: torch.Generator | None
    ) -> Int64[Tensor, "n *batch d"] | None:
        return self.ordered.direct_draws(n, generator)

    def log_prob(self, index: Int64[Tensor, "n *batch d"]) -> Float[Tensor, "n *batch"]:
        return self.ordered.log_prob_of_rows(index, self.validate)

    def log_conditionals(self, index: Int64[Tensor, "n *batch d"]) -> Float[Tensor, "n *batch d k"]:
        return self.ordered.log_conditionals(index, self.validate)

    def squared_norm(self, gradient: Float[Tensor, "*lead d k"]) -> Float[Tensor, "*lead"]:
        form = self.ordered.form
        is_bits = form is not None and form.kind == Kind.BITS  # a bit has one logit
        return super().squared_norm(gradient[..., 1:] if is_bits else gradient)
