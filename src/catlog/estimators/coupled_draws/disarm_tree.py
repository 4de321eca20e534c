"""DisARM for categorical variables, written as trees of bits."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.distributions import Distribution

from ...checks import check_choice
from ...distributions.factors import Factors
from ...distributions.inverse_cdf import inverse_cdf
from ...estimator import INDEPENDENT
from ...tracing import full_precision
from .coupling import CoupledDraws, Slope

Tree = Literal["balanced", "stick"]


@dataclass(frozen=True, repr=False)
class DisARMTree(CoupledDraws):
    r"""DisARM for categorical variables: every category is a leaf of a binary tree, every inner
    node a bit.

    .. math::
        \partial_{\alpha_{iv}} \approx \frac1N \sum_n \tfrac12 \bigl(f(x^{(n)}) - f(\tilde
        x^{(n)})\bigr)
        (b_{iv}^{(n)} - \tilde b_{iv}^{(n)})\, \sigma(|\alpha_{iv}|)\, V_{iv}^{(n)}, \qquad
        \alpha_{iv} = \log \frac{p_i(\text{right of } v)}{p_i(\text{left of } v)}

    :math:`b, \tilde b` are antithetic bits at the nodes v, and :math:`x, \tilde x` the leaves that
    they lead to. V is 1 where the path to :math:`x_i` or to :math:`\tilde x_i` passes v, and 0
    elsewhere, because f does not depend on the other bits. The chain rule takes the gradient from
    :math:`\alpha` to the parameters of q. Unbiased; with k = 2 it is :class:`DisARM`. The value is
    the mean over all 2N points.

    Cost: 2 ``samples`` evaluations. Needs: any f.
    Reference: Dong et al., "Coupled gradient estimators for discrete latent variables", 2021.

    Args:
        samples: number of pairs N.
        tree: "balanced", or "stick": one category split off at a time, the rarest first.
        validate: check the values of f and q for NaN and inf (eager mode only).

    In place of ``x``, a call takes the uniforms as ``noise``, ``[samples, *batch, d, k - 1]``.

    >>> q = torch.distributions.Categorical(logits=torch.zeros(5, 4))
    >>> DisARMTree(samples=3)(lambda x: (x == 0).float(), q).shape
    torch.Size([5])
    """

    samples: int = 1
    tree: Tree = "balanced"
    validate: bool = True

    supports = INDEPENDENT
    reference = "Dong et al. 2021"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("DisARMTree", "tree", self.tree, get_args(Tree))

    def evaluations(self, q: Distribution) -> int:
        return 2 * self.samples

    def noise_per_variable(self, law: Factors) -> tuple[int, ...]:
        return (law.k - 1,)

    def coupled(self, law: Factors, noise: Tensor) -> tuple[Int64[Tensor, "m *batch d"], Slope]:
        probs = law.probs.detach()
        order = torch.arange(law.k, device=law.device).expand(probs.shape)
        if self.tree == "stick":
            probs, order = probs.sort(dim=-1, stable=True)
        sides = _sides(self.tree, law.k, law.device).to(law.real)  # [left or right, nodes, k]
        mass = _contracted("...k,svk->...vs", probs, sides)  # of the leaves on either side
        tiny = torch.finfo(law.real).tiny
        node = mass / mass.sum(-1, keepdim=True).clamp(min=tiny)
        bits = torch.cat([inverse_cdf(node, noise), inverse_cdf(node, 1 - noise)])
        # The leaf whose ancestors all have the bit that leads to it, and the nodes on its path.
        agree = _contracted(
            "...vs,svk->...k", torch.stack([1 - bits, bits], -1).to(law.real), sides
        )
        leaf = (agree - sides.sum((0, 1))).argmax(-1)
        index = order.expand(*leaf.shape, law.k).gather(-1, leaf.unsqueeze(-1)).squeeze(-1)

        def slope(fx: Tensor) -> Tensor:
            values, anti_values = fx.chunk(2)
            b, anti = bits.chunk(2)
            on_path = torch.maximum(*sides.sum(0).T[leaf].chunk(2))
            change = (values - anti_values)[..., None, None] * (b - anti) * on_path
            by_node = change.mean(0) * node.amax(-1) / 2
            # d alpha / d log p_k is p_k over the mass of its side: right positive, left negative.
            share = torch.stack([-by_node, by_node], -1) / mass.clamp(min=tiny)
            by_leaf = _contracted("...vs,svk->...k", share, sides.to(share.dtype)) * probs
            return torch.zeros_like(by_leaf).scatter(-1, order.expand(by_leaf.shape), by_leaf)

        return index, slope


def _contracted(equation: str, table: Tensor, sides: Tensor) -> Tensor:
    with full_precision(table):
        return torch.einsum(equation, table, sides)


def _sides(tree: Tree, k: int, device: torch.device) -> Tensor:
    """Return ``[2, k - 1, k]``: whether a leaf is left (0) or right (1) of an inner node."""
    leaf, node = torch.arange(k, device=device), torch.arange(k - 1, device=device).unsqueeze(-1)
    if tree == "stick":
        return torch.stack([leaf > node, leaf == node])  # the bit that is 1 takes the category
    # A heap: node v has the children 2v and 2v + 1, the root is 1 and the leaves are k ... 2k - 1.
    above = [(leaf + k) >> level for level in range((2 * k).bit_length())]
    steps = range(1, len(above))
    both = [
        torch.stack([(above[i] == node + 1) & (above[i - 1] % 2 == side) for i in steps])
        for side in (0, 1)
    ]
    return torch.stack(both).any(1)
