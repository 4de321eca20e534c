"""Unions: an element counts once, however many variables choose it."""

import torch
from torch import Tensor
from torch.distributions import Distribution

from .problem import Problem, Size, at_means, bits, normal, one_hot, problem


@problem("max-coverage", interactions=True, relaxable=True)
def max_coverage(size: Size, seed: int) -> Problem:
    r"""Diminishing returns: a bit adds nothing where another covers the same, so effects are local.

    .. math:: f(x) = \sum_u w_u \Bigl(1 - \prod_{i \text{ covers } u} (1 - x_i)\Bigr)
    """
    d, elements = {"small": (10, 20), "large": (100, 300)}[size]
    logits, weights = normal(seed, (d,), (elements,))
    weights = weights.abs()
    generator = torch.Generator().manual_seed(seed)
    # Every element is in four sets.
    covers = torch.rand(elements, d, generator=generator).argsort(-1)[:, :4]

    def f(x: Tensor) -> Tensor:
        return (1 - (1 - x[..., covers]).prod(-1)) @ weights

    return Problem(f, (logits - 1,), bits, expectation=at_means(f))


@problem("subset-selection", interactions=True, relaxable=True)
def subset_selection(size: Size, seed: int) -> Problem:
    r"""Several draws from one distribution choose features, and a feature counts once.

    .. math:: f(x) = \frac1n \Bigl\| y - \sum_{j \text{ chosen}} \beta_j a_j \Bigr\|^2, \qquad
        y = \sum_j \beta_j a_j

    Slot s chooses feature :math:`x_s \sim \operatorname{softmax}(\theta)`. With
    :math:`u_j = \prod_s (1 - x_{sj})` this is a quadratic form in u, and
    :math:`\mathbb{E}[u_i u_j] = (1 - p_i - p_j)^{\text{slots}}`.
    """
    slots, k = {"small": (3, 8), "large": (10, 50)}[size]
    theta, features, beta = normal(seed, (k,), (2 * k, k), (k,))
    gram = beta[:, None] * (features.mT @ features) * beta / (2 * k)

    def law(theta: Tensor) -> Distribution:
        return one_hot(theta.unsqueeze(-2).expand(theta.shape[:-1] + (slots, k)))

    def f(x: Tensor) -> Tensor:
        unchosen = (1 - x).prod(-2)
        return ((unchosen @ gram) * unchosen).sum(-1)

    def expectation(theta: Tensor) -> Tensor:
        p = theta.softmax(-1)
        single, both = (1 - p) ** slots, (1 - p.unsqueeze(-1) - p.unsqueeze(-2)) ** slots
        diagonal = torch.eye(k, dtype=torch.bool)
        return (gram * torch.where(diagonal, single.unsqueeze(-1), both)).sum((-1, -2))

    return Problem(f, (theta,), law, expectation=expectation)
