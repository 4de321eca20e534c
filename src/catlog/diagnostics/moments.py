"""Mean and variance of vectors that are added in parts, with the error of the variance."""

from collections.abc import Sequence
from functools import cached_property
from math import inf, sqrt

import torch
from jaxtyping import Float
from torch import Tensor

# In units of machine precision, relative to the mean; a deviation below is rounding. Gradients of
# 16 bits are computed in float32 and rounded at the end; wider ones add up many roundings.
ROUNDING = 64
ROUNDING_OF_16_BITS = 2
LEAST_WAITING, MOST_WAITING = 4, 2**16  # additions, and numbers: 0.5 MB


class Moments:
    r"""Mean and variance of independent vectors :math:`g_r`.

    The variance is the sum over all entries, :math:`\sum_j \operatorname{Var} g_j`. Sums are taken
    about the mean c of the rows that were added before anything was read (of large ones, the first
    few), so nothing cancels. The relative standard error of the variance is that of the mean of
    :math:`\lVert g_r - c \rVert^2` (delta method).

    If the vectors are of several kinds, each of which occurs with a known probability, mean and
    variance are those of a vector whose kind is random. A row has a vector of each kind.

    >>> moments = Moments()
    >>> moments.add(torch.tensor([[0.0, 1.0], [2.0, 1.0]]))
    >>> moments.add(torch.tensor([[4.0, 1.0]]))
    >>> moments.count, moments.mean.tolist(), moments.variance
    (3, [2.0, 1.0], 4.0)

    Args:
        shares: The probability of each kind.
    """

    def __init__(self, shares: Sequence[float] = (1.0,)) -> None:
        self.count = 0
        self.shares = torch.tensor(shares, dtype=torch.float64)
        self.rounding = 0.0  # relative error of a number that is taken for rounding
        self._waiting: list[Tensor] = []
        self._lengths: list[Tensor] = []

    def add(self, rows: Float[Tensor, "r *kinds entries"]) -> None:
        """Add rows, each with a vector of every kind."""
        if self.count == 0:
            units = ROUNDING_OF_16_BITS if rows.dtype.itemsize == 2 else ROUNDING
            self.rounding = units * torch.finfo(rows.dtype).eps
            self.shares = self.shares.to(rows.device)
        self.__dict__.pop("variance", None)
        self._waiting.append(rows.detach().double().reshape(len(rows), len(self.shares), -1))
        self.count += len(rows)
        if len(self._waiting) >= LEAST_WAITING and self.count * rows[0].numel() > MOST_WAITING:
            self._settle()

    def _settle(self) -> None:
        """Add what waits to the sums, about its mean if it is the first."""
        if not self._waiting:
            return
        vectors = torch.cat(self._waiting)
        self._waiting.clear()
        if not self._lengths:
            self._centre = self.shares @ vectors.mean(0)
            self._total = torch.zeros_like(vectors[0])
            self._squares = torch.zeros_like(vectors[0])
        vectors -= self._centre
        self._total += vectors.sum(0)
        vectors.square_()
        self._squares += vectors.sum(0)
        self._lengths.append(vectors.sum(-1) @ self.shares)

    @property
    def mean(self) -> Float[Tensor, "entries"]:
        """The mean."""
        self._settle()
        return self._centre + self.shares @ self._total / self.count

    @property
    def mean_variances(self) -> Float[Tensor, "entries"]:
        """The variance of every entry of the mean."""
        self._settle()
        if self.count < 2:
            return torch.full_like(self._centre, inf)
        by_kind = (self._squares - self._total.square() / self.count).clamp(min=0)
        return self.shares.square() @ by_kind / (self.count - 1) / self.count

    @property
    def variances(self) -> Float[Tensor, "entries"]:
        """The variance of every entry: the mean of its square, less the square of its mean."""
        square_of_mean = (self.mean - self._centre).square() - self.mean_variances
        return (self.shares @ self._squares / self.count - square_of_mean).clamp(min=0)

    @cached_property
    def variance(self) -> float:
        """The sum of the variances of all entries; 0 if it is no more than rounding, and infinite
        if entries were NaN or infinite."""
        total = float(self.variances.nan_to_num(nan=inf).sum())
        rounding = self.rounding**2 * float(self.mean.square().sum())
        return 0.0 if total <= rounding else total

    @property
    def mean_variance(self) -> float:
        """The sum of the variances of all entries of the mean; 0 if it is no more than rounding."""
        return float(self.mean_variances.sum()) if self.variance > 0 else 0.0

    @property
    def error(self) -> float:
        """The standard error of the variance, relative to it."""
        if self.count < 2:
            return inf
        if self.variance == 0:
            return 0.0
        lengths = torch.cat(self._lengths)
        return float(lengths.std()) / sqrt(self.count) / self.variance
