"""ARSM: augment, REINFORCE, swap, merge."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import pad

from ...distributions.factors import Factors, factors
from ...estimator import INDEPENDENT, Function
from ...evaluation.evaluate import evaluate_chunked
from ...tracing import full_precision
from .coupling import CoupledDraws


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

    Cost: ``samples`` (1 + k (k - 1) / 2) evaluations and N (d + k) k numbers. From some hundred
    categories on, use :class:`CARMS` or :class:`DisARMTree`, with N and 2N evaluations. Needs: any
    f.
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

    def coupled(self, f: Function, law: Factors, noise: Tensor) -> tuple[Tensor, Tensor]:
        n, k = self.samples, law.k
        m, j = pad(torch.triu_indices(k, k, 1, device=law.device), (1, 0))  # 0 and 0: no swap
        swapped = _Swaps(noise, law.probs.detach())

        def points(part: slice) -> Tensor:
            row = torch.arange(part.start, part.stop, device=law.device)
            return law.point(swapped.winner(row % n, m[row // n], j[row // n]))

        fx = evaluate_chunked(f, points, len(m) * n, law)
        which = torch.zeros(k, k, dtype=torch.int64, device=law.device)
        which[m, j] = torch.arange(len(m), device=law.device)
        table = fx.detach().unflatten(0, (-1, n))[which + which.mT]  # [k (m), k (j), n, *batch]
        change = (table - table.mean(0)).movedim((0, 1), (-1, -2)).to(noise.dtype)
        with full_precision(noise):
            return fx, ((1 / k - noise) @ change).mean(0)


class _Swaps:
    """The categories of the smallest ``noise / probs`` after swaps of two entries of the noise.

    A swap changes two ratios alone. The smallest of the others is among the three smallest of all,
    so a swap compares five numbers instead of k.
    """

    def __init__(
        self, noise: Float[Tensor, "n *batch d k"], probs: Float[Tensor, "*batch d k"]
    ) -> None:
        value, category = (noise / probs).sort(dim=-1, stable=True)
        self.value = pad(value, (0, 2), value=torch.inf)[..., :3].movedim(-1, 0)
        self.category = pad(category, (0, 2))[..., :3].movedim(-1, 0)
        self.noise = noise.movedim(-1, 1)
        self.probs = probs.movedim(-1, 0)

    def winner(
        self, draw: Int64[Tensor, "rows"], m: Int64[Tensor, "rows"], j: Int64[Tensor, "rows"]
    ) -> Int64[Tensor, "rows *batch d"]:
        """Return the category of the smallest ratio of a draw after swapping m and j."""
        ones = [1] * (self.value.dim() - 2)
        entries = m.view(-1, *ones), j.view(-1, *ones)
        smallest, winner = self.value[2][draw], self.category[2][draw]
        for rank in (1, 0):
            category = self.category[rank][draw]
            is_unchanged = (category != entries[0]) & (category != entries[1])
            smallest = torch.where(is_unchanged, self.value[rank][draw], smallest)
            winner = torch.where(is_unchanged, category, winner)
        for entry, number, partner in zip(entries, (m, j), (j, m), strict=True):
            ratio = self.noise[draw, partner] / self.probs[number]
            winner = torch.where(ratio < smallest, entry, winner)
            smallest = torch.minimum(ratio, smallest)
        return winner
