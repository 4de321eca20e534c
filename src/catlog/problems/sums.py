"""Functions of sums of integers; the distribution of such a sum is a convolution."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..distributions.categoricals import Categoricals
from ..functions import OfSum
from .problem import Problem, Size, bits, black_box, normal, one_hot, problem


def distribution_of_sum(probs: Tensor, weights: Sequence[int] | None = None) -> Tensor:
    r"""Return P(sum = s) for s = 0, 1, ... from the probabilities ``[*batch, d, k]``.

    Variable i adds ``weights[i]`` (None: 1) times its category.

    >>> distribution_of_sum(torch.tensor([[0.5, 0.5], [0.5, 0.5]]))
    tensor([0.2500, 0.5000, 0.2500])
    """
    d, k = probs.shape[-2:]
    total = torch.ones(probs.shape[:-2] + (1,), dtype=probs.dtype)
    for i, weight in enumerate([1] * d if weights is None else weights):
        moved = [
            pad(total * probs[..., i, j, None], (weight * j, weight * (k - 1 - j)))
            for j in range(k)
        ]
        total = torch.stack(moved).sum(0)
    return total


@problem("digit-sum", interactions=True, relaxable=False)
def digit_sum(size: Size, seed: int) -> Problem:
    r"""A rare event: f is 0 at almost every draw, and it has no derivative.

    .. math:: f(x) = \Bigl[\sum_i x_i = s\Bigr], \qquad x_i \in \{0, \dots, 9\}
    """
    d = {"small": 3, "large": 16}[size]
    (logits,) = normal(seed, (d, 10))
    logits *= 2
    mean = (logits.softmax(-1) @ torch.arange(10.0, dtype=torch.float64)).sum()
    target = int(mean.round()) + d // 2
    f = OfSum(lambda s: (s.round() == target).double(), categories=10, one_hot=True)

    def expectation(logits: Tensor) -> Tensor:
        return distribution_of_sum(logits.softmax(-1))[..., target]

    return Problem(black_box(f), (logits,), one_hot, structured=f, expectation=expectation)


@problem("knapsack", interactions=True, relaxable=True)
def knapsack(size: Size, seed: int) -> Problem:
    r"""Values add up until a constraint binds: a kink couples all variables on one side only.

    .. math:: f(x) = \sum_i v_i x_i - \lambda \max\Bigl(0, \sum_i w_i x_i - C\Bigr)
    """
    d = {"small": 10, "large": 100}[size]
    logits, values = normal(seed, (d,), (d,))
    weights = torch.randint(1, 11, (d,), generator=torch.Generator().manual_seed(seed))
    values = weights / 10 * (1 + values.abs())
    capacity, penalty = int(weights.sum()) // 2, 0.5
    w = weights.double()

    def f(x: Tensor) -> Tensor:
        return x @ values - penalty * (x @ w - capacity).relu()

    def expectation(logits: Tensor) -> Tensor:
        p = logits.sigmoid()
        over = (torch.arange(int(weights.sum()) + 1) - capacity).relu().double()
        load = distribution_of_sum(torch.stack([1 - p, p], -1), weights.tolist())
        return p @ values - penalty * (load @ over)

    return Problem(f, (logits,), bits, expectation=expectation)


@problem("mixed", interactions=True, relaxable=False)
def mixed(size: Size, seed: int) -> Problem:
    r"""Variables of 2 to 7 categories in a batch of two distributions with different masks.

    .. math:: f(x) = \Bigl|\sum_i x_i - t\Bigr|
    """
    d = {"small": 5, "large": 60}[size]
    generator = torch.Generator().manual_seed(seed)
    sizes = [2 + i % 6 for i in range(d)]
    k = max(sizes)
    (logits,) = normal(seed, (2, d, k))
    # In every variable with three or more categories one is masked, drawn for each batch element.
    is_category = torch.arange(k) < torch.tensor(sizes)[:, None]
    masked = (torch.rand(2, d, k, generator=generator) * is_category).argmax(-1)
    mask = torch.arange(k) == torch.where(torch.tensor(sizes) > 2, masked, k)[..., None]

    def law(logits: Tensor) -> Categoricals:
        return Categoricals(logits.masked_fill(mask, -torch.inf), sizes)

    mean = (law(logits).probs @ torch.arange(k, dtype=torch.float64)).sum(-1)
    target = mean.round() + torch.tensor([0, d**0.5 // 1], dtype=torch.float64)
    f = OfSum(lambda s: (s - target).abs(), categories=k)

    def expectation(logits: Tensor) -> Tensor:
        total = distribution_of_sum(law(logits).probs)
        sums = torch.arange(total.shape[-1], dtype=torch.float64)
        return (total * (sums - target.unsqueeze(-1)).abs()).sum(-1)

    return Problem(black_box(f), (logits,), law, structured=f, expectation=expectation)
