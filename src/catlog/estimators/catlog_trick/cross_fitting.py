"""Ridge regressions on "which variable has which category", for fewer and fewer variables, on folds of the draws.

Two routes to the same numbers: with one unknown per draw (an N x N system for every block) or one per category (a single
Cholesky factorisation: with the variables in drawing order, the factor of a prefix is a leading block of the whole one, and the
inverse of the factor likewise). Both fit all folds and batch elements at once; a draw that is held out of a fold has no part in
its fit, but gets its prediction. The penalty is at least what keeps the factorisation of a singular matrix from breaking down
(:func:`bearable`).
"""

import torch
from jaxtyping import Float
from torch import Tensor

from ...distributions.inverse_cdf import as_index

Fit = tuple[
    Float[Tensor, "folds *batch n"],
    Float[Tensor, "folds *batch n"],
    Float[Tensor, "folds *batch m k"],
]


def smallest_stable_ridge(ridge: float, size: int, largest: int, dtype: torch.dtype) -> float:
    """``ridge``, or what rounding may change in a positive matrix of this size with entries up to ``largest``, if that is more.

    >>> bearable(3.0, 16, 10, torch.float32), bearable(1e-9, 16, 10, torch.float32) < 1e-3
    (3.0, True)
    """
    return max(ridge, 8 * torch.finfo(dtype).eps * size * largest)


def inverse_factor(gram: Float[Tensor, "*lead n n"]) -> Float[Tensor, "*lead n n"]:
    """The inverse W of the Cholesky factor, so that the inverse of ``gram`` is W' W.

    By two calls that a CUDA graph can capture, as ``torch.cholesky_inverse`` cannot.

    >>> inverse_factor(torch.tensor([[4.0, 0.0], [0.0, 0.25]]))
    tensor([[0.5000, 0.0000],
            [0.0000, 2.0000]])
    """
    one = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    return torch.linalg.solve_triangular(
        torch.linalg.cholesky_ex(gram).L, one.expand(gram.shape), upper=False
    )


class ByDraws:
    """One unknown per draw; the kernel counts the variables in which two draws agree.

    Regressions are on all blocks of variables at first, and on all but the last after each :meth:`drop`.
    """

    def __init__(
        self, points: Tensor, train: Tensor, blocks: tuple[tuple[int, ...], ...], ridge: float
    ) -> None:
        self.points, self.train, self.blocks = points, train, list(blocks)
        n, d = points.shape[-3:-1]
        self.ridge = smallest_stable_ridge(ridge, n, d, points.dtype) * torch.eye(
            n, dtype=points.dtype, device=points.device
        )
        self.agreement = self._agreement(slice(None))

    def _agreement(self, variables: slice | list[int]) -> Float[Tensor, "*batch n n"]:
        some = self.points[..., variables, :].flatten(-2)
        return some @ some.mT

    def fit(self, target: Float[Tensor, "folds *batch n"]) -> Fit:
        """Predictions of all draws, predictions of the training draws left out in turn, and the last block's coefficients."""
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
    """One unknown per variable and category, in drawing order; otherwise as :class:`ByDraws`."""

    def __init__(
        self, points: Tensor, train: Tensor, blocks: tuple[tuple[int, ...], ...], ridge: float
    ) -> None:
        self.k, self.train = points.shape[-1], train
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
) -> ByDraws | ByCategories:
    """The cheaper of the two routes by the cubes of the matrices' sizes."""
    n, d, k = points.shape[-3:]
    route = ByDraws if (d * k) ** 3 > len(blocks) * n**3 else ByCategories
    return route(points, train, blocks, ridge)
