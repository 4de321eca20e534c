"""Ridge regressions on "which variable has which category", for fewer and fewer variables, on folds of the draws.

Two routes to the same numbers: with one unknown per draw (an N x N system for every block) or one per category (a single
Cholesky factorisation: with the variables in drawing order, the factor of a prefix is a leading block of the whole). Both fit all
folds and batch elements at once; a draw that is held out of a fold has no part in its fit, but gets its prediction.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from .structured import span

Fit = tuple[Float[Tensor, "folds *batch n"], Float[Tensor, "folds *batch n"], Float[Tensor, "folds *batch m k"]]


class ByDraws:
    """One unknown per draw; the kernel counts the variables in which two draws agree.

    Regressions are on all blocks of variables at first, and on all but the last after each :meth:`drop`.
    """

    def __init__(self, points: Tensor, train: Tensor, blocks: tuple[tuple[int, ...], ...], ridge: float) -> None:
        self.points, self.train, self.blocks = points, train, list(blocks)
        self.ridge = ridge * torch.eye(points.shape[-3], dtype=points.dtype, device=points.device)
        self.agreement = self._agreement(slice(None))

    def _agreement(self, variables: slice | list[int]) -> Float[Tensor, "*batch n n"]:
        some = self.points[..., variables, :].flatten(-2)
        return some @ some.mT

    def fit(self, target: Float[Tensor, "folds *batch n"]) -> Fit:
        """Predictions of all draws, predictions of the training draws left out in turn, and the last block's coefficients."""
        # Held-out rows and columns are zeroed: they get no weight in the solution.
        gram = self.train.unsqueeze(-1) * self.agreement * self.train.unsqueeze(-2) + self.ridge
        inverse = torch.cholesky_inverse(torch.linalg.cholesky_ex(gram).L)
        weight = (inverse @ target.unsqueeze(-1)).squeeze(-1)
        left_out = target - self.train * weight / inverse.diagonal(dim1=-2, dim2=-1)
        predicted = (self.agreement @ weight.unsqueeze(-1)).squeeze(-1)
        table = torch.einsum("f...n,...nik->f...ik", weight, self.points[..., span(self.blocks[-1]), :])
        return predicted, left_out, table

    def drop(self) -> None:
        self.agreement = self.agreement - self._agreement(span(self.blocks.pop()))


class ByCategories:
    """One unknown per variable and category, in drawing order; otherwise as :class:`ByDraws`."""

    def __init__(self, points: Tensor, train: Tensor, blocks: tuple[tuple[int, ...], ...], ridge: float) -> None:
        self.k, self.train = points.shape[-1], train
        self.sizes = [len(block) for block in blocks]
        order = span(tuple(i for block in blocks for i in block))
        features = points[..., order, :].flatten(-2)  # [*batch, n, d k]
        gram = features.mT @ (train.unsqueeze(-1) * features)
        gram = gram + ridge * torch.eye(features.shape[-1], dtype=points.dtype, device=points.device)
        self.factor = torch.linalg.cholesky_ex(gram).L
        self.white = torch.linalg.solve_triangular(self.factor, features.mT.expand(len(train), *features.mT.shape), upper=False)

    def fit(self, target: Float[Tensor, "folds *batch n"]) -> Fit:
        coefficient = self.white @ target.unsqueeze(-1)
        predicted = (self.white.mT @ coefficient).squeeze(-1)
        leverage = self.train * self.white.square().sum(-2)
        left_out = target - self.train * (target - predicted) / (1 - leverage)
        m = self.sizes[-1]
        last = self.factor[..., -m * self.k :, -m * self.k :].mT
        table = torch.linalg.solve_triangular(last, coefficient[..., -m * self.k :, :], upper=True)
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
