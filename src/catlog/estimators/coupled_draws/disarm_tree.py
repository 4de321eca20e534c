"""DisARM for categorical variables, written as trees of bits."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import pad

from ...checks import check_choice
from ...distributions.factors import Factors
from ...distributions.inverse_cdf import inverse_cdf
from ...estimator import INDEPENDENT, Function
from ...evaluation.evaluate import evaluate
from .coupling import CoupledDraws

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

    Cost: 2 ``samples`` evaluations, and N d k numbers. Needs: any f.
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

    def coupled(self, f: Function, law: Factors, noise: Tensor) -> tuple[Tensor, Tensor]:
        probs = law.probs.detach()
        order = torch.arange(law.k, device=law.device).expand(probs.shape)
        if self.tree == "stick":
            probs, order = probs.sort(dim=-1, stable=True)
        tree = _Stick(law.k) if self.tree == "stick" else _Heap(law.k)
        mass = tree.mass(probs)  # of the leaves on either side
        tiny = torch.finfo(law.real).tiny
        node = mass / mass.sum(-1, keepdim=True).clamp(min=tiny)
        bits = torch.cat([inverse_cdf(node, noise), inverse_cdf(node, 1 - noise)])
        leaf, is_passed = tree.descend(bits)
        index = order.expand(*leaf.shape, law.k).gather(-1, leaf.unsqueeze(-1)).squeeze(-1)
        fx = evaluate(f, law.point(index), law)
        values, anti_values = fx.detach().chunk(2)
        b, anti = bits.chunk(2)
        on_path = torch.logical_or(*is_passed.chunk(2))
        change = (values - anti_values)[..., None, None] * (b - anti) * on_path
        by_node = change.mean(0) * node.amax(-1) / 2
        # d alpha / d log p_k is p_k over the mass of its side: right positive, left negative.
        share = torch.stack([-by_node, by_node], -1) / mass.clamp(min=tiny)
        by_leaf = tree.sum_to_leaves(share) * probs
        return fx, torch.zeros_like(by_leaf).scatter(-1, order.expand(by_leaf.shape), by_leaf)


class _Stick:
    """Node v splits off leaf v (right, where its bit is 1) from all later ones (left)."""

    def __init__(self, k: int) -> None:
        self.k = k

    def mass(self, probs: Float[Tensor, "*lead k"]) -> Float[Tensor, "*lead nodes 2"]:
        """Return the probabilities of the leaves left and right of every node."""
        later = probs.flip(-1).cumsum(-1).flip(-1)[..., 1:]
        return torch.stack([later, probs[..., :-1]], -1)

    def descend(
        self, bits: Int64[Tensor, "*lead nodes"]
    ) -> tuple[Int64[Tensor, "*lead"], Bool[Tensor, "*lead nodes"]]:
        """Return the leaf that the bits lead to, and whether its path passes each node."""
        leaf = pad(bits, (0, 1), value=1).argmax(-1)
        node = torch.arange(self.k - 1, device=bits.device)
        return leaf, node <= leaf.unsqueeze(-1)

    def sum_to_leaves(self, share: Float[Tensor, "*lead nodes 2"]) -> Float[Tensor, "*lead k"]:
        """Return the sum of the shares along the path to every leaf."""
        left, right = share.unbind(-1)
        return pad(left.cumsum(-1), (1, 0)) + pad(right, (0, 1))


class _Heap:
    """Node v has the children 2v and 2v + 1, the root is 1 and the leaves are k ... 2k - 1."""

    def __init__(self, k: int) -> None:
        self.k = k
        self.depth = (k - 1).bit_length()

    def mass(self, probs: Float[Tensor, "*lead k"]) -> Float[Tensor, "*lead nodes 2"]:
        """Return the probabilities of the leaves left and right of every node."""
        nodes, first = probs, self.k  # of the nodes from ``first`` on
        while first > 1:
            parent = (first + 1) // 2  # the first one both of whose children are known
            children = nodes[..., 2 * parent - first : first]
            nodes = torch.cat([children.unflatten(-1, (first - parent, 2)).sum(-1), nodes], -1)
            first = parent
        return nodes[..., 1:].unflatten(-1, (self.k - 1, 2))

    def descend(
        self, bits: Int64[Tensor, "*lead nodes"]
    ) -> tuple[Int64[Tensor, "*lead"], Bool[Tensor, "*lead nodes"]]:
        """Return the leaf that the bits lead to, and whether its path passes each node."""
        node = bits.new_ones(*bits.shape[:-1], 1)
        passed = [node[..., :0]]
        for _ in range(self.depth):
            is_inner = node < self.k
            passed.append(torch.where(is_inner, node, 1) - 1)
            bit = bits.gather(-1, passed[-1])
            node = torch.where(is_inner, 2 * node + bit, node)
        is_passed = torch.zeros_like(bits, dtype=torch.bool)
        return node.squeeze(-1) - self.k, is_passed.scatter(-1, torch.cat(passed, -1), True)

    def sum_to_leaves(self, share: Float[Tensor, "*lead nodes 2"]) -> Float[Tensor, "*lead k"]:
        """Return the sum of the shares along the path to every leaf."""
        total = share.new_zeros(*share.shape[:-2], 1)  # of the nodes from the root on
        for level in range(self.depth):
            parents = slice(2**level - 1, min(2 ** (level + 1), self.k) - 1)
            children = total[..., parents].unsqueeze(-1) + share[..., parents, :]
            total = torch.cat([total, children.flatten(-2)], -1)
        return total[..., self.k - 1 :]
