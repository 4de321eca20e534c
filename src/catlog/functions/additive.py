"""A sum of separate costs."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Distribution

from ..core.categories import widened
from ..core.checks import check_is_tensor
from .tables import (
    Variables,
    as_one_hot,
    changes_from_current,
    check_batch,
    check_own,
    padded_probs,
    register_tensors,
)


class Additive(nn.Module):
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

    def __init__(self, costs: Float[Tensor, "*batch d k"], one_hot: bool = False) -> None:
        super().__init__()
        check_is_tensor("Additive", "costs", costs, "[*batch, d, k]")
        if costs.dim() < 2:
            raise ValueError(
                f"Additive: `costs` must have shape [*batch, d, k], but {tuple(costs.shape)} was "
                "given."
            )
        self.one_hot = one_hot
        self.costs: Tensor
        register_tensors(self, costs=costs)

    def forward(self, x: Tensor) -> Float[Tensor, "n *batch"]:
        points = as_one_hot(self, x, self.costs.shape[-2:], self.one_hot)
        check_batch(self, "costs", self.costs, 2, points.shape[:-2])
        return (points * widened(self.costs)).sum((-1, -2))

    def neighbours(self, x: Tensor, variables: Variables | None = None) -> Tensor:
        check_own("neighbours", self, Additive)
        value = Additive.forward(self, x)
        lead = x.shape[: x.dim() - (2 if self.one_hot else 1)]
        costs = widened(self.costs).expand(lead + self.costs.shape[-2:])
        return value[..., None, None] + changes_from_current(costs, x, self.one_hot, variables)

    def expectation(self, q: Distribution) -> Float[Tensor, "*batch"]:
        r"""Return the exact mean :math:`\sum_i \sum_k p_i(k)\, c_i(k)`, in O(d k)."""
        check_own("expectation", self, Additive)
        d, k = self.costs.shape[-2:]
        return (padded_probs(self, q, d, k) * widened(self.costs)).sum((-1, -2))
