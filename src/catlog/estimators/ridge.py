"""Cross-fitted ridge regressions on one-hot categories, of fewer and fewer variables.

There are three routes to the same numbers. One has an unknown per draw and solves an N x N system
for every fold and block of variables. The second has an unknown per category and needs a single
Cholesky factorisation per fold: with the variables in drawing order, the factor of a prefix is a
leading block of the whole factor, and so is its inverse. The third makes one fit to all draws, and
derives those of the folds and of fewer variables from it. All of them fit all batch
elements at once. A draw that is held out of a fold does not enter the fit, but gets a prediction.
Draw i is held out of fold i mod the number of folds. The penalty is at least
:func:`smallest_stable_ridge`, so that the factorisation of a singular matrix does not fail.
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


def is_precise(ridge: float, n: int, d: int, device: torch.device) -> bool:
    """Return whether rounding errors of :class:`OneFit` are below 1e-10.

    They depend on the held-out points, so larger ones would make a bias. The condition of the N x N
    system is at most N d / ridge.
    """
    return device.type != "mps" and torch.finfo(torch.float64).eps * n * d < 1e-10 * ridge


class OneFit:
    r"""As ``ByDraws``, but with one factorisation for all folds and blocks, in float64.

    With the agreement A of all draws, :math:`R = \lambda (A + \lambda)^{-1}` takes targets y to the
    residuals of the fit to all draws. For a fold with held-out draws H:

    - the prediction at H is :math:`-Q\, (R y)_H` with :math:`Q = R_{HH}^{-1}` and y = 0 at H;
    - with this prediction in place of y at H, the fit to all draws is that of the fold;
    - its matrix R is :math:`R - R_{\cdot H} Q R_{H \cdot}`, of which the diagonal is needed.

    A block of variables less adds :math:`w w^\top` to R for each of its categories, where the w are
    rows of the whitened features, and so has rank-one updates of Q and of the diagonals. All of
    these are sums of positive terms or shrink Q, so that rounding errors do not grow.
    """

    @staticmethod
    def cost(n: int, size: int, folds: int, blocks: int) -> int:
        """Return the number of multiplications; ``size`` is the number of all categories."""
        whitening = size**3 + size**2 * n if blocks > 1 else n**3
        updates = n**2 * (folds + 1) * size if blocks > 1 else 0
        return whitening + n**2 * (size + n // folds + 2 * blocks * folds) + updates

    def __init__(
        self,
        points: Float[Tensor, "*batch n d k"],
        train: Float[Tensor, "folds *ones n"],
        blocks: tuple[tuple[int, ...], ...],
        ridge: float,
    ) -> None:
        self.n, _, self.k = points.shape[-3:]
        self.sizes = [len(block) for block in blocks]
        self.ridge = ridge
        self.folds = len(train)
        order = as_index(tuple(i for block in blocks for i in block))
        features = self._by_fold(points[..., order, :].flatten(-2).mT).flatten(-2)
        self.features = features.mT  # [*batch, draws, d k]
        draws = features.shape[-1]
        identity = torch.eye(draws, dtype=torch.float64, device=points.device)
        if len(blocks) == 1:
            agreement = (self.features @ features).double()  # whole numbers
            factor = inverse_factor(agreement + ridge * identity)
            self.residual = ridge * (factor.mT @ factor)
        else:
            gram = (features @ self.features).double()
            gram.diagonal(dim1=-2, dim2=-1).add_(ridge)
            root = torch.linalg.cholesky_ex(gram).L
            self.white = torch.linalg.solve_triangular(root, features.double(), upper=False)
            self.residual = identity - self.white.mT @ self.white
        fold = torch.arange(self.folds, device=points.device)
        self.is_held_out = fold.unsqueeze(-1) == fold.repeat_interleave(draws // self.folds)
        self._prepare_folds()

    def _by_fold(self, draws: Float[Tensor, "*lead n"]) -> Float[Tensor, "*lead folds rounds"]:
        """Return draws by the fold that holds them out.

        Draws without features fill up the last round.
        """
        return pad(draws, (0, -self.n % self.folds)).unflatten(-1, (-1, self.folds)).mT

    def _rows(self) -> Float[Tensor, "*batch folds rounds draws"]:
        """Return the rows of R by the fold that holds out their draws."""
        return self.residual.unflatten(-2, (self.folds, -1))

    def _prepare_folds(self) -> None:
        """Compute Q of every fold, and the diagonal of its R, from R."""
        rows = self._rows()
        held_out = rows.unflatten(-1, (self.folds, -1)).diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
        factor = inverse_factor(held_out)
        self.inverse = factor.mT @ factor  # Q, [*batch, folds, rounds, rounds]
        removed = ((self.inverse @ rows) * rows).sum(-2)
        self.diagonal = self.residual.diagonal(dim1=-2, dim2=-1).unsqueeze(-2) - removed

    def fit(self, target: Float[Tensor, "folds *batch n"]) -> Fit:
        """Return predictions, leave-one-out predictions and the last block's coefficients."""
        y = self._by_fold(target.movedim(0, -2).double()).flatten(-2)  # [*batch, folds, draws]
        predicted = -(self.inverse @ (self._rows() @ y.unsqueeze(-1)))
        completed = torch.where(self.is_held_out, predicted.flatten(-3).unsqueeze(-2), y)
        residual = completed @ self.residual
        left_out = torch.where(self.is_held_out, 0.0, y - residual / self.diagonal)
        shape = (self.sizes[-1], self.k)
        table = residual @ self.features[..., -shape[0] * shape[1] :].double() / self.ridge

        def as_given(rows: Float[Tensor, "*batch folds draws"]) -> Tensor:
            draws = rows.unflatten(-1, (self.folds, -1)).mT.flatten(-2)
            return draws[..., : self.n].movedim(-2, 0).to(target.dtype)

        tables = table.movedim(-2, 0).unflatten(-1, shape).to(target.dtype)
        return as_given(completed - residual), as_given(left_out), tables

    def drop(self) -> None:
        count = self.sizes.pop() * self.k
        if not self.sizes:
            return
        self.features = self.features[..., :-count]
        rows = self.white[..., -count:, :]
        self.white = self.white[..., :-count, :]
        is_small = count <= self.inverse.shape[-1]
        if is_small:
            self._update_folds(rows)
        flat = rows.reshape(-1, *rows.shape[-2:])
        self.residual.view(-1, *self.residual.shape[-2:]).baddbmm_(flat.mT, flat)
        if not is_small:
            self._prepare_folds()

    def _update_folds(self, rows: Float[Tensor, "*batch c draws"]) -> None:
        r"""Update Q and the diagonals for a sum of :math:`w w^\top`, to be added to R."""
        # [*batch, folds, c, rounds]
        held_out = rows.unflatten(-1, (self.folds, -1)).movedim(-2, -3)
        changes, scales = [], []
        for row in held_out.split(1, -2):
            change = row @ self.inverse
            scale = 1 + (row * change).sum(-1, keepdim=True)
            self.inverse = self.inverse - change.mT * (change / scale)
            changes.append(change)
            scales.append(scale)
        change, scale = torch.cat(changes, -2), torch.cat(scales, -2)
        # A row's part outside the held-out draws, with the earlier rows added to R already.
        earlier = (held_out @ change.mT).triu(1).mT
        inside = rows.unsqueeze(-3) - change @ self._rows() - earlier @ rows.unsqueeze(-3)
        self.diagonal = self.diagonal + (inside.square() / scale).sum(-2)


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
