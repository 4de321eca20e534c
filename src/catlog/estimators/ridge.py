"""Cross-fitted ridge regressions on one-hot categories, of fewer and fewer variables.

There are two routes to the same numbers. One has an unknown per draw and solves N x N systems for
every block of variables. The other has an unknown per category and needs a single Cholesky
factorisation per fold: with the variables in drawing order, the factor of a prefix is a leading
block of the whole factor, and so is its inverse. Both fit all batch elements at once. A draw that
is held out of a fold does not enter the fit, but gets a prediction. Draw i is held out of fold i
mod the number of folds. The penalty is at least :func:`smallest_stable_ridge`, so that the
factorisation of a singular matrix does not fail.

Vectors are multiplied as rows: batched products with columns take ten times as long on a CPU.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from ..core.categories import as_index

Fit = tuple[
    Float[Tensor, "folds *batch n"],
    Float[Tensor, "folds *batch n"],
    Float[Tensor, "folds *batch m k"],
]

FEW = 32  # draws; for fewer, factorisations in the dtype of q are faster


def inverse_factor(gram: Float[Tensor, "*lead n n"]) -> Float[Tensor, "*lead n n"]:
    """Return the inverse W of the Cholesky factor, so that the inverse of ``gram`` is W' W.

    A CUDA graph can capture the two calls used here, but not ``torch.cholesky_inverse``.

    >>> inverse_factor(torch.tensor([[4.0, 0.0], [0.0, 0.25]]))
    tensor([[0.5000, 0.0000],
            [0.0000, 2.0000]])
    """
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    factor = torch.linalg.cholesky_ex(gram).L
    return torch.linalg.solve_triangular(factor, identity.expand(gram.shape), upper=False)


def penalised(gram: Float[Tensor, "*lead n n"], ridge: float) -> Float[Tensor, "*lead n n"]:
    """Return ``gram`` with the penalty on its diagonal."""
    return gram + ridge * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)


def smallest_stable_ridge(ridge: float, size: int, largest: int, dtype: torch.dtype) -> float:
    """Return ``ridge``, or the rounding error of a positive matrix of this size with entries up to
    ``largest``, if larger.

    The factor 8 is a safety margin.

    >>> [smallest_stable_ridge(ridge, 16, 10, torch.float32) for ridge in (3.0, 1e-9)]
    [3.0, 0.000152587890625]
    """
    return max(ridge, 8 * torch.finfo(dtype).eps * size * largest)


class ByDraws:
    r"""A regression with one unknown per draw; its kernel counts variables in which draws agree.

    It uses all blocks of variables at first, and one block less after each :meth:`drop`.

    The folds share one inverse R of the system of all draws: that of a fold with held-out draws H
    is :math:`R - R_{\cdot H} R_{HH}^{-1} R_{H \cdot}`. It is in float64, because its rounding
    errors depend on the held-out points, and larger ones would make a bias. The condition of the
    system is at most N d / ridge. If errors would be above 1e-10, or N is small, every fold has a
    factorisation of its own.
    """

    def __init__(
        self, points: Tensor, train: Tensor, blocks: tuple[tuple[int, ...], ...], ridge: float
    ) -> None:
        self.points = points
        self.train = train
        self.blocks = list(blocks)
        n, d = points.shape[-3:-1]
        is_precise = torch.finfo(torch.float64).eps * n * d < 1e-10 * ridge
        self.is_shared = n > FEW and is_precise and points.device.type != "mps"
        self.ridge = ridge if self.is_shared else smallest_stable_ridge(ridge, n, d, points.dtype)
        self.agreement = self._agreement(slice(None))

    def _agreement(self, variables: slice | list[int]) -> Float[Tensor, "*batch n n"]:
        features = self.points[..., variables, :].flatten(-2)
        return features @ features.mT

    def fit(self, target: Float[Tensor, "folds *batch n"]) -> Fit:
        """Return predictions, leave-one-out predictions and the last block's coefficients."""
        weight, diagonal = self._solution(target)
        weight = self.train * weight
        left_out = target - weight / torch.where(self.train > 0, diagonal, 1.0)
        predicted = (weight.unsqueeze(-2) @ self.agreement).squeeze(-2)
        table = torch.einsum(
            "f...n,...nik->f...ik", weight, self.points[..., as_index(self.blocks[-1]), :]
        )
        return predicted, left_out, table

    def _solution(self, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the solutions of the folds' systems, and the diagonals of their inverses."""
        folds, n = len(self.train), self.train.shape[-1]
        if not self.is_shared:  # held-out rows and columns are zeroed
            gram = self.train.unsqueeze(-1) * self.agreement * self.train.unsqueeze(-2)
            factor = inverse_factor(penalised(gram, self.ridge))
            inverse = factor.mT @ factor
            weight = (target.unsqueeze(-2) @ inverse).squeeze(-2)
            return weight, inverse.diagonal(dim1=-2, dim2=-1)
        fill = -n % folds  # draws that agree with no other, so that all folds have as many
        gram = pad(self.agreement.double(), (0, fill, 0, fill))
        factor = inverse_factor(penalised(gram, self.ridge))
        inverse = factor.mT @ factor
        rows = inverse.unflatten(-2, (-1, folds)).transpose(-3, -2)
        held_out = rows.unflatten(-1, (-1, folds)).diagonal(dim1=-4, dim2=-1).movedim(-1, -3)
        removed = inverse_factor(held_out) @ rows
        y = pad(target.double(), (0, fill)).movedim(0, -2)
        weight = y @ inverse - (y.unsqueeze(-2) @ removed.mT @ removed).squeeze(-2)
        diagonal = inverse.diagonal(dim1=-2, dim2=-1).unsqueeze(-2) - removed.square().sum(-2)
        both = torch.stack([weight, diagonal])[..., :n].movedim(-2, 1).to(target.dtype)
        return both[0], both[1]

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
        gram = penalised(gram, smallest_stable_ridge(ridge, size, n, points.dtype))
        self.factor = inverse_factor(gram)
        self.white = self.factor @ features.mT

    def fit(self, target: Float[Tensor, "folds *batch n"]) -> Fit:
        coefficient = target.unsqueeze(-2) @ self.white.mT
        predicted = (coefficient @ self.white).squeeze(-2)
        leverage = self.train * self.white.square().sum(-2)
        free = (1 - leverage).clamp(min=torch.finfo(leverage.dtype).eps)
        left_out = target - self.train * (target - predicted) / free
        m = self.sizes[-1]
        last = self.factor[..., -m * self.k :, -m * self.k :]
        table = coefficient[..., -m * self.k :] @ last
        return predicted, left_out, table.squeeze(-2).unflatten(-1, (m, self.k))

    def drop(self) -> None:
        size = self.sizes.pop() * self.k
        self.white, self.factor = self.white[..., :-size, :], self.factor[..., :-size, :-size]


def regression(
    points: Float[Tensor, "*batch n d k"],
    train: Float[Tensor, "folds *ones n"],
    blocks: tuple[tuple[int, ...], ...],
    ridge: float,
) -> ByDraws | ByCategories:
    """Return the cheaper of both regressions, by their numbers of multiplications."""
    n, d, k = points.shape[-3:]
    folds, size = len(train), d * k
    by_draws = len(blocks) * folds * n**3
    by_categories = folds * (size**3 + n * size**2 + 2 * len(blocks) * n * size)
    route = ByDraws if by_draws < by_categories else ByCategories
    return route(points, train, blocks, ridge)
