"""CARMS: any number of mutually antithetic draws of categorical variables."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import pad

from ...distributions.factors import Factors
from ...estimator import INDEPENDENT, Function
from ...evaluation.evaluate import evaluate
from .coupling import CoupledDraws, antithetic_events, pair_correction, pair_probability


@dataclass(frozen=True, repr=False)
class CARMS(CoupledDraws):
    r"""ARMS for categorical variables: leave-one-out REINFORCE on negatively dependent draws, each
    pair with a weight that corrects for the dependence.

    .. math::
        \frac{1}{N (N-1)} \sum_{n \ne m} \bigl(f(x^{(n)}) - f(x^{(m)})\bigr) \sum_{i:\, x_i^{(n)}
        \ne x_i^{(m)}}
        \frac{p_i(x_i^{(n)})\, p_i(x_i^{(m)})}{P_i(x_i^{(n)}, x_i^{(m)})}\; \partial \log
        p_i(x_i^{(n)})

    The draws of a variable break a stick, rarest category first. The draws that have no category
    yet take category j with probability :math:`s_j = p_j / (p_j + p_{j+1} + \dots) \le 1/2`,
    coupled as in :class:`ARMS`. Then for j before l

    .. math::
        \frac{p_j\, p_l}{P(j, l)} = \frac{s_j (1 - s_j)}{s_j - S_j} \prod_{h < j} \frac{(1 -
        s_h)^2}{1 - 2 s_h + S_h} < 2,
        \qquad S_j = \max(0, 2 s_j^{1/(N-1)} - 1)^{N-1}

    so every pair can occur and no weight is large. In other orders a pair can become impossible,
    which would cause a bias. With k = 2 it is ARMS. With N = 2 and uniform probabilities two draws
    never agree. The value is the mean over the draws.

    Cost: ``samples`` evaluations, and N d k numbers: the sum over pairs is taken by categories.
    Needs: any f.
    Reference: Dimitriev and Zhou, "CARMS: categorical-antithetic-REINFORCE multi-sample gradient
    estimator", 2021. The coupling by sticks, rarest first, is the choice of this library.

    Args:
        samples: number of coupled draws N, at least 2.
        validate: check the values of f and q for NaN and inf (eager mode only).

    In place of ``x``, a call takes ``noise``, ``[samples, *batch, d, k - 1]``: Dirichlet along the
    first dimension.

    >>> q = torch.distributions.Categorical(logits=torch.zeros(5, 4))
    >>> CARMS(samples=3)(lambda x: (x == 0).float(), q).shape
    torch.Size([5])
    """

    samples: int = 2
    validate: bool = True

    supports = INDEPENDENT
    simplex = 0
    least_samples = 2
    too_few = "One draw has no others to compare with: use Reinforce."
    reference = "Dimitriev & Zhou 2021b"

    def noise_per_variable(self, law: Factors) -> tuple[int, ...]:
        return (law.k - 1,)

    def coupled(self, f: Function, law: Factors, noise: Tensor) -> tuple[Tensor, Tensor]:
        n = self.samples
        order, stick = _sticks(law.probs.detach())
        passes = ~antithetic_events(noise, stick)
        rank = (passes if law.k == 2 else passes.long().cumprod(-1)).sum(-1)
        index = order.expand(*rank.shape, law.k).gather(-1, rank.unsqueeze(-1)).squeeze(-1)
        fx = evaluate(f, law.point(index), law)
        by_rank = _summed_pairs(fx.detach().to(law.real), rank, _weights(n, stick)) / (n * (n - 1))
        return fx, torch.zeros_like(by_rank).scatter(-1, order.expand(by_rank.shape), by_rank)


def _summed_pairs(
    fx: Float[Tensor, "n *batch"],
    rank: Int64[Tensor, "n *#batch d"],
    weight: Float[Tensor, "*#batch d k"],
) -> Float[Tensor, "*batch d k"]:
    """Return, for each rank r, the sum over all pairs of a draw n of rank r and a draw m of another
    rank of (f_n - f_m) times the weight of the lower rank.

    The weight depends on the ranks only, so the counts and the sums of f of each rank suffice. An
    infinite weight is one of pairs that cannot occur.
    """
    weight = torch.where(weight.isfinite(), weight, 0.0)
    fx = (fx - fx.mean(0)).unsqueeze(-1)
    ranks = range(weight.shape[-1])
    count = torch.stack([(rank == r).sum(0) for r in ranks], -1).to(fx.dtype)
    total = torch.stack([(fx * (rank == r)).sum(0) for r in ranks], -1)
    count_below, total_below = (_sum_before(weight * part) for part in (count, total))
    count_above, total_above = (_sum_before(part.flip(-1)).flip(-1) for part in (count, total))
    return (
        total * count_below
        - count * total_below
        + weight * (total * count_above - count * total_above)
    )


def _sum_before(terms: Float[Tensor, "*lead k"]) -> Float[Tensor, "*lead k"]:
    """Return for each entry the sum of the earlier ones."""
    return pad(terms[..., :-1].cumsum(-1), (1, 0))


def _sticks(
    probs: Float[Tensor, "*batch d k"],
) -> tuple[Int64[Tensor, "*batch d k"], Float[Tensor, "*batch d sticks"]]:
    """Return the categories, rarest first, and their probabilities given none before was taken."""
    ordered, order = probs.sort(dim=-1, stable=True)
    rest = ordered.flip(-1).cumsum(-1).flip(-1)
    return order, (ordered / rest)[..., :-1]


def _weights(n: int, stick: Float[Tensor, "*batch d sticks"]) -> Float[Tensor, "*batch d k"]:
    """Return p_j p_l / P(j, l) by the stick j that comes first; no pair uses the last entry."""
    step = (1 - stick).square() / (1 - 2 * stick + pair_probability(n, stick))
    ones = stick.new_ones(stick.shape[:-1] + (1,))
    before = torch.cat([ones, step[..., :-1].cumprod(-1)], -1)
    return torch.cat([before[..., : stick.shape[-1]] * pair_correction(n, stick), ones], -1)
