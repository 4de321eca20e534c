"""Functions of a weighted sum."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..checks import check_count
from .tables import Variables, check_own_table, full_precision, register_tensors, widened


class OfSum(nn.Module):
    r"""A function of a weighted sum, such as "do these digits add up to s?".

    .. math:: f(x) = g\Bigl(\sum_i w_i x_i\Bigr)

    Table: without weights, g at the 2k - 1 possible sums and O(d k) look-ups per draw; with
    weights, d k cheap calls of g.

    Args:
        g: maps sums ``[rows, *batch]`` to values ``[rows, *batch]``, element by element (it may
            know the batch).
        categories: k, the number of categories of every variable (2 for bits).
        weights: ``[d]``; None: all one.
        one_hot: x is one-hot.

    >>> f = OfSum(lambda s: (s == 3).float(), categories=4)
    >>> f(torch.tensor([[1, 2], [2, 2]])), f.neighbours(torch.tensor([[1, 2]]))
    (tensor([1., 0.]), tensor([[[0., 1., 0., 0.],
             [0., 0., 1., 0.]]]))
    """

    def __init__(
        self,
        g: Callable[[Tensor], Tensor],
        categories: int,
        weights: Float[Tensor, "d"] | None = None,
        one_hot: bool = False,
    ) -> None:
        super().__init__()
        check_count("OfSum", "categories", categories)
        self.g = g
        self.categories = categories
        self.one_hot = one_hot
        self.weights: Tensor | None
        register_tensors(self, weights=weights)

    def _sum(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return every variable's number, and their weighted sum."""
        x = number = widened(x)
        if self.one_hot:
            with full_precision(x):
                number = x @ torch.arange(self.categories, dtype=x.dtype, device=x.device)
        return number, (number if self.weights is None else number * widened(self.weights)).sum(-1)

    def forward(self, x: Tensor) -> Float[Tensor, "n *batch"]:
        return self.g(self._sum(x)[1])

    def neighbours(self, x: Tensor, variables: Variables | None = None) -> Tensor:
        check_own_table(self, OfSum)
        number, total = self._sum(x)
        k = self.categories
        if variables is not None:
            number = number.gather(-1, variables)
        category = torch.arange(k, dtype=number.dtype, device=x.device)
        if self.weights is None:
            shifts = torch.arange(1 - k, k, dtype=number.dtype, device=x.device)
            values = self._rows(total.unsqueeze(-1) + shifts)
            shift = (category - number.unsqueeze(-1)).long() + (k - 1)
            return values.unsqueeze(-2).expand(*number.shape, 2 * k - 1).gather(-1, shift)
        weights = widened(self.weights if variables is None else self.weights[variables])
        sums = total[..., None, None] + weights.unsqueeze(-1) * (category - number.unsqueeze(-1))
        return self._rows(sums.flatten(-2)).unflatten(-1, (-1, k))

    def _rows(self, sums: Float[Tensor, "n *batch many"]) -> Tensor:
        """Return g at ``many`` sums per draw, called with the batch in its last dimensions."""
        many = sums.shape[-1]
        return self.g(sums.movedim(-1, 0).flatten(0, 1)).unflatten(0, (many, -1)).movedim(0, -1)
