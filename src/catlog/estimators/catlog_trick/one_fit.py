"""Ridge regressions of all folds, and of fewer and fewer variables, from one fit to all draws."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from ...distributions.inverse_cdf import as_index

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
        self.points = points
        self.blocks = list(blocks)
        self.ridge = ridge
        self.folds = len(train)
        self.n = n = points.shape[-3]
        # Draws without features fill up the last round of the folds.
        surplus = -n % self.folds
        order = as_index(tuple(i for block in blocks for i in block))
        features = pad(points[..., order, :].flatten(-2), (0, 0, 0, surplus))
        identity = torch.eye(n + surplus, dtype=torch.float64, device=points.device)
        if len(blocks) == 1:
            agreement = (features @ features.mT).double()  # whole numbers
            factor = inverse_factor(agreement + ridge * identity)
            self.residual = ridge * (factor.mT @ factor)
        else:
            gram = (features.mT @ features).double()
            ones = torch.ones_like(gram[..., 0])
            root = torch.linalg.cholesky_ex(gram + torch.diag_embed(ridge * ones)).L
            self.white = torch.linalg.solve_triangular(root, features.mT.double(), upper=False)
            self.residual = identity - self.white.mT @ self.white
        draw = torch.arange(n + surplus, device=points.device).unsqueeze(-1)
        self.is_held_out = draw % self.folds == torch.arange(self.folds, device=points.device)
        self._prepare_folds()

    def _prepare_folds(self) -> None:
        """Compute Q of every fold, and the diagonal of its R, from R."""
        columns = self._by_fold(self.residual)  # [*batch, n, rounds, folds]
        factor = inverse_factor(self._own_rows(columns, -3).movedim(-1, -3))
        self.inverse = factor.mT @ factor  # Q, [*batch, folds, rounds, rounds]
        columns = columns.movedim(-1, -3)
        removed = ((columns @ self.inverse) * columns).sum(-1).mT
        self.diagonal = self.residual.diagonal(dim1=-2, dim2=-1).unsqueeze(-1) - removed

    def _by_fold(self, columns: Float[Tensor, "*lead n"]) -> Float[Tensor, "*lead rounds folds"]:
        """Return draws by the round and the fold in which they are held out."""
        return columns.unflatten(-1, (-1, self.folds))

    def _own_rows(self, table: Float[Tensor, "*lead folds"], dim: int) -> Tensor:
        """Return for each fold the rows, in dimension ``dim``, of the draws that it holds out."""
        return table.unflatten(dim, (-1, self.folds)).diagonal(dim1=dim, dim2=-1)

    def _spread(
        self, rows: Float[Tensor, "*batch folds rounds"]
    ) -> Float[Tensor, "*batch n folds"]:
        """Return columns that have a fold's numbers at the draws that it holds out, and else 0."""
        return torch.diag_embed(rows.mT).flatten(-3, -2)

    def fit(self, target: Float[Tensor, "folds *batch n"]) -> Fit:
        """Return predictions, leave-one-out predictions and the last block's coefficients."""
        y = pad(target.movedim(0, -1).double(), (0, 0, 0, self.residual.shape[-1] - self.n))
        left = self._own_rows(self.residual @ y, -2).mT.unsqueeze(-1)
        predicted = -(self.inverse @ left).squeeze(-1)  # [*batch, folds, rounds]
        completed = y + self._spread(predicted)
        residual = self.residual @ completed
        everywhere = completed - residual
        left_out = torch.where(self.is_held_out, 0.0, y - residual / self.diagonal)
        features = self.points[..., as_index(self.blocks[-1]), :].flatten(-2).double()
        table = features.mT @ residual[..., : self.n, :] / self.ridge

        def as_given(columns: Tensor) -> Tensor:
            return columns[..., : self.n, :].movedim(-1, 0).to(target.dtype)

        shape = (len(self.blocks[-1]), self.points.shape[-1])
        tables = table.movedim(-1, 0).unflatten(-1, shape).to(target.dtype)
        return as_given(everywhere), as_given(left_out), tables

    def drop(self) -> None:
        count = len(self.blocks.pop()) * self.points.shape[-1]
        if not self.blocks:
            return
        rows = self.white[..., -count:, :]
        self.white = self.white[..., :-count, :]
        if count <= self.inverse.shape[-1]:
            self._update_folds(rows)
            self.residual.add_(rows.mT @ rows)
        else:
            self.residual.add_(rows.mT @ rows)
            self._prepare_folds()

    def _update_folds(self, rows: Float[Tensor, "*batch c n"]) -> None:
        r"""Update Q and the diagonals for a sum of :math:`w w^\top`, to be added to R."""
        own = self._by_fold(rows).movedim(-1, -3)  # [*batch, folds, c, rounds]
        changes, scales = [], []
        for row in own.split(1, -2):
            change = row @ self.inverse
            scale = 1 + (row * change).sum(-1, keepdim=True)
            self.inverse = self.inverse - change.mT * (change / scale)
            changes.append(change)
            scales.append(scale)
        change, scale = torch.cat(changes, -2), torch.cat(scales, -2)
        # A row's part outside the held-out draws, with the earlier rows added to R already.
        columns = torch.diag_embed(change.movedim(-3, -1)).flatten(-3, -2).movedim(-3, -2)
        earlier = (own @ change.mT).triu(1).movedim(-3, -1)  # [*batch, c, c, folds]
        shift = self.residual @ columns.flatten(-2) + rows.mT @ earlier.flatten(-2)
        inside = rows.mT.unsqueeze(-1) - shift.unflatten(-1, columns.shape[-2:])
        grown = (inside.square() / scale.squeeze(-1).mT.unsqueeze(-3)).sum(-2)
        self.diagonal = self.diagonal + grown
