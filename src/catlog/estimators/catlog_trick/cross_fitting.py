"""Cross-fitted ridge regressions on one-hot categories, of fewer and fewer variables.

There are three routes to the same numbers. One has an unknown per draw and solves an N x N system
for every fold and block of variables. The second has an unknown per category and needs a single
Cholesky factorisation per fold: with the variables in drawing order, the factor of a prefix is a
leading block of the whole factor, and so is its inverse. The third makes one fit to all draws, and
derives those of the folds and of fewer variables from it (`one_fit.py`). All of them fit all batch
elements at once. A draw that is held out of a fold does not enter the fit, but gets a prediction.
Draw i is held out of fold i mod the number of folds. The penalty is at least
:func:`smallest_stable_ridge`, so that the factorisation of a singular matrix does not fail.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from ...distributions.inverse_cdf import as_index
from .one_fit import Fit, OneFit, inverse_factor, is_precise


def smallest_stable_ridge(ridge: float, size: int, largest: int, dtype: torch.dtype) -> float:
    """Return ``ridge``, or the rounding error of a positive matrix of this size with entries up to
    ``largest``, if larger.

    The factor 8 is a safety margin.

    >>> [smallest_stable_ridge(ridge, 16, 10, torch.float32) for ridge in (3.0, 1e-9)]
    [3.0, 0.000152587890625]
    """
    return max(ridge, 8 * torch.finfo(dtype).eps * size * largest)


class ByDraws:
    """A regression with one unknown per draw; its kernel counts variables in which draws agree.

    It uses all blocks of variables at first, and one block less after each :meth:`drop`.
    """

    def __init__(
        self, points: Tensor, train: Tensor, blocks: tuple[tuple[int, ...], ...], ridge: float
    ) -> None:
        self.points = points
        self.train = train
        self.blocks = list(blocks)
        n, d = points.shape[-3:-1]
        self.ridge = smallest_stable_ridge(ridge, n, d, points.dtype) * torch.eye(
            n, dtype=points.dtype, device=points.device
        )
        self.agreement = self._agreement(slice(None))

    def _agreement(self, variables: slice | list[int]) -> Float[Tensor, "*batch n n"]:
        features = self.points[..., variables, :].flatten(-2)
        return features @ features.mT

    def fit(self, target: Float[Tensor, "folds *batch n"]) -> Fit:
        """Return predictions, leave-one-out predictions and the last block's coefficients."""
        # Held-out rows and columns are zeroed: they get no weight in the solution.
        gram = self.train.unsqueeze(-1) * self.agreement * self.train.unsqueeze(-2) + self.ridge
        factor = inverse_factor(gram)
        inverse = factor.mT @ factor
        weight = (inverse @ target.unsqueeze(-1)).squeeze(-1)
        left_out = target - self.train * weight / inverse.diagonal(dim1=-2, dim2=-1)
        predicted = (self.agreement @ weight.unsqueeze(-1)).squeeze(-1)
        table = torch.einsum(
            "f...n,...nik->f...ik", weight, self.points[..., as_index(self.blocks[-1]), :]
        )
        return predicted, left_out, table

    def drop(self) -> None:
        self.agreement = self.agreement - self._agreement(as_index(self.blocks.pop()))


class ByCategories:
    """As :class:`ByDraws`, but with one unknown per variable and category, in drawing order."""

    def __init__(
        self, points: Tensor, train: Tensor, blocks: tuple[tuple[int, ...], ...], ridge: float
    ) -> None:
        self.k = points.shape[-1]
        self.train = train
        self.sizes = [len(block) for block in blocks]
        order = as_index(tuple(i for block in blocks for i in block))
        features = points[..., order, :].flatten(-2)  # [*batch, n, d k]
        gram = features.mT @ (train.unsqueeze(-1) * features)
        n, size = features.shape[-2:]
        gram = gram + smallest_stable_ridge(ridge, size, n, points.dtype) * torch.eye(
            size, dtype=points.dtype, device=points.device
        )
        self.factor = inverse_factor(gram)
        self.white = self.factor @ features.mT

    def fit(self, target: Float[Tensor, "folds *batch n"]) -> Fit:
        coefficient = self.white @ target.unsqueeze(-1)
        predicted = (self.white.mT @ coefficient).squeeze(-1)
        leverage = self.train * self.white.square().sum(-2)
        free = (1 - leverage).clamp(min=torch.finfo(leverage.dtype).eps)
        left_out = target - self.train * (target - predicted) / free
        m = self.sizes[-1]
        last = self.factor[..., -m * self.k :, -m * self.k :].mT
        table = last @ coefficient[..., -m * self.k :, :]
        return predicted, left_out, table.squeeze(-1).unflatten(-1, (m, self.k))

    def drop(self) -> None:
        size = self.sizes.pop() * self.k
        self.white, self.factor = self.white[..., :-size, :], self.factor[..., :-size, :-size]


def regression(
    points: Float[Tensor, "*batch n d k"],
    train: Float[Tensor, "folds *ones n"],
    blocks: tuple[tuple[int, ...], ...],
    ridge: float,
) -> ByDraws | ByCategories | OneFit:
    """Return the cheapest of the three regressions, by their numbers of multiplications.

    :class:`OneFit` is left out where its rounding errors would matter.
    """
    n, d, k = points.shape[-3:]
    folds, size = len(train), d * k
    by_draws = len(blocks) * folds * n**3
    by_categories = folds * (size**3 + n * size**2 + 2 * len(blocks) * n * size)
    if is_precise(ridge, n, d, points.device):
        one_fit = OneFit.cost(n, size, folds, len(blocks))
        if one_fit < min(by_draws, by_categories):
            return OneFit(points, train, blocks, ridge)
    route = ByDraws if by_draws < by_categories else ByCategories
    return route(points, train, blocks, ridge)
