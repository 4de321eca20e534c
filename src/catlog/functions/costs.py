"""Costs of single variables, and of pairs."""

from abc import abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution

from ..core.categories import widened
from ..core.tracing import full_precision
from .tables import OwnTable, Variables, check_batch, hold


class _Energy(OwnTable):
    """Costs of single variables, and perhaps of pairs."""

    fields: Tensor

    @abstractmethod
    def _energy(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return the energy of one-hot vectors or of probabilities, and the categories' costs,
        given the other variables' vectors."""

    def forward(self, x: Tensor) -> Float[Tensor, "n *batch"]:
        return self._energy(self._one_hots(x, *self.fields.shape[-2:]))[0]

    def neighbours(self, x: Tensor, variables: Variables | None = None) -> Tensor:
        self._check_own("neighbours", _Energy)
        d, k = self.fields.shape[-2:]
        value, costs = self._energy(self._one_hots(x, d, k))
        costs = costs.expand(*value.shape, d, k)
        return value[..., None, None] + self._changes(costs, x, variables)

    def expectation(self, q: Distribution) -> Float[Tensor, "*batch"]:
        """Return the exact mean, the energy at the probabilities of the independent variables.

        The energy is linear in the vector of each variable.
        """
        self._check_own("expectation", _Energy)
        probs = self._probs(q, *self.fields.shape[-2:])
        return self._energy(probs.unsqueeze(0))[0].squeeze(0)


class Additive(_Energy):
    r"""A separate cost per variable.

    .. math:: f(x) = \sum_i c_i(x_i)

    IndeCateR is exact on it with one draw. Table: O(d k) per draw in all. Mean under independent
    variables: O(d k).

    Args:
        costs: ``[*batch, d, k]`` (or ``[d, k]`` for all batch elements), a parameter or a tensor.
            Their batch must broadcast to that of q.
        one_hot: x is one-hot.

    >>> import torch
    >>> f = Additive(torch.tensor([[0.0, 1.0], [0.0, 2.0]]))
    >>> f(torch.tensor([[1.0, 1.0]])), f.neighbours(torch.tensor([[1.0, 1.0]]))
    (tensor([3.]), tensor([[[2., 3.],
             [1., 3.]]]))
    """

    costs: Tensor

    def __init__(self, costs: Float[Tensor, "*batch d k"], one_hot: bool = False) -> None:
        super().__init__()
        self.one_hot = one_hot
        hold(self, costs=(costs, "[*batch, d, k]"))

    @property
    def fields(self) -> Tensor:  # type: ignore[override]
        return widened(self.costs)

    def _energy(self, points: Tensor) -> tuple[Tensor, Tensor]:
        check_batch(self, "costs", self.costs, 2, points.shape[:-2])
        costs = self.fields
        return (points * costs).sum((-1, -2)), costs


class _OfPairs(_Energy):
    """Costs of single variables, and of pairs as a subclass says."""

    @abstractmethod
    def _coupling_costs(self, points: Tensor) -> Float[Tensor, "*lead d k"]:
        """Return the pairs' cost of each category, given the other variables' vectors."""

    def _energy(self, points: Tensor) -> tuple[Tensor, Tensor]:
        with full_precision(points):
            costs = self._coupling_costs(points)
        value = (points.to(costs.dtype) * (self.fields + costs / 2)).sum((-1, -2))
        return value, self.fields + costs


class Pairwise(_OfPairs):
    r"""A cost per variable and a cost per pair of variables.

    .. math:: f(x) = \sum_i h_i(x_i) + \sum_{i<j} J_{ij}(x_i, x_j)

    Table: one product with J per draw, which costs about k evaluations of f instead of d (k - 1).
    Mean under independent variables: the cost of one evaluation of f.

    Args:
        couplings: ``[d, k, d, k]``; the sum over i < j reads the part above the block diagonal
            only.
        fields: ``[d, k]``, or None for none.
        one_hot: x is one-hot.

    >>> couplings = torch.zeros(2, 2, 2, 2)
    >>> couplings[0, :, 1, :] = torch.tensor([[0.0, 1.0], [1.0, 0.0]])  # XOR
    >>> f = Pairwise(couplings)
    >>> f(torch.tensor([[0.0, 1.0], [1.0, 1.0]]))
    tensor([1., 0.])
    """

    couplings: Tensor

    def __init__(
        self,
        couplings: Float[Tensor, "d k d k"],
        fields: Float[Tensor, "d k"] | None = None,
        one_hot: bool = False,
    ) -> None:
        super().__init__()
        self.one_hot = one_hot
        hold(self, couplings=(couplings, "[d, k, d, k]"))
        if fields is None:
            fields = couplings.new_zeros(couplings.shape[:2])
        hold(self, couplings=(couplings, "[d, k, d, k]"), fields=(fields, "[d, k]"))

    def _coupling_costs(self, points: Tensor) -> Tensor:
        d, k = self.fields.shape
        upper = torch.ones(d, d, dtype=torch.bool, device=points.device).triu(1)[:, None, :, None]
        half = torch.where(upper, widened(self.couplings), 0.0).reshape(d * k, d * k)
        rows = points.flatten(-2).to(half.dtype)
        return (rows @ (half + half.mT)).unflatten(-1, (d, k))


class Potts(_OfPairs):
    r"""A cost per variable and a cost per pair of equal variables.

    It is a :class:`Pairwise` that stores one number per pair of variables instead of :math:`k^2`.
    Mean under independent variables: the cost of one evaluation of f.

    .. math:: f(x) = \sum_i h_i(x_i) + \sum_{i<j} J_{ij} [x_i = x_j]

    An Ising energy :math:`\sum_i b_i s_i + \sum_{i<j} A_{ij} s_i s_j` of spins :math:`s = 2x - 1`
    is, up to a constant, ``Potts(2 * A, fields=torch.stack([-b, b], -1))``: see :func:`ising`.

    Args:
        couplings: J ``[d, d]``; the part above the diagonal is read.
        fields: h ``[d, k]``.
        one_hot: x is one-hot.

    >>> f = Potts(torch.ones(3, 3), torch.zeros(3, 4))
    >>> f(torch.tensor([[0, 0, 3], [1, 1, 1]]))
    tensor([1., 3.])
    """

    couplings: Tensor

    def __init__(
        self, couplings: Float[Tensor, "d d"], fields: Float[Tensor, "d k"], one_hot: bool = False
    ) -> None:
        super().__init__()
        self.one_hot = one_hot
        hold(self, couplings=(couplings, "[d, d]"), fields=(fields, "[d, k]"))

    def _coupling_costs(self, points: Tensor) -> Tensor:
        half = widened(self.couplings).triu(1)
        return (half + half.mT) @ points.to(half.dtype)


def ising(couplings: Float[Tensor, "d d"], fields: Float[Tensor, "d"]) -> Potts:
    r"""Return the energy of the spins of bits x.

    .. math:: f(x) = \sum_i b_i s_i + \sum_{i<j} A_{ij}(s_i s_j + 1), \qquad s = 2x - 1

    >>> ising(torch.ones(2, 2), torch.zeros(2))(torch.tensor([[1.0, 1.0], [0.0, 1.0]]))
    tensor([2., 0.])
    """
    return Potts(2 * couplings, torch.stack([-fields, fields], -1))
