"""ARSM: augment, REINFORCE, swap, merge."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import pad

from ...distributions.factors import Factors, factors
from ...estimator import INDEPENDENT
from .coupling import CoupledDraws, Slope


@dataclass(frozen=True, repr=False)
class ARSM(CoupledDraws):
    r"""ARM for categorical variables: f at the arg-min categories after swapping pairs of noise
    components, weighted by the noise.

    .. math::
        \partial_{\phi_{im}} \approx \sum_j \Bigl(f(x^{mj}) - \frac1k \sum_c f(x^{cj})\Bigr)
        \bigl(\tfrac1k - \pi_{ij}\bigr), \qquad x_i = \arg\min_c \pi_{ic} / p_i(c),\; \pi_i \sim
        \text{Dirichlet}(1, \dots, 1)

    with :math:`\phi` the logits; :math:`x^{mj}` are the arg-min categories after swapping the
    entries m and j of :math:`\pi_i`, in *all* variables i. Every such point is a draw of q, so the
    value is the mean over all of them. Value and gradient are averaged over N noise vectors.
    Unbiased; with k = 2 it is :class:`ARM`. Categories of probability zero are never drawn; with
    mixed cardinalities k is the largest.

    Cost: ``samples`` (1 + k (k - 1) / 2) evaluations, all at once, and N d k^2 numbers. From some
    hundred categories on, use :class:`CARMS` or :class:`DisARMTree`, with N and 2N evaluations.
    Needs: any f.
    Reference: Yin et al., "ARSM: augment-REINFORCE-swap-merge estimator for gradient
    backpropagation through categorical variables", 2019.

    Args:
        samples: number N of noise vectors.
        validate: check the values of f and q for NaN and inf (eager mode only).

    In place of ``x``, a call takes :math:`\pi` as ``noise``, ``[samples, *batch, d, k]`` with sums
    1 over the last dimension.

    >>> logits = torch.zeros(1, 3, requires_grad=True)
    >>> q = torch.distributions.Independent(torch.distributions.Categorical(logits=logits), 1)
    >>> noise = torch.tensor([[[0.2, 0.3, 0.5]]])
    >>> ARSM()(lambda x: (x[..., 0] == 0).float(), q, noise=noise).backward()
    >>> logits.grad
    tensor([[ 0.1778, -0.0889, -0.0889]])
    """

    samples: int = 1
    validate: bool = True

    supports = INDEPENDENT
    simplex = -1
    reference = "Yin et al. 2019"

    def evaluations(self, q: Distribution) -> int:
        k = factors(q, validate=False).k
        return self.samples * (1 + k * (k - 1) // 2)

    def noise_per_variable(self, law: Factors) -> tuple[int, ...]:
        return (law.k,)

    def coupled(self, law: Factors, noise: Tensor) -> tuple[Int64[Tensor, "m *batch d"], Slope]:
        m, j = torch.triu_indices(law.k, law.k, 1, device=law.device)
        category = _smallest_after_swaps(noise, law.probs.detach(), m, j)
        number = torch.arange(1, len(m) + 1, device=law.device)
        which = torch.zeros(law.k, law.k, dtype=torch.int64, device=law.device)
        which = which.index_put((m, j), number).index_put((j, m), number)

        def slope(fx: Tensor) -> Tensor:
            swapped = fx.unflatten(0, (-1, self.samples))[which]  # [k (m), k (j), n, *batch]
            change = (swapped - swapped.mean(0)).movedim((0, 1), (-2, -1)).unsqueeze(-3)
            return (change * (1 / law.k - noise).unsqueeze(-2)).sum(-1).mean(0)

        return category.movedim(-1, 0).flatten(0, 1), slope


def _smallest_after_swaps(
    noise: Float[Tensor, "n *batch d k"],
    probs: Float[Tensor, "*batch d k"],
    m: Int64[Tensor, "swaps"],
    j: Int64[Tensor, "swaps"],
) -> Int64[Tensor, "n *batch d 1+swaps"]:
    """Return the category of the smallest ``noise / probs``, as it is and after every swap.

    A swap changes the entries m and j alone. The smallest of the other entries is among the three
    smallest of all, so a swap compares three numbers instead of k.
    """
    value, category = (noise / probs).sort(dim=-1, stable=True)
    value = pad(value, (0, 2), value=torch.inf)[..., :3]
    category = pad(category, (0, 2))[..., :3]
    first, second, _ = category.split(1, -1)
    is_first_swapped = (first == m) | (first == j)
    is_second_swapped = (second == m) | (second == j)
    rank = is_first_swapped.long() * (1 + is_second_swapped.long())
    smallest = value.gather(-1, rank)
    result = category.gather(-1, rank)
    for entry, swapped_with in ((m, j), (j, m)):
        swapped = noise[..., swapped_with] / probs[..., entry]
        result = torch.where(swapped < smallest, entry, result)
        smallest = torch.minimum(swapped, smallest)
    return torch.cat([first, result], -1)
