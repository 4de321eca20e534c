"""Mean and variance of vectors that come in parts, and how well the variance is known."""

from math import inf, sqrt

import torch
from jaxtyping import Float
from torch import Tensor

ROUNDING = (
    64  # units of the last place, relative to the mean: variance below their square is rounding
)


class Moments:
    r"""Of independent vectors :math:`g_r`: the mean, and the total variance :math:`\sum_j \operatorname{Var} g_j`.

    Sums are taken about the mean of the first part, so nothing cancels. The relative standard error of the variance
    is that of the mean of :math:`\lVert g_r - c \rVert^2` (delta method).

    >>> seen = Moments()
    >>> seen.add(torch.tensor([[0.0, 1.0], [2.0, 1.0]])); seen.add(torch.tensor([[4.0, 1.0]]))
    >>> seen.count, seen.mean.tolist(), seen.variance
    (3, [2.0, 1.0], 4.0)
    """

    def __init__(self) -> None:
        self.count = 0
        self._lengths: list[Tensor] = []
        self._eps = 0.0

    def add(self, vectors: Float[Tensor, "r entries"]) -> None:
        wide = vectors.detach().double()
        if self.count == 0:
            self._eps = torch.finfo(vectors.dtype).eps
            self._centre = wide.mean(0)
            self._total = torch.zeros_like(self._centre)
            self._squares = torch.zeros_like(self._centre)
        wide = wide - self._centre
        self.count += len(wide)
        self._total += wide.sum(0)
        squares = wide.square()
        self._squares += squares.sum(0)
        self._lengths.append(squares.sum(-1))

    @property
    def mean(self) -> Float[Tensor, "entries"]:
        return self._centre + self._total / self.count

    @property
    def variances(self) -> Float[Tensor, "entries"]:
        """Of every entry."""
        if self.count < 2:
            return torch.full_like(self._total, inf)
        return (self._squares - self._total.square() / self.count).clamp(min=0) / (self.count - 1)

    @property
    def variance(self) -> float:
        """The sum over entries; 0 where it is no more than rounding."""
        total = float(self.variances.sum())
        return (
            0.0 if total <= (ROUNDING * self._eps) ** 2 * float(self.mean.square().sum()) else total
        )

    @property
    def norm2(self) -> float:
        """The squared norm of the mean, less the noise in it."""
        return max(0.0, float(self.mean.square().sum()) - self.variance / self.count)

    @property
    def dimensions(self) -> float:
        """How many entries share the variance: the square of the sum of their variances over the sum of the squares."""
        variances = self.variances
        squares = float(variances.square().sum())
        return float(variances.sum()) ** 2 / squares if squares > 0 else 1.0

    @property
    def error(self) -> float:
        """The standard error of the variance, relative to it."""
        if self.count < 2:
            return inf
        if self.variance == 0:
            return 0.0
        lengths = torch.cat(self._lengths)
        return float(lengths.std()) / sqrt(self.count) / self.variance
